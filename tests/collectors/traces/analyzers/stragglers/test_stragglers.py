"""The rank that delays the others is named with its cause, and nobody is where lateness is luck or even."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.traces.analyzers.stragglers import stragglers
from collectors.traces.timeline import About, Call, Timeline
from tests.collectors.traces.made.generated import Cause, Told, generate
from tests.collectors.traces.made.made_collectives import ran, rank_of, ranks_of
from tests.support.timelines import Span, timeline_of

MILLISECOND_NS = 1_000_000


@pytest.mark.parametrize("told", ["sequence", "group", "name"])
@pytest.mark.parametrize("cause", ["compute", "an earlier collective", "copy", "data loading", "host"])
def test_a_rank_that_is_late_in_each_step_is_named_with_its_cause(cause: Cause, told: Told) -> None:
    found = stragglers(generate(7, steps=5, straggler=3, cause=cause, told=told).timelines)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (3, cause)
    assert found.why_none is None
    assert found.straggler.delay_ns >= 4 * 1.5 * MILLISECOND_NS


def test_the_events_that_made_it_late_are_named() -> None:
    found = stragglers(generate(7, straggler=3, cause="compute", told="name").timelines)
    assert found.straggler is not None
    assert found.straggler.names[0] == "slow_kernel"
    assert found.ranks[0].names == found.straggler.names


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_blamed_where_lateness_is_spread_evenly(seed: int) -> None:
    found = stragglers(generate(seed, ranks=4, steps=3 + seed % 6, told="name" if seed % 2 else "group").timelines)
    assert found.straggler is None
    assert found.why_none is not None


def _gloo_rank(rank: int, steps: int, slow: int | None, every: int = 1) -> Timeline:
    """A rank on a host: operators on its own thread, and an all-reduce on gloo's, which all leave together.

    slow: this rank computes 50 ms longer in every step, or in each second, of which an even rank begins with the first.
    """
    spans = []
    for step in range(steps):
        begins_ns = step * 100 * MILLISECOND_NS
        # Beside the delay each rank computes up to 3 ms longer, another in each step.
        lasts_ns = (20 + (rank + step) % 4) * MILLISECOND_NS + (
            50 * MILLISECOND_NS if rank == slow and (step + rank) % every == 0 else 0
        )
        ends_ns = begins_ns + lasts_ns
        spans += [
            Span(name="step", kind="step", start_ns=begins_ns, end_ns=begins_ns + 95 * MILLISECOND_NS, stream=1),
            Span(name="aten::mm", kind="compute", start_ns=begins_ns, end_ns=ends_ns, stream=1),
            Span(
                name="gloo:all_reduce",
                kind="communication",
                start_ns=ends_ns + 1_000,
                end_ns=begins_ns + 90 * MILLISECOND_NS + 10_000 * rank,
                stream=2,
            ),
        ]
    return timeline_of(spans, rank=rank, is_device=False)


def test_50_ms_of_computation_on_one_of_four_ranks_of_gloo_are_found() -> None:
    found = stragglers([_gloo_rank(rank, 6, slow=2) for rank in range(4)])
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause, found.straggler.names) == (2, "compute", ("aten::mm",))
    assert found.straggler.delay_ratio == 1
    assert found.ranks[0].last == found.ranks[0].collectives == 5


def test_a_rank_that_comes_and_leaves_late_on_the_others_host_is_late() -> None:
    def _rank(rank: int) -> Timeline:
        spans = []
        for step in range(12):
            begin_ns, come_ns = 1_000_000 * step, 1_000_000 * step + 100_000 + 30_000 * rank
            spans += [
                Span(name="step", kind="step", start_ns=begin_ns, end_ns=begin_ns + 1_000_000, stream=1),
                Span(name="gemm", kind="compute", start_ns=begin_ns, end_ns=come_ns, stream=7),
                ran(come_ns, come_ns + 300_000 + 10_000 * rank, sequence=step),
            ]
        return rank_of(rank, spans, About(host="nodeA"))

    found = stragglers([_rank(0), _rank(1)])
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.delay_ns) == (1, 11 * 30_000)
    assert (found.straggler.cause, found.straggler.names) == ("compute", ("gemm",))
    assert {activity: ns for activity, ns in found.ranks[0].doing_ns.items() if ns} == {"compute": 11 * 30_000}


def test_collectives_that_cannot_be_are_told() -> None:
    def _rank(rank: int) -> Timeline:
        spans = [
            ran(1_000 * step + (400 if rank and step == 9 else 0), 1_000 * step + 300 + 200 * rank, sequence=step)
            for step in range(41)
        ]
        return rank_of(rank, spans, About(host="nodeA"))

    notes = stragglers([_rank(0), _rank(1)]).notes
    assert sum(
        note.startswith("1 of 40 collectives seem to end on a rank before the last has arrived") for note in notes
    )
    assert not any("seem to end" in note for note in stragglers([_gloo_rank(rank, 6, slow=2) for rank in (0, 1)]).notes)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("widest_ahead_ns", [30_000, 60_000, 90_000, 120_000])
@pytest.mark.parametrize("seed", [1, 3, 7])
def test_machines_of_one_name_have_the_verdict_of_machines_without(ranks: int, widest_ahead_ns: int, seed: int) -> None:
    made = generate(seed, ranks=ranks, steps=10, widest_ahead_ns=widest_ahead_ns).timelines
    named = [replace(timeline, about=replace(timeline.about, host="localhost")) for timeline in made]
    assert stragglers(named).straggler == stragglers(made).straggler


def test_lateness_in_a_few_steps_may_be_luck() -> None:
    found = stragglers([_gloo_rank(rank, 3, slow=2) for rank in range(4)])
    assert found.straggler is None
    assert found.why_none is not None
    assert found.why_none.startswith(
        "rank 2 has 100 % of the lateness and is late in 2 of 2 steps, which may be chance (p <= 0.25; 0.02 is needed)"
    )
    assert found.why_none.endswith("; trace at least 2 more whole steps")
    assert found.ranks[0].rank == 2


def test_two_ranks_that_are_late_in_turns_share_the_lateness() -> None:
    steps = [_gloo_rank(rank, 80, slow=None) for rank in range(4)]
    assert stragglers(steps).straggler is None
    turns = [_gloo_rank(rank, 80, slow=rank if rank in (1, 2) else None, every=2) for rank in range(4)]
    found = stragglers(turns)
    assert found.straggler is None
    assert found.why_none is not None
    assert found.why_none.startswith("lateness is spread: rank ")


def test_lateness_that_costs_next_to_nothing_is_nobodys() -> None:
    late = [ran(1_000_000 * step + 40 * rank, 1_000_000 * step + 500) for step in range(30) for rank in (1,)]
    prompt = [ran(1_000_000 * step, 1_000_000 * step + 500) for step in range(30)]
    found = stragglers(ranks_of(prompt, late))
    assert found.straggler is None
    assert found.why_none == "the costliest rank, 1, delays the others for 0.00 % of the traced time"


def test_ranks_that_always_come_together_hold_nobody_up() -> None:
    spans = [ran(1_000 * step, 1_000 * step + 100) for step in range(9)]
    why = stragglers(ranks_of(spans, spans)).why_none
    assert why == "in every collective the last ranks arrive together, within the clocks' uncertainty"


def test_rooted_collectives_are_left_out_and_said() -> None:
    broadcast = Call(collective="broadcast", group="0")
    spans = [ran(1_000 * step, 1_000 * step + 100) for step in range(9)]
    found = stragglers(ranks_of([*spans, ran(20_000, 30_000, broadcast)], [*spans, ran(29_000, 30_000, broadcast)]))
    assert found.notes[1].startswith("activities are parts of the delay")
    assert found.notes[2] == "1 rooted collectives are left out: in them it is unknown who waits for whom"
    assert found.notes[3].startswith("no trace marks steps")
    assert [one.delay_ns for one in found.ranks] == [0, 0]


def test_one_rank_alone_has_no_straggler() -> None:
    found = stragglers([rank_of(0, [ran(0, 9), ran(10, 19)])])
    assert (found.ranks, found.straggler) == ((), None)
    assert found.why_none is not None
    assert found.why_none.startswith("no collective that all ranks wait in was found")


def test_the_tables_show_the_verdict_and_everybodys_lateness() -> None:
    verdict, lateness, *_ = stragglers([_gloo_rank(rank, 6, slow=2) for rank in range(4)]).tables()
    assert [row[:2] for row in verdict.rows] == [(2, "compute")]
    assert [(row[0], row[2]) for row in lateness.rows] == [(2, 5), (0, 0), (1, 0), (3, 0)]
    nobody, *_ = stragglers([_gloo_rank(rank, 3, slow=2) for rank in range(4)]).tables()
    assert nobody.rows == ()
    assert nobody.notes[0].startswith("likely rank 2, not certain: rank 2 has 100 %")


def test_what_is_said_of_the_clocks_is_said_of_the_verdict() -> None:
    ranks = [replace(_gloo_rank(rank, 6, slow=2), about=About(host="node")) for rank in range(4)]
    found = stragglers(ranks)
    assert set(found.notes) >= set(found.alignment.notes) > set()


def test_what_a_late_rank_costs_is_told_for_each_rank_that_waits() -> None:
    ranks = [replace(_gloo_rank(rank, 6, slow=2), about=About(host="node")) for rank in range(4)]
    *_, cost, _, _ = stragglers(ranks).tables()
    # In each of the five steps that count, 50 ms and what turns make of up to 3 ms.
    waits_ms = {rank: sum(50 + (2 + step) % 4 - (rank + step) % 4 for step in range(1, 6)) for rank in (0, 1, 3)}
    assert cost.name == "cost"
    assert cost.rows == tuple((2, rank, waited_ms * MILLISECOND_NS) for rank, waited_ms in waits_ms.items())
