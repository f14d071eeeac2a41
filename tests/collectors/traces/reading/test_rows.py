"""Events of chunks become one whole in which each text is once."""

from __future__ import annotations

import numpy as np

from collectors.traces.reading.raw_events import ChunkJoiner, CollectiveArgs
from collectors.traces.timeline import Allocations
from tests.collectors.traces.made.kineto_text import differing_raw
from tests.collectors.traces.made.raw import Row, raw_of

FIRST = [Row("a", "kernel", 1, 2), Row("b", "cpu_op", 3, 5, thread=9, shape="[[1]]")]
SECOND = [
    Row("b", "kernel", 7, 9, correlation=4, said=CollectiveArgs(collective="allreduce")),
    Row("c", "cpu_op", 8, 9, shape="[[2]]"),
    Row("b", "cpu_op", 8, 9, shape="[[1]]"),
]


def _allocation(time_ns: int) -> Allocations:
    return Allocations(
        time_ns=np.array([time_ns]),
        address=np.array([2**63], dtype=np.uint64),
        change_bytes=np.array([-5]),
        allocated_bytes=np.array([6]),
        device=np.array([1], dtype=np.int16),
        thread=np.array([4]),
    )


def test_chunks_one_behind_the_other_are_as_one() -> None:
    rows = ChunkJoiner()
    rows.add(raw_of(FIRST, without_address=3, unknown=("x",), unread_phases=("B", "E")))
    rows.add(raw_of([]))
    rows.add(raw_of(SECOND, without_address=4, unknown=("y",), unread_phases=("B",)))
    assert rows.count == 5
    both = raw_of([*FIRST, *SECOND], without_address=7, unknown=("x", "y"), unread_phases=("B", "E"))
    assert differing_raw(rows.joined(), both) == []


def test_changes_of_memory_are_joined_and_counted() -> None:
    rows = ChunkJoiner()
    rows.add(raw_of([], allocations=_allocation(3)))
    rows.add(raw_of([]))
    rows.add(raw_of([], allocations=_allocation(2)))
    assert rows.count == 2
    assert rows.joined().allocations.time_ns.tolist() == [3, 2]


def test_columns_may_be_written_to() -> None:
    rows = ChunkJoiner()
    rows.add(raw_of(FIRST))
    whole = rows.joined()
    whole.start_ns[:] = 5
    assert whole.start_ns.tolist() == [5, 5]


def test_no_chunks_make_no_events() -> None:
    assert differing_raw(ChunkJoiner().joined(), raw_of([])) == []
