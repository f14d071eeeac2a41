"""Each moment belongs to the span over it that started last, as a search through all spans finds it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.intervals import Times, length_ns, union
from collectors.traces.operators import NOBODY, Foreground

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12)


def columns(spans: list[tuple[int, int]]) -> tuple[Times, Times]:
    """Starts and ends of spans that are given as start and length, in order."""
    rows = sorted(spans, key=lambda span: (span[0], -span[1]))
    start_ns = np.array([start for start, _ in rows], dtype=np.int64)
    return start_ns, start_ns + np.array([length for _, length in rows], dtype=np.int64)


def owner_by_search(start_ns: Times, end_ns: Times, moment_ns: int) -> int:
    """The last of all spans that cover a moment."""
    covering = np.flatnonzero((start_ns <= moment_ns) & (moment_ns < end_ns))
    return int(covering[-1]) if covering.size else NOBODY


@given(SPANS)
def test_the_owner_of_a_moment_is_the_last_of_all_spans_over_it(spans: list[tuple[int, int]]) -> None:
    start_ns, end_ns = columns(spans)
    moments_ns = np.arange(-1, 44)
    expected = [owner_by_search(start_ns, end_ns, moment_ns) for moment_ns in moments_ns.tolist()]
    assert Foreground(start_ns, end_ns).at(moments_ns).tolist() == expected


@given(SPANS)
def test_the_pieces_cover_what_the_spans_cover_and_each_moment_once(spans: list[tuple[int, int]]) -> None:
    start_ns, end_ns = columns(spans)
    pieces = Foreground(start_ns, end_ns).pieces()
    covered = union(start_ns, end_ns)
    assert union(pieces.start_ns, pieces.end_ns).tolist() == covered.tolist()
    assert int((pieces.end_ns - pieces.start_ns).sum()) == length_ns(covered)


def test_an_operator_inside_of_another_takes_its_time() -> None:
    pieces = Foreground(np.array([0, 3, 10]), np.array([9, 5, 12])).pieces()
    assert list(zip(pieces.start_ns.tolist(), pieces.end_ns.tolist(), pieces.owner.tolist(), strict=True)) == [
        (0, 3, 0),
        (3, 5, 1),
        (5, 9, 0),
        (10, 12, 2),
    ]
