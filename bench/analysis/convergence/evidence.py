"""The evidence of a convergence check, and its findings: root causes, and causes that are ruled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.rank.evidence import StepEvidence
from workloads.spec import LIMITS

CauseName = Literal[
    "learning_rate",
    "sampler_epoch",
    "data_shares",
    "batch_statistics",
    "initial_weights",
    "replicas",
    "clipping",
    "averaging",
    "gradients",
    "update",
]
"""averaging: the ranks used different gradients. gradients: all used the same gradient, but a different one from the
single rank's. update: the same gradient changed the weights differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """The differences from a single rank that a check allows for one arithmetic precision.

    loss, loss_per_step: of a loss, as a share of it: in the first step, and more for each step. gradient, update: the
    smallest allowed difference, as a share of the norm.
    rounding_factor: the allowed difference as a multiple of the difference between one rank and itself with each batch
        read backwards, if that is larger.
    """

    loss: float
    loss_per_step: float
    gradient: float
    update: float
    rounding_factor: float


FP32_LIMITS = CheckLimits(loss=LIMITS["fp32"], loss_per_step=1e-7, gradient=1e-4, update=1e-3, rounding_factor=30.0)
"""Measured: at rates up to 3e-3, losses of ddp on 2 and 4 ranks differ from one rank by at most 3e-7 in 50 steps.
Another order of additions causes less than 1e-5 in gradients and 2e-4 in updates in the first steps. At a rate of 3e-2,
losses differ by 3e-2 after 50 steps; there, losses of several ranks differed by at most 6 times as much as with batches
read backwards, and gradients and updates by at most 15 times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceEvidence:
    """All evidence of a check.

    reference: the steps of the single rank. ranks: the steps of each rank that is compared with it.
    backwards: the steps of one rank that reads each batch backwards, which shows the effect of rounding.
    data_ranks: by rank, the share of the batch that it trains on; None if it trains on none.
    learning_rates: of each step, by the rule. rule: in words.
    epoch_steps: steps of an epoch.
    clip: the norm that gradients are clipped to; 0 without clipping.
    limits: the differences that the case's arithmetic may cause.
    """

    reference: Sequence[StepEvidence]
    backwards: Sequence[StepEvidence]
    ranks: Sequence[Sequence[StepEvidence]]
    data_ranks: Sequence[int | None]
    learning_rates: Sequence[float]
    rule: str
    epoch_steps: int
    clip: float
    limits: CheckLimits = FP32_LIMITS

    @property
    def steps(self) -> int:
        """The number of steps that all of them have."""
        return min(len(self.reference), len(self.backwards), *(len(rank) for rank in self.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """A cause that the evidence shows. step: the first step that shows it. next_move: what to do about it."""

    cause: CauseName
    step: int
    text: str
    next_move: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCause:
    """A cause that the evidence rules out, or that could not be examined, and why."""

    verdict: Literal["ruled out", "not examined"]
    text: str


CheckFinding: TypeAlias = RootCause | NoCause


def name_ranks(ranks: Sequence[int]) -> str:
    return join_names([f"rank {rank}" for rank in ranks])


def join_names(names: Sequence[str]) -> str:
    """Join names into a list in words; if there are more than four, list three and count the rest."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
