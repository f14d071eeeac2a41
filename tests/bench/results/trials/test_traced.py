"""Traced steps of several ranks are joined as their definitions say."""

from __future__ import annotations

from bench.results.trials import Traced, join_traced
from collectors.metrics.rank import ATTENTION_PAIRS
from collectors.sample_log import Reading
from collectors.traces.breakdown import Breakdown


def _reading(*, overlap_ns: int, collectives_ns: dict[str, tuple[int, int]], pairs: int | None = None) -> Reading:
    """A step of 100 ns, 40 of them communication."""
    breakdown = Breakdown(
        step=0,
        step_ns=100,
        compute_ns=50,
        communication_ns=40,
        overlap_ns=overlap_ns,
        exposed_communication_ns=40 - overlap_ns,
        exposed_copy_ns=None,
        idle_ns=0,
        collectives_ns=collectives_ns,
    )
    counted = [] if pairs is None else [ATTENTION_PAIRS.at(pairs)]
    return Reading(trial=0, time_ns=0, mark="traced", step=0, samples=[*breakdown.samples(), *counted])


def _join(*ranks: list[Reading]) -> Traced:
    joined = join_traced(ranks)
    assert joined is not None
    return joined


def test_the_overlap_of_a_collective_is_the_median_over_ranks_and_steps() -> None:
    first, second, third = (_reading(overlap_ns=8, collectives_ns={"send": (20, hidden)}) for hidden in (2, 4, 8))
    assert _join([first, third], [second]).collective_overlap_ratios == {"send": 0.2}


def test_a_collective_counts_in_the_steps_that_hold_it() -> None:
    with_both = _reading(overlap_ns=8, collectives_ns={"send": (20, 5), "all_reduce": (20, 10)})
    with_one = _reading(overlap_ns=8, collectives_ns={"send": (40, 30)})
    assert _join([with_both], [with_one]).collective_overlap_ratios == {"send": 0.5, "all_reduce": 0.5}


def test_the_ranks_that_attend_least_and_most_are_told() -> None:
    ranks = [[_reading(overlap_ns=0, collectives_ns={}, pairs=pairs)] for pairs in (6, 10, 8)]
    assert _join(*ranks).attention_pairs == (6, 10)


def test_ranks_that_count_no_pairs_have_none() -> None:
    assert _join([_reading(overlap_ns=0, collectives_ns={})]).attention_pairs is None


def test_what_is_counted_is_known_where_no_step_was_traced_whole() -> None:
    counted = Reading(trial=0, time_ns=0, mark="traced", step=0, samples=[ATTENTION_PAIRS.at(6)])
    joined = _join([counted])
    assert joined.step_s is None
    assert joined.shares == {}
    assert joined.attention_pairs == (6, 6)
