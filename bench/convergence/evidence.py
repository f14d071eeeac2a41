"""All evidence of a convergence check in one hand, and the answers that can be read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.rank.evidence import Seen

Cause = Literal[
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
"""averaging: ranks used gradients that differ. gradients: all used the same, which is not the one rank's. update: the
same gradient changed weights otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Witnessed:
    """All evidence of a check.

    reference: the steps of the one rank. backwards: those of the one rank once more, each batch read backwards, which
    tell what rounding does. ranks: those of each rank that is compared with it.
    places: which share of the batch each rank trains on, None where it trains on none.
    rates: the learning rate of each step by the rule. rule: the rule, in words.
    epoch_steps: after which the data begin anew.
    clip: the largest norm of the gradient; 0 where nothing is clipped.
    """

    reference: Sequence[Seen]
    backwards: Sequence[Seen]
    ranks: Sequence[Sequence[Seen]]
    places: Sequence[int | None]
    rates: Sequence[float]
    rule: str
    epoch_steps: int
    clip: float

    @property
    def steps(self) -> int:
        """How many steps all have."""
        return min(len(self.reference), len(self.backwards), *(len(rank) for rank in self.ranks))


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
