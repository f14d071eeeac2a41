"""Losses agree within a tolerance that rounding explains; where they part, the verdict says when and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bench.analysis.convergence.check import ConvergenceVerdict, evaluate, tolerance
from bench.analysis.convergence.evidence import FP32_LIMITS
from tests.bench.analysis.convergence.evidence import CLIP, RATE, Change, evidence_of, steps_of, unchanged


def losses(values: Mapping[int, float | None], **others: Any) -> Change:
    """In these steps, another loss than usual; the values are what is added, None for one that is not finite."""

    def change(step: int) -> dict[str, Any]:
        if step not in values:
            return dict(others)
        added = values[step]
        return {"loss": None, "is_finite": False} if added is None else {"loss": 4.0 - 0.1 * step + added, **others}

    return change


def verdict_of(*changes: Change, reference: Change = unchanged, rounding: Change = unchanged) -> ConvergenceVerdict:
    return evaluate(evidence_of(changes or (unchanged, unchanged), reference, backwards=steps_of(None, rounding)))


def test_equal_trainings_agree() -> None:
    verdict = verdict_of()
    assert (verdict.outcome, verdict.parted_at, verdict.causes, verdict.is_explained) == ("agrees", None, (), True)
    assert [pair.difference_ratio for pair in verdict.losses] == [0.0] * 6
    assert len(verdict.ruled_out) == 8


def test_the_verdict_says_in_how_many_steps_gradients_were_clipped() -> None:
    below = verdict_of(reference=lambda step: {"gradient_norm": 0.05} if step < 2 else {})
    assert (below.clip, below.clipped_steps) == (CLIP, 4)


def test_the_loss_of_all_ranks_is_the_mean_of_theirs() -> None:
    apart = verdict_of(losses({2: 0.5}), losses({2: -0.5}))
    assert apart.losses[2].all_ranks == pytest.approx(3.8)
    assert apart.outcome == "agrees"


def test_losses_that_part_without_a_cause_are_unknown_and_tell_what_was_ruled_out() -> None:
    verdict = verdict_of(losses({3: 1e-3}), losses({3: 1e-3}))
    assert (verdict.outcome, verdict.parted_at, verdict.causes, verdict.is_explained) == ("disagrees", 3, (), False)
    assert len(verdict.ruled_out) == 8


def test_the_tolerance_grows_with_the_steps_and_with_what_rounding_has_done_so_far() -> None:
    assert tolerance(0, 0.0) == FP32_LIMITS.loss
    assert tolerance(10, 0.0) > tolerance(9, 0.0)
    assert tolerance(0, 1e-4) == FP32_LIMITS.rounding_factor * 1e-4
    chaotic = verdict_of(losses({3: 1e-3}), losses({3: 1e-3}), rounding=losses({2: 1e-4}))
    assert chaotic.outcome == "agrees"
    assert chaotic.losses[5].tolerance_ratio == pytest.approx(FP32_LIMITS.rounding_factor * 1e-4 / 3.8)


def test_rounding_that_comes_later_excuses_nothing() -> None:
    assert verdict_of(losses({3: 1e-3}), losses({3: 1e-3}), rounding=losses({4: 1e-4})).parted_at == 3


def test_a_cause_that_is_not_later_explains_the_parting() -> None:
    change = losses({1: 1e-2}, learning_rates=[2 * RATE])
    verdict = verdict_of(change, change)
    assert [cause.cause for cause in verdict.causes] == ["learning_rate"]
    assert verdict.is_explained


def test_a_cause_that_comes_later_does_not() -> None:
    def late(step: int) -> dict[str, Any]:
        return {**losses({1: 1e-2})(step), **({"learning_rates": [2 * RATE]} if step > 1 else {})}

    verdict = verdict_of(late, late)
    assert (verdict.parted_at, [cause.step for cause in verdict.causes]) == (1, [2])
    assert not verdict.is_explained


def test_a_cause_is_a_disagreement_before_losses_part() -> None:
    def doubled(step: int) -> dict[str, Any]:
        return {"learning_rates": [2 * RATE]}

    verdict = verdict_of(doubled, doubled)
    assert (verdict.outcome, verdict.parted_at) == ("disagrees", None)


def test_causes_stand_in_the_order_of_their_evidence() -> None:
    def change(step: int) -> dict[str, Any]:
        return {"learning_rates": [2 * RATE] if step >= 4 else [RATE], "statistics": [9.0, 9.0, 9.0, 9.0]}

    assert [cause.cause for cause in verdict_of(unchanged, change).causes] == ["batch_statistics", "learning_rate"]


def test_a_loss_that_is_not_finite_on_one_side_parts() -> None:
    verdict = verdict_of(losses({4: None}), unchanged)
    assert verdict.parted_at == 4
    assert verdict.losses[4].difference_ratio is None


def test_losses_that_are_finite_on_neither_side_do_not_part() -> None:
    gone = losses({4: None})
    assert verdict_of(gone, gone, reference=gone, rounding=gone).outcome == "agrees"
