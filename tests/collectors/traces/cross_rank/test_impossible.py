"""A rank that leaves before the last has come was not in that collective, or clocks are off."""

from __future__ import annotations

from collectors.traces.cross_rank.collective_times import CollectiveTime, count_impossible, is_impossible, time_of
from collectors.traces.cross_rank.matching import MatchedCollective
from collectors.traces.timeline import Call
from tests.collectors.traces.made.made_collectives import ALL_REDUCE, ran, ranks_of


def _time(apart_ns: int, call: Call = ALL_REDUCE) -> CollectiveTime:
    """A collective that rank 0 leaves so long before rank 1 comes, by one clock."""
    ranks = ranks_of([ran(0, 10_000, call)], [ran(10_000 + apart_ns, 20_000, call)])
    matched = MatchedCollective(collective=call.collective, group="0", sequence=None, ranks=(0, 1), rows=(0, 0))
    return time_of(matched, dict(enumerate(ranks)), {0: 0, 1: 0})


def test_only_what_ends_before_the_last_comes_is_impossible() -> None:
    times = [_time(apart_ns) for apart_ns in (-1, 0, 1)]
    assert [is_impossible(time, 0) for time in times] == [False, False, True]
    assert count_impossible(times, 0) == 1


def test_what_clocks_may_be_off_makes_nothing_impossible() -> None:
    assert [is_impossible(_time(5), residual_ns) for residual_ns in (4, 5)] == [True, False]


def test_a_rank_may_leave_a_rooted_collective() -> None:
    assert not is_impossible(_time(5, Call(collective="broadcast", group="0")), 0)
