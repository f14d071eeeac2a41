"""The last of the decoders: a chunk of a trace by msgspec's typed structs, of whatever kineto wrote since 2021."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.allocations import NO_ALLOCATIONS, Allocations
from collectors.traces.intervals import Times
from collectors.traces.numbered import numbered, numbered_but
from collectors.traces.reading.exact_times import Inexact, of_digits, of_numbers
from collectors.traces.reading.raw_events import CATEGORIES, KNOWN_PHASES, NOT_KEPT, OF_2021, RawEvents, Said
from collectors.traces.reading.trace_events import MEMORY, NOTHING, UNDECODABLE, Event, Plain, Written
from collectors.traces.spans import ABSENT

NUMBERS = {name: number for number, name in enumerate(CATEGORIES)}
NUMBERS |= {name: NUMBERS[now] for name, now in OF_2021.items()}
KNOWN = NOT_KEPT | NUMBERS.keys()
PHASES = frozenset(KNOWN_PHASES)

PROBLEMS = (*UNDECODABLE, ValueError, TypeError, OverflowError)
"""What reading a chunk raises where an event in it is none, or misses what it needs."""

_plain = msgspec.json.Decoder(list[Plain])
_written = msgspec.json.Decoder(list[Written])


def decode(chunk: bytes | bytearray | memoryview) -> RawEvents | None:
    """The events of the chunk; None where one of them is none, or misses what it needs."""
    try:
        try:
            return columns(_plain.decode(chunk))
        except Inexact:
            return columns(_written.decode(chunk))
    except PROBLEMS:
        return None


def columns(events: Sequence[Event]) -> RawEvents:
    """The events as columns.

    Raises:
        Inexact: times need their digits.
        ValueError, TypeError, OverflowError: an event misses what it needs, or a number of it is beyond 64 bits.
    """
    complete = [event for event in events if event.ph == "X"]
    categories = [event.cat for event in complete]
    if not NUMBERS.keys() >= (distinct := set(categories)):
        complete = [event for event in complete if event.cat in NUMBERS]
        categories = [event.cat for event in complete]
    names, name = numbered([event.name for event in complete])
    if None in names:
        raise ValueError("an event has no name")
    shapes, shape = _shapes(complete)
    changes = [event for event in events if event.ph == "i" and event.name == MEMORY]
    placed = [event for event in changes if event.args is not None and event.args.address is not None]
    start_ns, duration_ns = _times(complete)
    return RawEvents(
        names=tuple(str(each) for each in names),
        name=name,
        category=np.fromiter(map(NUMBERS.__getitem__, categories), dtype=np.int8, count=len(categories)),
        start_ns=start_ns,
        duration_ns=duration_ns,
        process=_places([event.pid for event in complete]),
        thread=_places([event.tid for event in complete]),
        correlation=_column([ABSENT if event.args is None else event.args.correlation for event in complete]),
        shapes=shapes,
        shape=shape,
        said=tuple(_said(complete)),
        allocations=_allocations(placed),
        without_address=len(changes) - len(placed),
        unknown=frozenset(distinct - KNOWN),
        unread_phases=frozenset({event.ph for event in events} - PHASES),
    )


def _shapes(complete: Sequence[Event]) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    raws = [NOTHING if event.args is None else event.args.shape for event in complete]
    # Joining and splitting is twice as fast as a call of bytes() for each; JSON has no zero byte.
    texts = b"\0".join(raws).split(b"\0") if raws else []
    if not any(texts):
        texts = [b"" if event.args is None else bytes(event.args.shape_of_2021) for event in complete]
    distinct, number = numbered_but(b"", texts)
    return tuple(str(text, "utf-8") for text in distinct), number


def _times(events: Sequence[Event]) -> tuple[Times, Times]:
    """Starts and durations in nanoseconds."""
    if written := [event for event in events if isinstance(event, Written)]:
        return of_digits([bytes(event.ts) for event in written], [bytes(event.dur) for event in written])
    return of_numbers([event.ts for event in events]), of_numbers([event.dur for event in events])


def _places(values: Sequence[int | str | None]) -> NDArray[np.int64]:
    """Processes and threads; in 2021 they were texts such as "stream 7"."""
    if any(isinstance(value, str) for value in set(values)):
        return _column([value if isinstance(value, int) else int(str(value).rpartition(" ")[2]) for value in values])
    return _column(values)


def _said(events: Sequence[Event]) -> Iterator[tuple[int, Said]]:
    args = [event.args for event in events]
    for row, each in enumerate(args):
        if each is not None and each.collective is not None:
            yield row, Said(**{field: getattr(each, field) for field in Said.__struct_fields__})


def _allocations(events: Sequence[Event]) -> Allocations:
    """Of changes that have an address."""
    if not events:
        return NO_ALLOCATIONS
    args = [event.args for event in events if event.args is not None]
    addresses = [each.address for each in args if each.address is not None]
    changes = [each.change_bytes for each in args if each.change_bytes is not None]
    if len(changes) < len(events):
        raise ValueError("a change of memory has no size")
    if written := [event for event in events if isinstance(event, Written)]:
        time_ns, _ = of_digits([bytes(event.ts) for event in written], [])
    else:
        time_ns = of_numbers([event.ts for event in events])
    return Allocations(
        time_ns=time_ns,
        address=np.array([address % 2**64 for address in addresses], dtype=np.uint64),
        change_bytes=_column(changes),
        allocated_bytes=_column([each.allocated_bytes for each in args]),
        device=np.array([each.device if each.device_type else ABSENT for each in args], dtype=np.int16),
        thread=_column([event.tid if isinstance(event.tid, int) else ABSENT for event in events]),
    )


def _column(values: Sequence[object]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64, count=len(values))
