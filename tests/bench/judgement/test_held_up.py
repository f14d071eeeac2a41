"""What trials say of a straggler reaches the run as a share and a sentence."""

from __future__ import annotations

import pytest

from bench.joined_ranks import join_ranks
from bench.judgement.held_up import held_up
from collectors.traces.ranks.traced_lateness import TracedLateness
from tests.bench.windows import STEP_NS, made_windows

LATE_NS = 100_000


def _lateness(steps: int, late_steps: int) -> TracedLateness:
    return join_ranks(made_windows([(2, LATE_NS if step < late_steps else 0) for step in range(steps)])).lateness


def test_the_share_is_of_each_trials_traced_steps() -> None:
    straggler, said = held_up([_lateness(9, 6), _lateness(9, 7)], trace_steps=10)
    assert straggler is not None
    assert straggler.trials == pytest.approx((6 * LATE_NS / (10 * STEP_NS), 7 * LATE_NS / (10 * STEP_NS)))
    assert said == "rank 2 holds the others up by compute (gemm): it has 100% of the lateness in traced steps"


def test_too_few_steps_name_the_option_with_more_than_were_traced() -> None:
    # Four ranks need four steps, of which each of two trials has one.
    _, said = held_up([_lateness(1, 1), _lateness(1, 1)], trace_steps=2)
    assert said.endswith("; --trace-steps 3 or more tells")


def test_where_enough_was_traced_no_more_is_asked_for() -> None:
    straggler, said = held_up([_lateness(12, 2)], trace_steps=13)
    assert straggler is None
    assert "is late in 2 of 12 steps" in said
    assert "--trace-steps" not in said
