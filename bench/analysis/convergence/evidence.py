"""The evidence of a convergence check, and its findings: root causes, and causes that are ruled out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.rank.evidence import StepEvidence

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
"""averaging: the ranks used different gradients. gradients: all used the same gradient, but not the one rank's. update:
the same gradient changed the weights differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceEvidence:
    """All evidence of a check.

    reference: the steps of the one rank. ranks: the steps of each rank that is compared with it.
    backwards: the steps of one rank that reads each batch backwards, which shows the effect of rounding.
    data_ranks: by rank, the share of the batch that it trains on; None if it trains on none.
    learning_rates: of each step, by the rule. rule: the rule, in words.
    epoch_steps: steps of an epoch.
    clip: the norm that gradients are clipped to; 0 without clipping.
    """

    reference: Sequence[StepEvidence]
    backwards: Sequence[StepEvidence]
    ranks: Sequence[Sequence[StepEvidence]]
    data_ranks: Sequence[int | None]
    learning_rates: Sequence[float]
    rule: str
    epoch_steps: int
    clip: float

    @property
    def steps(self) -> int:
        """The number of steps that all of these have."""
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
    """Something that the evidence rules out as a cause, or that could not be examined, and why."""

    verdict: Literal["ruled out", "not examined"]
    text: str


CheckFinding: TypeAlias = RootCause | NoCause


def name_ranks(ranks: Sequence[int]) -> str:
    """List the ranks in words."""
    return join_names([f"rank {rank}" for rank in ranks])


def join_names(names: Sequence[str]) -> str:
    """Join names to a list in words; of more than four, list three and count the rest."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
