"""Decodes a chunk of a trace by the scanner in C, where that was built. Knows no rule of what an event means."""

from __future__ import annotations

import msgspec
import numpy as np

from collectors.traces.allocations import Allocations
from collectors.traces.reading.raw_events import CATEGORIES, KNOWN_PHASES, NOT_KEPT, OF_2021, RawEvents, said_of

try:
    from collectors.traces.reading import _scanner
except ImportError:  # There was no compiler when this was built, or the source tree was not built at all.
    _scanner = None  # type: ignore[assignment]

IS_BUILT = _scanner is not None

# As the scanner's structures lie in memory.
ROW = np.dtype(
    [
        ("start_ns", np.int64),
        ("duration_ns", np.int64),
        ("process", np.int64),
        ("thread", np.int64),
        ("correlation", np.int64),
        ("name", np.int32),
        ("shape", np.int32),
        ("category", np.int8),
    ],
    align=True,
)
SAID = np.dtype([("row", np.int64), ("begin", np.int64), ("end", np.int64)], align=True)
ALLOCATION = np.dtype(
    [
        ("time_ns", np.int64),
        ("address", np.uint64),
        ("change_bytes", np.int64),
        ("allocated_bytes", np.int64),
        ("thread", np.int64),
        ("device", np.int16),
    ],
    align=True,
)
_NOT_KEPT = tuple(sorted(NOT_KEPT))


def decode(chunk: bytes | bytearray | memoryview) -> RawEvents | None:
    """The rows of the chunk; None where the scanner is not sure of them, or is not there."""
    if _scanner is None:
        return None
    found = _scanner.scan(chunk, CATEGORIES, _NOT_KEPT, KNOWN_PHASES)
    if found is None:
        return None
    rows, names, shapes, said, allocations, without_address, unknown, unread_phases = found
    if not OF_2021.keys().isdisjoint(unknown):
        return None
    row = np.frombuffer(rows, ROW)
    text = memoryview(chunk)
    try:
        says = tuple((number, said_of(text[begin:end])) for number, begin, end in np.frombuffer(said, SAID).tolist())
    except msgspec.DecodeError:
        return None
    allocation = np.frombuffer(allocations, ALLOCATION)
    return RawEvents(
        names=names,
        name=row["name"],
        category=row["category"],
        start_ns=row["start_ns"],
        duration_ns=row["duration_ns"],
        process=row["process"],
        thread=row["thread"],
        correlation=row["correlation"],
        shapes=shapes,
        shape=row["shape"],
        said=says,
        allocations=Allocations(
            time_ns=allocation["time_ns"],
            address=allocation["address"],
            change_bytes=allocation["change_bytes"],
            allocated_bytes=allocation["allocated_bytes"],
            device=allocation["device"],
            thread=allocation["thread"],
        ),
        without_address=without_address,
        unknown=frozenset(unknown),
        unread_phases=frozenset(unread_phases),
    )
