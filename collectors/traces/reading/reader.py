"""Reads a trace file that kineto has written (2021 or later) into a Timeline, chunk by chunk; or a profiler's events.

Times are exact: nanoseconds come from the decimal digits. The Timeline's `about.left_out` lists what could not be used.
`read_events` reads a profiler in this process; `prof.events()` and `key_averages()` build a tree and take twenty times
as long. Its Timeline may differ from the file's in two ways: names are the program's own, while kineto alters or drops
those with a quotation mark, a backslash, a tab or a non-ASCII letter; and a `record_function` that is still open when
the profiler stops may have another end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import RECORD
from collectors.traces.intervals import Times
from collectors.traces.reading import decoders as python_decoder
from collectors.traces.reading.collective_args import collectives, drop_impossible_args
from collectors.traces.reading.damaged_json import likely_boundary, split
from collectors.traces.reading.event_kinds import deciding_rules, devices, kinds, remarks
from collectors.traces.reading.json_chunks import TextWindow, null_for_inf_and_nan, open_text
from collectors.traces.reading.metadata import NoEvents, TopLevelKeys, go_to_events, read_metadata, read_tail
from collectors.traces.reading.plausible_times import believed, drop_impossible
from collectors.traces.reading.raw_events import (
    AT_WORK,
    CATEGORIES,
    ON_DEVICE,
    ChunkJoiner,
    CollectiveArgs,
    Decoder,
    RawEvents,
)
from collectors.traces.timeline import ABSENT, STREAM_BITS, About, Call, Timeline, numbered, numbered_except

# From raw events to a Timeline: determine kinds, sort the events, and renumber their texts.

Order = NDArray[np.intp]

T = TypeVar("T", bound=np.generic)


def build_timeline(raw: RawEvents, *, rank: int, about: About, base_ns: int = 0) -> Timeline:
    """Return the Timeline of these events, whose times count from base_ns; report faults in left_out.

    The events cannot be used afterwards: their columns are sorted in place, so that they are never in memory twice.
    """
    work = int(np.isin(raw.category, AT_WORK).sum())
    raw, impossible, untimed = drop_impossible(raw, base_ns)
    sound = believed(raw, base_ns)
    raw, impossible_args = drop_impossible_args(sound.raw)
    left_out = (*impossible, *sound.lines, *impossible_args)
    kind, is_device = kinds(raw)
    communication = list(collectives(raw, kind, about.groups))
    stream = _streams(raw)
    left_out += remarks(raw, kind, stream, is_device, untimed_work=work - int(np.isin(raw.category, AT_WORK).sum()))
    rules = deciding_rules(raw, kind)
    end_ns = np.add(raw.start_ns, raw.duration_ns, out=raw.duration_ns)
    order = _order(raw, kind, stream, end_ns)
    call = np.full(kind.size, ABSENT, dtype=np.int32)
    sequence = raw.process  # Reuse its memory: streams now contain the device.
    sequence[:] = ABSENT
    numbers: dict[Call, int] = {}
    for each in communication:
        call[each.row] = numbers.setdefault(each.call, len(numbers))
        sequence[each.row] = each.sequence
    names, name = _by_appearance(raw.names, raw.name[order])
    shapes, shape = _by_appearance(raw.shapes, raw.shape[order])
    calls, call = _by_appearance(tuple(numbers), call[order])
    return Timeline(
        rank=rank,
        is_device=is_device,
        names=names,
        name=name,
        kind=_ordered(kind, order),
        start_ns=_ordered(raw.start_ns, order),
        end_ns=_ordered(end_ns, order),
        stream=_ordered(stream, order),
        correlation=_ordered(raw.correlation, order),
        calls=calls,
        call=call,
        sequence=_ordered(sequence, order),
        shapes=shapes,
        shape=shape,
        allocations=raw.allocations.at(np.argsort(raw.allocations.time_ns, kind="stable")),
        about=replace(
            about,
            left_out=(*about.left_out, *left_out),
            untimed=tuple(sorted({*raw.untimed, *untimed, *sound.untimed})),
            clocks_differ=sound.clocks_differ,
            decided_by=rules,
        ),
    )


def _streams(raw: RawEvents) -> NDArray[np.int64]:
    """Return threads and streams; if a trace has several devices, the bits above a stream's 32 are the device's number.

    A wait without a stream, or on a device that does no work, keeps its number.
    """
    gpus = devices(raw)
    if gpus.size <= 1:
        return raw.thread
    is_on_device = np.isin(raw.category, ON_DEVICE) & np.isin(raw.process, gpus) & (raw.thread >= 0)
    return np.where(is_on_device, raw.thread + (raw.process << STREAM_BITS), raw.thread)


def _order(raw: RawEvents, kind: NDArray[np.int8], stream: NDArray[np.int64], end_ns: Times) -> Order:
    """Sort by start, then longer events first, then by content, since files and profilers differ in their order."""
    # Sort by start, then sort only the events with equal starts by all keys.
    order: Order = np.argsort(raw.start_ns, kind="stable")
    starts = raw.start_ns[order]
    # Starts of 1, 3, 3, 4 are tied at places 1 and 2.
    is_tied = np.zeros(order.size, dtype=np.bool_)
    is_tied[1:] = starts[1:] == starts[:-1]
    is_tied[:-1] |= is_tied[1:]
    if is_tied.any():
        places, rows = np.flatnonzero(is_tied), order[is_tied]
        # The alphabetical place of each name, by its index.
        alphabetical = np.empty(len(raw.names) + 1, dtype=np.int64)
        alphabetical[sorted(range(len(raw.names)), key=raw.names.__getitem__)] = np.arange(len(raw.names))
        keys = (alphabetical[raw.name], raw.correlation, stream, kind, -end_ns, raw.start_ns)
        order[places] = rows[np.lexsort([key[rows] for key in keys])]
    return order


def _ordered(column: NDArray[T], order: Order) -> NDArray[T]:
    """Sort the column in place, so that only one column at a time is in memory twice."""
    column[:] = column[order]
    return column


def _by_appearance(things: Sequence[Any], number: NDArray[np.int32]) -> tuple[tuple[Any, ...], NDArray[np.int32]]:
    """Return the things that occur in `number`, in order of first appearance, and `number` as indices into these.

    Example: things a, b, c and number [2, 0, ABSENT, 2] give c, a and [0, 1, ABSENT, 0].
    """
    first = np.full(len(things) + 1, number.size, dtype=np.int64)
    # The last write to an index wins, so writing backwards leaves the first appearance.
    first[number[::-1]] = np.arange(number.size - 1, -1, -1)
    first[ABSENT] = number.size
    appearing = [each for each in np.argsort(first, kind="stable").tolist() if first[each] < number.size]
    moved = np.full(len(things) + 1, ABSENT, dtype=np.int32)
    moved[appearing] = np.arange(len(appearing), dtype=np.int32)
    return tuple(things[each] for each in appearing), moved[number]


SCANNED_BYTES, PYTHON_BYTES = 8 << 20, 1 << 19
"""Sizes of a chunk. The Python decoder's objects are many times larger than its chunk and should fit into caches."""

DECODERS: tuple[Decoder, ...] = (python_decoder.decode_by_scanner, python_decoder.decode_in_python)
"""Decoders in the order in which they are tried."""

RANK_UNKNOWN = "its rank: neither the trace nor its file's name has it, so it is reported as rank 0"

_RANK = re.compile(
    r"(?:(?<![A-Za-z])(?P<axis>(?i:local|node|group|host|tp|pp|dp|ep|cp|sp))[-_.]?(?i:rank)"
    r"|(?<![A-Za-z])(?i:rank)|(?<=[a-z])Rank)[-_]?(?P<rank>\d{1,9})"
)
"""A rank in a file name, as a word: not as in frank2024. A rank along an axis or within a node is not a global rank."""


def rank_in_name(name: str) -> int | None:
    """Return the global rank in a file name; None for a local rank, or a rank along an axis of parallelism."""
    ranks = [int(match["rank"]) for match in _RANK.finditer(name) if match["axis"] is None]
    return ranks[0] if ranks else None


class Unreadable(ValueError):
    """The file is not a trace, or nothing in it can be read. at: the byte of its text at which reading failed."""

    def __init__(self, path: Path, at: int, why: str) -> None:
        super().__init__(f"{path}: byte {at}: {why}; a trace is JSON, or JSON.gz, as torch.profiler exports it")
        self.path, self.at, self.why = path, at, why

    def __reduce__(self) -> tuple[type[Unreadable], tuple[Path, int, str]]:
        return type(self), (self.path, self.at, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """The events read from a file.

    broken_at: where unreadable events begin. is_cut: the text ends before its list of events does, at ends_at.
    """

    chunks: ChunkJoiner
    broken_at: Sequence[int]
    is_cut: bool
    ends_at: int


def read_trace(
    path: Path,
    *,
    rank: int | None = None,
    decoders: Sequence[Decoder] = DECODERS,
    chunk_bytes: int | None = None,
) -> Timeline:
    """Return the Timeline of a trace file. rank: overrides the file's. chunk_bytes: None for the decoders' best size.

    Raises:
        Unreadable: no event in the file can be read.
        OSError: the file does not exist or cannot be opened.
    """
    is_scanned = python_decoder.IS_BUILT and python_decoder.decode_by_scanner in decoders
    with open_text(path) as file:
        window = TextWindow(file, size_bytes=chunk_bytes or (SCANNED_BYTES if is_scanned else PYTHON_BYTES))
        try:
            head, is_bare = go_to_events(window)
        except NoEvents as error:
            raise Unreadable(path, error.at, window.damage or str(error)) from None
        events = _read_events(window, decoders, is_bare=is_bare)
        behind = {} if events.is_cut else read_tail(window, is_bare=is_bare)
    if not events.chunks.count and (events.broken_at or events.is_cut):
        raise Unreadable(path, min((*events.broken_at, events.ends_at)), window.damage or "no event of it can be read")
    metadata = read_metadata({**(head or {}), **(behind or {})})
    left_out = list(_left_out(events, head, behind, window.damage))
    if rank is None:
        rank = metadata.rank
    if rank is None:
        rank = rank_in_name(path.name)
    if rank is None:
        rank = 0
        left_out.append(RANK_UNKNOWN)
    about = replace(metadata.about, left_out=tuple(left_out), is_cut=events.is_cut)
    return build_timeline(events.chunks.joined(), rank=rank, about=about, base_ns=metadata.base_ns or 0)


def _read_events(window: TextWindow, decoders: Sequence[Decoder], *, is_bare: bool) -> _Events:
    """Read all events; the first is at the window's start. is_bare: the list may end without a bracket."""
    chunks = ChunkJoiner()
    broken_at: list[int] = []
    while True:
        window.fill()
        # Fast path: guess a comma between two events and decode everything before it. Otherwise split exactly.
        if (comma := likely_boundary(window)) is not None:
            chunk = b"".join((b"[", memoryview(window.text)[window.start : comma], b"]"))
            if (raw := _decoded(chunk, decoders)) is not None:
                chunks.add(raw)
                window.start = comma + 1
                continue
        exact = split(window, is_bare=is_bare)
        chunks.add(exact.raw)
        broken_at += exact.broken_at
        if exact.end is not None:
            is_cut = exact.end == "cut" or (exact.end == "unclosed" and not is_bare)
            return _Events(chunks=chunks, broken_at=broken_at, is_cut=is_cut, ends_at=exact.rest_at)


def _decoded(chunk: bytes, decoders: Sequence[Decoder]) -> RawEvents | None:
    """Decode a chunk, if necessary with null for inf and nan; return None if no decoder is sure of all its events."""
    for decode in decoders:
        if (raw := decode(chunk)) is not None:
            return raw
    mended = null_for_inf_and_nan(chunk)
    return None if mended == chunk else _decoded(mended, decoders)


def _left_out(
    events: _Events, head: TopLevelKeys | None, behind: TopLevelKeys | None, damage: str | None
) -> Iterator[str]:
    if head is None:
        yield "the text before its events: it is not JSON"
    if len(events.broken_at) == 1:
        yield f"1 event that is not JSON, or lacks what an event needs; it is at byte {events.broken_at[0]}"
    elif events.broken_at:
        count, first = len(events.broken_at), events.broken_at[0]
        yield f"{count} events that are not JSON, or lack what an event needs; the first is at byte {first}"
    if events.is_cut:
        yield f"everything after byte {events.ends_at}, where the file ends before its events do"
    elif behind is None:
        yield "the text after its events: it is not JSON"
    if damage is not None:
        yield f"what cannot be unpacked: {damage}"


NUMBERS = {name: number for number, name in enumerate(CATEGORIES)}
OF_HOST = (CATEGORIES.index("cpu_op"), CATEGORIES.index("user_annotation"))
KERNEL = CATEGORIES.index("kernel")
LONGEST_LIST = 30
"""Kineto writes no sizes for longer lists of tensors: TENSOR_LIST_DISPLAY_LENGTH_LIMIT of torch's profiler."""


class Event(Protocol):
    """The methods of a `torch.profiler` kineto event that we call."""

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
    """Return the Timeline of these events. It has no allocations, since the events lack their addresses."""
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
    # A list of tensors has the sizes of each; kineto omits long lists.
    written = [
        [] if isinstance(each, list) and len(each) > LONGEST_LIST and isinstance(each[0], list) else each
        for each in sizes
    ]
    return str(written) if written else ""


def _collective_args(rows: Sequence[tuple[int, Event]]) -> dict[int, CollectiveArgs]:
    """Return the args of collectives by row: an operator's own, which its kernels also get, as in kineto."""
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
