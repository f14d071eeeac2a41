"""Events of a trace, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.reading.raw_events import CATEGORIES, CollectiveArgs, RawEvents
from collectors.traces.timeline import ABSENT, NO_ALLOCATIONS, Allocations, numbered, numbered_except


@dataclass(frozen=True)
class Row:
    """One event."""

    name: str
    category: str
    start_ns: int = 10
    end_ns: int = 20
    process: int = 0
    thread: int = 1
    correlation: int = ABSENT
    shape: str = ""
    said: CollectiveArgs | None = None


def raw_of(
    rows: Sequence[Row],
    *,
    allocations: Allocations = NO_ALLOCATIONS,
    without_address: int = 0,
    unknown: Sequence[str] = (),
    unread_phases: Sequence[str] = (),
) -> RawEvents:
    """The events as a decoder gives them."""
    names, name = numbered([row.name for row in rows])
    shapes, shape = numbered_except("", [row.shape for row in rows])
    return RawEvents(
        names=names,
        name=name,
        category=np.array([CATEGORIES.index(row.category) for row in rows], dtype=np.int8),
        start_ns=np.array([row.start_ns for row in rows], dtype=np.int64),
        duration_ns=np.array([row.end_ns - row.start_ns for row in rows], dtype=np.int64),
        process=np.array([row.process for row in rows], dtype=np.int64),
        thread=np.array([row.thread for row in rows], dtype=np.int64),
        correlation=np.array([row.correlation for row in rows], dtype=np.int64),
        shapes=shapes,
        shape=shape,
        collective_args=tuple((number, row.said) for number, row in enumerate(rows) if row.said is not None),
        allocations=allocations,
        without_address=without_address,
        unknown=frozenset(unknown),
        unread_phases=frozenset(unread_phases),
    )
