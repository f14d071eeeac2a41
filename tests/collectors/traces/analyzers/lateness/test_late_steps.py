"""Late arrivals count by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.traces.analyzers.lateness import ACTIVITIES, LateArrival, delays_by_step, own_delays_ns
from collectors.traces.cross_rank.matching import MatchedCollective


def _collective(arrival_ns: int) -> MatchedCollective:
    return MatchedCollective(collective="all_reduce", group="0", sequence=arrival_ns, ranks=(3, 5), rows=(0, 0))


def _late(rank: int, arrival_ns: int, delay_ns: int) -> LateArrival:
    return LateArrival(
        matched=_collective(arrival_ns),
        rank=rank,
        arrival_ns=arrival_ns,
        delay_ns=delay_ns,
        waits_ns={},
        doing_ns=dict.fromkeys(ACTIVITIES, 0),
        window_ns=(0, arrival_ns),
    )


def _delays_ns(late: Sequence[LateArrival], ranks: Sequence[int], steps: Mapping[int, int]) -> list[list[int]]:
    """steps: by the moment of the collective."""
    delays_ns = delays_by_step(late, ranks, {_collective(moment): step for moment, step in steps.items()})
    return [[int(delay_ns) for delay_ns in row] for row in delays_ns]


def test_delays_of_one_step_are_added_by_rank() -> None:
    late = [_late(5, 110, 1), _late(5, 150, 2), _late(3, 160, 4), _late(5, 310, 8)]
    assert _delays_ns(late, [3, 5], {110: 1, 150: 1, 160: 1, 310: 3}) == [[4, 3], [0, 8]]


def test_without_steps_a_rank_is_late_once_until_another_is() -> None:
    late = [_late(3, 10, 1), _late(3, 20, 2), _late(5, 30, 4), _late(3, 40, 8)]
    assert _delays_ns(late, [3, 5], {}) == [[3, 0], [0, 4], [8, 0]]


def test_a_step_that_nobody_is_late_in_is_a_row_of_nothing() -> None:
    steps = {110: 1, 150: 1, 210: 2, 310: 3}
    assert _delays_ns([_late(5, 310, 8)], [3, 5], steps) == [[0, 0], [0, 0], [0, 8]]


def test_where_nobody_is_late_and_no_step_is_marked_there_is_no_row() -> None:
    assert delays_by_step([], [3, 5], {}).shape == (0, 2)


def test_of_delays_that_overlap_the_longest_counts() -> None:
    late = [_late(5, 100, 60), _late(5, 120, 70), _late(5, 130, 20), _late(3, 130, 30), _late(5, 200, 70)]
    assert own_delays_ns(late) == [60, 10, 0, 30, 70]  # The last one begins when the one before has ended.
    assert _delays_ns(late, [3, 5], {100: 1, 120: 1, 130: 1, 200: 2}) == [[30, 70], [0, 70]]
