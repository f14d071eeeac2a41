"""Why a rank came late is what it did more of than the last but one, since both left a collective."""

from __future__ import annotations

import pytest

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.analyzers.lateness import Activities, LateArrival, late_arrivals
from collectors.traces.timeline import SpanKind, Timeline
from tests.collectors.traces.made.generated import generate
from tests.collectors.traces.made.made_collectives import ran, ranks_of
from tests.support.timelines import Span


def _late(timelines: list[Timeline], least_ns: int = 0) -> list[LateArrival]:
    found = collectives(timelines)
    activities = {timeline.rank: Activities(timeline) for timeline in timelines}
    return list(late_arrivals(found.times, activities, found.alignment.offset_ns, least_ns))


def _did(kind: SpanKind, start_ns: int, end_ns: int, name: str = "work") -> Span:
    return Span(name=name, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=7)


def _two_steps(*of_ranks: tuple[list[Span], int]) -> list[Timeline]:
    """Ranks that left a collective at 100 and came to the next at the moments given, which all left at 2000."""
    return ranks_of(*([ran(0, 100), *did, ran(came, 2_000), ran(3_000, 3_100)] for did, came in of_ranks))


def test_a_rank_that_computes_as_long_but_loads_longer_is_late_for_its_data() -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    prompt = ([_did("host", 100, 150, loader), _did("compute", 150, 950)], 950)
    late = ([_did("host", 100, 650, loader), _did("compute", 650, 1_450)], 1_450)
    (found,) = _late(_two_steps(prompt, late, prompt))
    assert (found.rank, found.arrival_ns, found.delay_ns) == (1, 1_450, 500)
    assert found.waits_ns == {0: 500, 2: 500}
    assert {activity: ns for activity, ns in found.doing_ns.items() if ns} == {"data loading": 500}
    assert found.window_ns == (100, 1_450)


def _next_ns(left_ns: tuple[int, int], begin_ns: tuple[int, int], came_ns: tuple[int, int]) -> dict[str, int]:
    """The parts by which rank 1 came late. Both leave a collective, idle, then compute until they come to the next."""
    spans = [
        [ran(0, left), _did("compute", begin, came), ran(came, 2_000), ran(3_000, 3_100)]
        for left, begin, came in zip(left_ns, begin_ns, came_ns, strict=True)
    ]
    (found,) = _late(ranks_of(*spans))
    assert sum(found.doing_ns.values()) == found.delay_ns
    return {activity: ns for activity, ns in found.doing_ns.items() if ns}


@pytest.mark.parametrize("tail_ns", [0, 29, 31, 300, -40])
def test_to_leave_a_collective_later_and_idle_the_less_for_it_makes_nobody_late(tail_ns: int) -> None:
    assert _next_ns((100, 100 + tail_ns), (500, 500), (900, 930)) == {"compute": 30}


def test_to_leave_a_collective_later_and_begin_later_for_it_is_an_earlier_collective() -> None:
    assert _next_ns((100, 140), (200, 240), (900, 940)) == {"an earlier collective": 40}
    assert _next_ns((100, 140), (120, 145), (900, 955)) == {"compute": 30, "an earlier collective": 25}


def test_what_runs_beside_the_end_of_a_collective_that_one_leaves_later_counts() -> None:
    assert _next_ns((100, 400), (100, 100), (900, 930)) == {"compute": 30}


def test_what_it_did_less_of_is_below_nothing() -> None:
    prompt = ([_did("copy", 100, 300), _did("compute", 300, 900)], 900)
    late = ([_did("compute", 100, 1_400)], 1_400)
    (found,) = _late(_two_steps(prompt, late))
    assert found.doing_ns == {
        "compute": 700,
        "an earlier collective": 0,
        "copy": -200,
        "data loading": 0,
        "host": 0,
    }


def test_ranks_are_compared_from_the_last_collective_that_they_left_together() -> None:
    spans = [[ran(0, 100), _did("copy", 100, 150), ran(150, 200)], [ran(0, 100), ran(100, 200)]]
    spans[0] += [ran(250, 2_000)]
    spans[1] += [_did("compute", 200, 900), ran(900, 2_000)]
    assert _late(ranks_of(*spans))[-1].window_ns == (200, 900)


def test_where_no_collective_was_left_together_the_delay_is_what_it_did_in_it() -> None:
    spans = [[ran(0, 100)], [ran(0, 100)]]
    spans[0] += [ran(150, 2_000), ran(3_000, 3_100)]
    spans[1] += [_did("copy", 160, 900), _did("compute", 900, 990), ran(1_000, 2_000), ran(3_000, 3_100)]
    timelines = ranks_of(*spans)
    activities = {timeline.rank: Activities(timeline) for timeline in timelines}
    times = collectives(timelines).times[1:]
    (found,) = late_arrivals(times, activities, {0: 0, 1: 0}, 0)
    assert {activity: ns for activity, ns in found.doing_ns.items() if ns} == {"copy": 740, "compute": 90, "host": 20}


def test_ranks_that_come_together_are_not_late() -> None:
    timelines = _two_steps(([], 900), ([], 905))
    assert _late(timelines, least_ns=5) == []
    assert [one.rank for one in _late(timelines, least_ns=4)] == [1]


def test_the_first_collective_only_tells_where_the_next_begins() -> None:
    assert _late(ranks_of([ran(0, 100), ran(200, 300)], [ran(50, 100), ran(200, 300)])) == []


@pytest.mark.parametrize("seed", range(3))
def test_the_parts_add_up_to_the_delay_and_delays_are_those_that_were_made(seed: int) -> None:
    truth = generate(seed, straggler=5, cause="copy")
    found = _late(list(truth.on_one_clock()))
    true_ns = []
    for one in truth.collectives:
        before_ns, last_ns = sorted(one.arrival_ns.values())[-2:]
        is_first = one.group != "0" and one.sequence == 0
        true_ns.append(0 if is_first else last_ns - before_ns)
    assert sorted(one.delay_ns for one in found) == sorted(delay_ns for delay_ns in true_ns if delay_ns)
    assert all(sum(one.doing_ns.values()) == one.delay_ns for one in found)
