"""What a collective lasted on a rank is its wait for the last one and the transfer."""

from __future__ import annotations

import pytest

from collectors.traces.cross_rank.collective_times import CollectiveTime, time_of
from collectors.traces.cross_rank.matching import MatchedCollective
from collectors.traces.timeline import Call
from tests.collectors.traces.made.made_collectives import ran, ranks_of


def _time(
    *lasted_ns: tuple[int, int], call: Call, missing: tuple[int, ...] = (), group_size: int | None = None
) -> CollectiveTime:
    """One collective on as many ranks."""
    timelines = ranks_of(*([ran(start, end, call)] for start, end in lasted_ns))
    ranks = tuple(range(len(lasted_ns)))
    matched = MatchedCollective(
        collective=call.collective,
        group="0",
        sequence=None,
        ranks=ranks,
        rows=(0,) * len(ranks),
        missing=missing,
        group_size=group_size,
    )
    return time_of(matched, dict(enumerate(timelines)), dict.fromkeys(ranks, 0))


def _call(collective: str = "all_reduce", given: int | None = 1_000, filled: int | None = 1_000) -> Call:
    return Call(collective=collective, dtype="float32", given_elements=given, filled_elements=filled)


def test_each_rank_waits_from_its_own_arrival_to_the_last_and_transfers_to_its_own_end() -> None:
    time = _time((10, 100), (40, 102), (70, 101), call=_call())
    assert time.wait_ns == (60, 30, 0)
    assert time.transfer_ns == (30, 32, 31)
    assert time.last_rank == 2


def test_offsets_move_each_rank_before_they_are_compared() -> None:
    timelines = dict(enumerate(ranks_of([ran(10, 100)], [ran(5_040, 5_102)])))
    matched = MatchedCollective(collective="all_reduce", group="0", sequence=None, ranks=(0, 1), rows=(0, 0))
    time = time_of(matched, timelines, {0: 0, 1: -5_000})
    assert (time.arrival_ns, time.end_ns, time.wait_ns) == ((10, 40), (100, 102), (30, 0))


def test_a_rank_that_left_before_the_last_came_only_waited() -> None:
    time = _time((10, 30), (50, 90), call=_call("broadcast"))
    assert time.wait_ns == (20, 0)
    assert time.transfer_ns == (0, 40)


@pytest.mark.parametrize(
    ("collective", "given", "filled", "size_bytes", "factor"),
    [
        ("all_reduce", 1_000, 1_000, 4_000, 2 * 3 / 4),
        ("all_gather", 250, 1_000, 4_000, 3 / 4),
        ("reduce_scatter", 1_000, 250, 4_000, 3 / 4),
        ("all_to_all", 1_000, 1_000, 4_000, 3 / 4),
    ],
)
def test_bandwidth_is_of_the_larger_buffer_from_the_last_arrival_to_the_last_end(
    collective: str, given: int, filled: int, size_bytes: int, factor: float
) -> None:
    time = _time((0, 1_000), (100, 1_100), (200, 1_000), (600, 1_050), call=_call(collective, given, filled))
    assert time.size_bytes == size_bytes
    assert time.algorithm_bandwidth == size_bytes / 500e-9
    assert time.bus_bandwidth == pytest.approx(size_bytes / 500e-9 * factor, rel=1e-15)


@pytest.mark.parametrize(
    "call", [Call(collective="all_reduce", given_elements=5), Call(collective="all_reduce", dtype="float32")]
)
def test_there_is_no_bandwidth_without_a_size(call: Call) -> None:
    time = _time((0, 9), (0, 9), call=call)
    assert (time.size_bytes, time.algorithm_bandwidth, time.bus_bandwidth) == (None, None, None)


def test_there_is_no_bandwidth_where_the_last_rank_may_be_missing_or_nobody_transferred() -> None:
    assert _time((0, 9), (0, 9), call=_call(), missing=(2,)).bus_bandwidth is None
    assert _time((0, 9), (0, 9), call=_call(), group_size=2).bus_bandwidth is not None
    assert _time((0, 9), (0, 9), call=_call(), group_size=3).bus_bandwidth is None
    assert _time((0, 9), (10, 10), call=_call()).bus_bandwidth is None


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_there_is_no_bandwidth_of_what_may_move_before_the_last_has_come(collective: str) -> None:
    # Rank 1 has its data long before rank 2 comes.
    time = _time((0, 990), (10, 995), (980, 1_000), call=_call(collective))
    assert (time.size_bytes, time.algorithm_bandwidth, time.bus_bandwidth) == (4_000, None, None)


def test_a_barrier_has_no_bus_bandwidth() -> None:
    time = _time((0, 9), (0, 9), call=_call("barrier", 1, 1))
    assert time.algorithm_bandwidth is not None
    assert time.bus_bandwidth is None
