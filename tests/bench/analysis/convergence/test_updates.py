"""Gradients, clipping and updates that part from the one rank's: the first step that shows it, and which they are."""

from __future__ import annotations

from typing import Any

import pytest

from bench.analysis.convergence.diagnosis import diagnose
from bench.analysis.convergence.evidence import FP32_LIMITS, ConvergenceEvidence, NoCause, RootCause
from tests.bench.analysis.convergence.evidence import CLIP, STEPS, Change, evidence_of, steps_of, unchanged

GRADIENT, UPDATE = (CLIP, 0.05), (0.02, 0.01)


def late(step: int = 3, **changes: Any) -> Change:
    """What is other than usual in one step only."""
    return lambda now: changes if now == step else {}


def gradient(norm: float, projection: float, step: int = 3, **others: Any) -> Change:
    return late(step, gradients={"head.weight": (norm, projection)}, **others)


def update(norm: float, projection: float, step: int = 3) -> Change:
    return late(step, updates={"head.weight": (norm, projection)})


def named(found: ConvergenceEvidence) -> list[tuple[str, int]]:
    return [(answer.cause, answer.step) for answer in diagnose(found) if isinstance(answer, RootCause)]


def text_of(found: ConvergenceEvidence) -> str:
    (cause,) = (answer for answer in diagnose(found) if isinstance(answer, RootCause))
    return cause.text


def not_examined(found: ConvergenceEvidence) -> list[str]:
    return [
        answer.text for answer in diagnose(found) if isinstance(answer, NoCause) and answer.verdict == "not examined"
    ]


def test_a_late_gradient_that_all_ranks_used_is_named_with_its_step() -> None:
    wrong = gradient(CLIP, -0.05)
    found = evidence_of((wrong, wrong))
    assert named(found) == [("gradients", 3)]
    assert text_of(found) == (
        "the gradient of head.weight on rank 0 is off by 1.0e+00 of its norm for the same sequences; 1 weights began"
        " equal and were updated equally before step 3"
    )


def test_weights_that_nobody_told_of_are_not_said_to_be_the_same() -> None:
    untold: Change = lambda step: {"updates": {}, **gradient(CLIP, -0.05)(step)}  # noqa: E731
    assert text_of(evidence_of((untold, untold))).endswith(
        "for the same sequences; equality of weights was not examined, because no rank reported any"
    )


def test_a_late_gradient_of_one_rank_was_not_averaged() -> None:
    found = evidence_of((unchanged, gradient(CLIP, -0.05)))
    assert named(found) == [("averaging", 3)]
    assert text_of(found).startswith(
        "rank 1 used a different gradient from rank 0; for head.weight, rank 1 differs from the one rank by 1.0e+00"
    )


def test_replicas_that_drift_apart_after_a_named_step_are_its_consequence() -> None:
    def drift(step: int) -> dict[str, Any]:
        return {**gradient(CLIP, -0.05)(step), **({"weights": f"own {step}"} if step > 3 else {})}

    found = evidence_of((unchanged, drift))
    assert named(found) == [("averaging", 3)]
    assert "replicas: they differ from step 4 on, which an earlier cause explains" in not_examined(found)


def test_an_update_that_differs_after_equal_gradients_is_named() -> None:
    found = evidence_of((unchanged, update(0.0, 0.0)))
    assert named(found) == [("update", 3)]
    assert text_of(found) == (
        "head.weight changed by 0 (norm) on rank 1, but one rank changed it by 0.02; gradient and learning rate were"
        " the same"
    )


def test_an_update_of_the_same_norm_in_another_direction_is_named() -> None:
    assert "changed by as much, but in another direction, on rank 1" in text_of(
        evidence_of((unchanged, update(0.02, -0.01)))
    )


def test_the_update_of_a_weight_that_a_rank_does_not_hold_is_not_missed() -> None:
    elsewhere: Change = lambda step: {"updates": {}}  # noqa: E731
    assert named(evidence_of((unchanged, elsewhere))) == []


def test_a_wrong_rate_explains_the_update_of_its_own_step() -> None:
    def slow(step: int) -> dict[str, Any]:
        return {"learning_rates": [5e-4], **update(0.01, 0.005)(step)} if step == 3 else {}

    found = evidence_of((slow, slow))
    assert named(found) == [("learning_rate", 3)]
    assert any(
        text.startswith("gradients and updates from step 4 on: an earlier difference") for text in not_examined(found)
    )


@pytest.mark.parametrize("norm", [1.5 * CLIP, 0.5 * CLIP], ids=["by a part's norm", "twice"])
def test_a_gradient_that_is_not_cut_to_the_clip_was_clipped_wrongly(norm: float) -> None:
    wrong = gradient(norm, 0.05)
    found = evidence_of((wrong, wrong))
    assert named(found) == [("clipping", 3)]
    assert text_of(found).startswith(f"the gradient that rank 0 used has norm {norm:.4g} after clipping to 0.1")


def test_a_gradient_below_the_clip_that_nobody_scaled_is_another_gradient() -> None:
    small = gradient(0.5 * CLIP, 0.05, gradient_norm=0.5 * CLIP)
    assert named(evidence_of((small, small))) == [("gradients", 3)]


def test_a_factor_that_clipping_hides_is_told_by_the_norm_before_it() -> None:
    doubled = late(gradient_norm=4.0)
    found = evidence_of((doubled, doubled))
    assert named(found) == [("gradients", 3)]
    assert text_of(found).startswith("before clipping, the norm of the gradient is 4 on rank 0 but 2 on one rank")


def test_clipping_that_changes_nothing_is_not_examined() -> None:
    small: Change = lambda step: {"gradient_norm": 0.05}  # noqa: E731
    found = evidence_of((small, small), small)
    assert "clipping: the norm was at most 0.05, never above the clip of 0.1" in not_examined(found)


def test_clipping_is_ruled_out_by_the_steps_in_which_it_did_something() -> None:
    texts = [
        answer.text
        for answer in diagnose(evidence_of())
        if isinstance(answer, NoCause) and answer.verdict == "ruled out"
    ]
    assert f"clipping: the ranks clipped by the norm of the whole gradient in {STEPS} steps" in texts


@pytest.mark.parametrize(("limit", "change"), [(FP32_LIMITS.gradient, gradient), (FP32_LIMITS.update, update)])
def test_what_reading_batches_backwards_does_is_allowed_so_many_times(limit: float, change: Any) -> None:
    norm, projection = GRADIENT if change is gradient else UPDATE
    apart = change(norm, projection + 20 * limit * norm)
    assert len(named(evidence_of((apart, apart)))) == 1
    rounding = change(norm, projection + 1.1 * 20 / FP32_LIMITS.rounding_factor * limit * norm, step=1)
    assert named(evidence_of((apart, apart), backwards=steps_of(None, rounding))) == []


def test_where_rounding_alone_parts_gradients_nothing_is_said_of_them() -> None:
    wrong = gradient(CLIP, -0.05)
    found = evidence_of((wrong, wrong), backwards=steps_of(None, gradient(CLIP, 0.06, step=2)))
    assert named(found) == []
    assert any(
        text.startswith("gradients and updates from step 2 on: at this learning rate,") for text in not_examined(found)
    )
