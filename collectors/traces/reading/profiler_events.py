"""Reads the raw events of a profiler in this process into the Timeline that its exported file would give.

`prof.events()` and `key_averages()` build a tree and take twenty times as long. The result may differ from the file's
in two ways: names here are as the program gave them, while kineto alters or drops those with a quotation mark, a
backslash, a tab or a non-ASCII letter; and a `record_function` still open when the profiler stops may end elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from collectors.traces.event_names import RECORD
from collectors.traces.reading.raw_events import CATEGORIES, CollectiveArgs, RawEvents
from collectors.traces.reading.reader import build_timeline
from collectors.traces.timeline import ABSENT, About, Timeline, numbered, numbered_except

NUMBERS = {name: number for number, name in enumerate(CATEGORIES)}
OF_HOST = (CATEGORIES.index("cpu_op"), CATEGORIES.index("user_annotation"))
KERNEL = CATEGORIES.index("kernel")
LONGEST_LIST = 30
"""Kineto writes no sizes of a longer list of tensors: TENSOR_LIST_DISPLAY_LENGTH_LIMIT of torch's profiler."""


class Event(Protocol):
    """The methods that are called on a kineto event of `torch.profiler`."""

    def name(self) -> str: ...
    def activity_type(self) -> str: ...
    def start_ns(self) -> int: ...
    def end_ns(self) -> int: ...
    def device_index(self) -> int: ...
    def device_resource_id(self) -> int: ...
    def correlation_id(self) -> int: ...
    def linked_correlation_id(self) -> int: ...
    def structured_input_shapes(self) -> Sequence[object]: ...
    def extra_meta(self) -> Mapping[str, str]: ...


def read_events(events: Iterable[Event], *, rank: int) -> Timeline:
    """Return the Timeline of these events. It has no allocations: the events do not hold their addresses."""
    rows = [(category, event) for event in events if (category := NUMBERS.get(event.activity_type())) is not None]
    known = [event for _, event in rows]
    names, name = numbered([event.name() for event in known])
    shapes, shape = numbered_except("", [_shape(event) if category in OF_HOST else "" for category, event in rows])
    start_ns = np.array([event.start_ns() for event in known], dtype=np.int64)
    raw = RawEvents(
        names=names,
        name=name,
        category=np.array([category for category, _ in rows], dtype=np.int8),
        start_ns=start_ns,
        duration_ns=np.array([event.end_ns() for event in known], dtype=np.int64) - start_ns,
        process=np.array([event.device_index() for event in known], dtype=np.int64),
        thread=np.array([event.device_resource_id() for event in known], dtype=np.int64),
        correlation=np.array(
            [ABSENT if category in OF_HOST else event.correlation_id() for category, event in rows], dtype=np.int64
        ),
        shapes=shapes,
        shape=shape,
        collective_args=tuple(sorted(_collective_args(rows).items())),
    )
    return build_timeline(raw, rank=rank, about=About())


def _shape(operator: Event) -> str:
    """Return the sizes of an operator's inputs as kineto writes them; "" if there are none."""
    sizes = operator.structured_input_shapes()
    # A long list of tensors has the sizes of each; kineto leaves such a list out.
    written = [
        [] if isinstance(each, list) and len(each) > LONGEST_LIST and isinstance(each[0], list) else each
        for each in sizes
    ]
    return str(written) if written else ""


def _collective_args(rows: Sequence[tuple[int, Event]]) -> dict[int, CollectiveArgs]:
    """Return the args of collectives by row: an operator's own, which its kernels get too, as kineto does it."""
    args_of_row: dict[int, CollectiveArgs] = {}
    by_operator: dict[int, CollectiveArgs] = {}
    for row, (category, event) in enumerate(rows):
        if category in OF_HOST and event.name() == RECORD and "Collective name" in (meta := event.extra_meta()):
            values = {key: value.strip('"') for key, value in meta.items()}
            args_of_row[row] = msgspec.convert(
                {**values, "External id": event.correlation_id()}, CollectiveArgs, strict=False
            )
            by_operator[event.correlation_id()] = args_of_row[row]
    for row, (category, event) in enumerate(rows):
        if category == KERNEL and by_operator and (args := by_operator.get(event.linked_correlation_id())):
            args_of_row[row] = args
    return args_of_row
