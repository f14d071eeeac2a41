"""Whether ranks train as one rank does on the same batches: losses step by step, and what explains where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from bench.evidence import Seen
from bench.judgement.culprits import examine
from bench.judgement.updates import clipped_steps
from bench.judgement.witnessed import Culprit, NotExamined, RuledOut, Witnessed
from workloads.cards.card import LIMITS

LEAST_TOLERANCE = LIMITS["fp32"]
TOLERANCE_PER_STEP = 1e-7
"""Share of the loss that may lie between two fp32 trainings of equal arithmetic in the first step, and what each step
adds. Measured: at rates up to 3e-3 ddp on 2 and 4 ranks is at most 3e-7 apart from one rank in 50 steps."""

ROUNDING_FACTOR = 30.0
"""How many times as far apart they may be as one rank is from itself with each batch read backwards. Measured: at a
rate of 3e-2, where losses are 3e-2 apart after 50 steps, ranks were at most 6 times as far apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """One step's mean loss in nats, on one rank and over all ranks; None where it is not finite.

    tolerance_ratio: how far they may be apart, as a share of the one rank's.
    """

    step: int
    one_rank: float | None
    all_ranks: float | None
    tolerance_ratio: float

    @property
    def difference_ratio(self) -> float | None:
        """How far they are apart, as a share of the one rank's; None where one of them is not finite."""
        return _apart(self.one_rank, self.all_ranks)

    @property
    def agree(self) -> bool:
        """They are within the tolerance; or neither is finite, which two equal trainings have in common."""
        ratio = self.difference_ratio
        return self.one_rank == self.all_ranks if ratio is None else ratio <= self.tolerance_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a check found.

    outcome: agrees only where no loss parts and no cause is named.
    parted_at: the first step whose losses are further apart than the tolerance; None where none are.
    causes: in the order of the evidence. is_explained: one of them is not later than the parting.
    clip: the largest norm of a gradient, 0 where none is clipped. clipped_steps: in which the one rank's was above it.
    """

    outcome: Literal["agrees", "disagrees"]
    parted_at: int | None
    losses: tuple[Losses, ...]
    causes: tuple[Culprit, ...]
    is_explained: bool
    ruled_out: tuple[str, ...]
    not_examined: tuple[str, ...]
    clip: float
    clipped_steps: int


def judge(witnessed: Witnessed) -> Verdict:
    """Compare the losses, and name what differs."""
    losses = tuple(_losses(witnessed))
    parted_at = next((pair.step for pair in losses if not pair.agree), None)
    answers = examine(witnessed)
    causes = sorted((answer for answer in answers if isinstance(answer, Culprit)), key=lambda culprit: culprit.step)
    return Verdict(
        outcome="agrees" if parted_at is None and not causes else "disagrees",
        parted_at=parted_at,
        losses=losses,
        causes=tuple(causes),
        is_explained=parted_at is None or any(culprit.step <= parted_at for culprit in causes),
        ruled_out=tuple(answer.text for answer in answers if isinstance(answer, RuledOut)),
        not_examined=tuple(answer.text for answer in answers if isinstance(answer, NotExamined)),
        clip=witnessed.clip,
        clipped_steps=clipped_steps(witnessed),
    )


def tolerance(step: int, rounding_ratio: float) -> float:
    """How far apart the losses of a step, counted from 0, may be as a share of the loss.

    rounding_ratio: the most that another order of additions has done to this very training up to the step. A training
    at a high rate is chaotic: what is a last bit at first becomes any size.
    """
    return max(LEAST_TOLERANCE + TOLERANCE_PER_STEP * step, ROUNDING_FACTOR * rounding_ratio)


def _losses(witnessed: Witnessed) -> Iterator[Losses]:
    rounding_ratio = 0.0
    for step in range(witnessed.steps):
        one_rank = _mean([witnessed.reference[step]])
        rounding_ratio = max(rounding_ratio, _apart(one_rank, _mean([witnessed.backwards[step]])) or 0.0)
        yield Losses(
            step=step,
            one_rank=one_rank,
            all_ranks=_mean([rank[step] for rank in witnessed.ranks]),
            tolerance_ratio=tolerance(step, rounding_ratio),
        )


def _mean(seen: Sequence[Seen]) -> float | None:
    """Over the ranks that compute a loss; each has as many sequences. None where one of theirs is not finite."""
    known = [one.loss for one in seen if one.loss is not None]
    return fmean(known) if known and all(one.is_finite for one in seen) else None


def _apart(one_rank: float | None, other: float | None) -> float | None:
    return None if one_rank is None or other is None else abs(other - one_rank) / abs(one_rank)
