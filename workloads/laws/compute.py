"""What a rank's arithmetic costs in one step: its FLOPs, and their time at a given rate.

The rate is what the device reaches on this work, not its peak; theory does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.parts.shape import Formula, Shape

FORWARD_SHARE = 1 / 3
"""Backward multiplies twice where forward does once: by the weights, and by the activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """Time of one step in which a rank computes, by the phase that it computes in."""

    forward_s: float
    backward_s: float
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        """The step's time if communication took none."""
        return self.forward_s + self.backward_s + self.optimizer_s


def flops_per_rank(
    shape: Shape, sharing_ranks: int, formula: Formula = "palm", *, recomputed_ratio: float = 0.0
) -> float:
    """Floating-point operations of one optimizer step on one rank.

    sharing_ranks: ranks that divide the arithmetic equally among them, whether by sequences, tensors or layers.
    recomputed_ratio: the part of forward that backward computes again; 1 where whole blocks are checkpointed.

    Raises:
        ValueError: there is no rank, or the ratio is not between 0 and 1.
    """
    if sharing_ranks < 1:
        raise ValueError(f"sharing_ranks is {sharing_ranks}; it must be 1 or more")
    if not 0 <= recomputed_ratio <= 1:
        raise ValueError(f"recomputed_ratio is {recomputed_ratio:g}; it must be between 0 and 1")
    return shape.flops_per_step(formula) / sharing_ranks * (1 + FORWARD_SHARE * recomputed_ratio)


def compute_time(
    shape: Shape,
    sharing_ranks: int,
    flops_per_second: float,
    formula: Formula = "palm",
    *,
    recomputed_ratio: float = 0.0,
) -> ComputeTime:
    """Time of forward and backward at a rate that the rank keeps up; the optimizer's is left out, as its FLOPs are.

    Raises:
        ValueError: as `flops_per_rank`, or the rate is not above 0.
    """
    if not flops_per_second > 0:
        raise ValueError(f"flops_per_second is {flops_per_second:g}; it must be above 0")
    whole = flops_per_rank(shape, sharing_ranks, formula, recomputed_ratio=recomputed_ratio)
    forward = flops_per_rank(shape, sharing_ranks, formula) * FORWARD_SHARE
    return ComputeTime(forward_s=forward / flops_per_second, backward_s=(whole - forward) / flops_per_second)
