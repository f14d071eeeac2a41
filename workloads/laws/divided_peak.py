"""The peak of live tensors in one step of a rank that has a part of each matrix product.

Products by rows hand on a sum, and what is gathered is handed on whole, so that the moments are those of a whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workloads.laws.divided_activations import DividedMicrobatch
from workloads.laws.live_tensors import Backward, Prediction, Step, step_peak
from workloads.laws.terms import States


def divided_step_peak(microbatch: DividedMicrobatch, *, states: States, backwards: Sequence[Backward]) -> Prediction:
    """What lives at the peak of a step; see `workloads.laws.live_tensors.step_peak`.

    Right within 4 % where the MLP is at least twice as wide as the residual stream. Left out are buffers that
    collectives fill while what they were handed still lives, and a few numbers of each token.
    """
    whole = step_peak(microbatch, states=states, backwards=backwards)
    if not microbatch.is_loss_divided:
        return whole
    step = Step(microbatch=microbatch, held_bytes=len(backwards) * microbatch.tokens_bytes + microbatch.logits_bytes)
    # Of a loss that is divided torch makes the gradient in one: ones at targets, probabilities, and their product.
    loss = replace(
        whole,
        gradients_bytes=max(backward.before_bytes for backward in backwards),
        activations_bytes=step.stored_bytes + microbatch.head_bytes,
        temporary_bytes=3 * microbatch.probabilities_bytes,
    )
    return max(whole, loss, key=lambda prediction: prediction.total_bytes)
