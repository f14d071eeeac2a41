"""All evidence of a convergence check in one hand, and the answers that can be read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.evidence import Seen

Cause = Literal[
    "learning_rate", "sampler_epoch", "data_shares", "batch_statistics", "initial_weights", "replicas", "gradients"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """All evidence of a check.

    reference: the steps of the one rank. ranks: those of each rank that is compared with it.
    places: which share of the batch each rank trains on, None where it trains on none.
    rates: the learning rate of each step by the rule. rule: the rule, in words.
    epoch_steps: after which the data begin anew.
    """

    reference: Sequence[Seen]
    ranks: Sequence[Sequence[Seen]]
    places: Sequence[int | None]
    rates: Sequence[float]
    rule: str
    epoch_steps: int

    @property
    def steps(self) -> int:
        """How many steps all have."""
        return min(len(self.reference), *(len(rank) for rank in self.ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A cause that the evidence names. step: the first that shows it. next_move: what mends it."""

    cause: Cause
    step: int
    text: str
    next_move: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A cause that the evidence speaks against, in words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotExamined:
    """A cause of which there is no evidence, and why."""

    text: str


Answer = Culprit | RuledOut | NotExamined


def name_ranks(ranks: Sequence[int]) -> str:
    """The ranks in words."""
    return join_names([f"rank {rank}" for rank in ranks])


def join_names(names: Sequence[str]) -> str:
    """Names as a list, shortened where they are many."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
