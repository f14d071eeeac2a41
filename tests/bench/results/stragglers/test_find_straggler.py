"""What trials say of a straggler reaches the run as a share and a sentence."""

from __future__ import annotations

import pytest

from bench.results.stragglers import find_straggler, join_ranks
from collectors.traces.analyzers.lateness import TracedLateness
from tests.bench.made.windows import STEP_NS, made_windows

LATE_NS = 100_000


def _lateness(steps: int, late_steps: int) -> TracedLateness:
    return join_ranks(made_windows([(2, LATE_NS if step < late_steps else 0) for step in range(steps)])).lateness


def test_the_share_is_of_each_trials_traced_steps() -> None:
    straggler, said = find_straggler([_lateness(9, late) for late in (6, 7, 6, 7)])
    assert straggler is not None
    shares = [late * LATE_NS / (10 * STEP_NS) for late in (6, 7, 6, 7)]
    assert straggler.trials == pytest.approx(shares)
    assert said == "rank 2 holds the others up by compute (gemm): it has 100 % of the lateness in traced steps"


def test_a_rank_that_is_late_in_most_of_too_few_trials_is_likely_and_the_option_says_how_many_settle_it() -> None:
    # One of four ranks must be late alone in four trials, however many steps each has.
    straggler, said = find_straggler([_lateness(9, 9)] * 3)
    assert straggler is None
    assert said == (
        "straggler: likely rank 2, not certain: rank 2 has 100 % of the lateness and is late in 3 of 3 trials,"
        " which may"
        " be chance (p <= 0.062; 0.02 is needed); use --trials 4 or more"
    )


def test_a_rank_that_is_late_in_one_trial_is_not_likely() -> None:
    _, said = find_straggler([_lateness(9, 9), _lateness(9, 0), _lateness(9, 0)])
    assert said.startswith("no straggler: rank 2 has 100 % of the lateness and is late in 1 of 3 trials")
    assert said.endswith("; use --trials 4 or more")


def test_where_there_were_trials_enough_no_more_is_asked_for() -> None:
    straggler, said = find_straggler([_lateness(12, 12), *[_lateness(12, 0)] * 5])
    assert straggler is None
    assert "is late in 1 of 6 trials" in said
    assert "--trials" not in said
