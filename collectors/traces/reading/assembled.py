"""From the events of a whole trace to its Timeline: told apart, put in order, and their texts renumbered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from collectors.traces.allocations import Allocations
from collectors.traces.calls import Call
from collectors.traces.intervals import Times
from collectors.traces.reading.collectives_said import collectives
from collectors.traces.reading.kinds import devices, kinds
from collectors.traces.reading.raw_events import ON_DEVICE, RawEvents
from collectors.traces.reading.soundness import remarks, sound
from collectors.traces.spans import ABSENT, STREAM_BITS, About, Timeline

Order = NDArray[np.intp]

T = TypeVar("T", bound=np.generic)


def timeline(raw: RawEvents, *, rank: int, about: About, base_ns: int = 0) -> Timeline:
    """The Timeline of these events, whose times count from base_ns. What is wrong with them is added to left_out.

    The events are given up: their columns are put in order where they are, so that they are never there twice.
    """
    raw, left_out = sound(raw, base_ns)
    kind, is_device = kinds(raw)
    spoken = list(collectives(raw, kind, about.groups))
    stream = _streams(raw)
    left_out += remarks(raw, kind, stream, is_device)
    end_ns = np.add(raw.start_ns, raw.duration_ns, out=raw.duration_ns)
    order = _order(raw, kind, stream, end_ns)
    call = np.full(kind.size, ABSENT, dtype=np.int32)
    sequence = raw.process  # Streams tell the device by now, so that this column is free for another.
    sequence[:] = ABSENT
    numbers: dict[Call, int] = {}
    for each in spoken:
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
        allocations=_by_time(raw.allocations),
        about=replace(about, left_out=(*about.left_out, *left_out)),
    )


def _streams(raw: RawEvents) -> NDArray[np.int64]:
    """Threads and streams; where a trace has several devices, a stream's number has the device's above its 32 bits.

    A wait of no stream, or of a device that does no work, keeps the number that it has.
    """
    found = devices(raw)
    if found.size <= 1:
        return raw.thread
    is_told = np.isin(raw.category, ON_DEVICE) & np.isin(raw.process, found) & (raw.thread >= 0)
    return np.where(is_told, raw.thread + (raw.process << STREAM_BITS), raw.thread)


def _order(raw: RawEvents, kind: NDArray[np.int8], stream: NDArray[np.int64], end_ns: Times) -> Order:
    """By start, then the longer first; beyond that by what an event is, since files and profilers order otherwise."""
    order: Order = np.argsort(raw.start_ns, kind="stable")
    starts = raw.start_ns[order]
    is_tied = np.zeros(order.size, dtype=np.bool_)
    is_tied[1:] = starts[1:] == starts[:-1]
    is_tied[:-1] |= is_tied[1:]
    if is_tied.any():
        places, rows = np.flatnonzero(is_tied), order[is_tied]
        alphabetical = np.empty(len(raw.names) + 1, dtype=np.int64)
        alphabetical[sorted(range(len(raw.names)), key=raw.names.__getitem__)] = np.arange(len(raw.names))
        keys = (alphabetical[raw.name], raw.correlation, stream, kind, -end_ns, raw.start_ns)
        order[places] = rows[np.lexsort([key[rows] for key in keys])]
    return order


def _ordered(column: NDArray[T], order: Order) -> NDArray[T]:
    column[:] = column[order]
    return column


def _by_appearance(things: Sequence[Any], number: NDArray[np.int32]) -> tuple[tuple[Any, ...], NDArray[np.int32]]:
    """Those that are there, in the order in which they first are, and the numbers that they then have."""
    first = np.full(len(things) + 1, number.size, dtype=np.int64)
    # Written from the last on, so that what stays is the first.
    first[number[::-1]] = np.arange(number.size - 1, -1, -1)
    first[ABSENT] = number.size
    kept = [each for each in np.argsort(first, kind="stable").tolist() if first[each] < number.size]
    moved = np.full(len(things) + 1, ABSENT, dtype=np.int32)
    moved[kept] = np.arange(len(kept), dtype=np.int32)
    return tuple(things[each] for each in kept), moved[number]


def _by_time(allocations: Allocations) -> Allocations:
    order = np.argsort(allocations.time_ns, kind="stable")
    return Allocations(
        time_ns=allocations.time_ns[order],
        address=allocations.address[order],
        change_bytes=allocations.change_bytes[order],
        allocated_bytes=allocations.allocated_bytes[order],
        device=allocations.device[order],
        thread=allocations.thread[order],
    )
