"""What the lost share of a scaling efficiency is made of: the step divided into parts, beside those of the base.

The step of a run is divided into compute, exposed communication, waiting, bubble, data, copies and idle; what these
leave is unexplained, so that all add up to the step. With ideal scaling each part of the base's step would shrink as
the step does, by the factor f (1 in weak scaling, N0 / N in strong). A part of the loss is what the run has more than
that: part(N) - f part(N0). docs/guides/scaling.md has each part's formula, and what it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from bench.analysis.estimate import CONFIDENCE
from bench.analysis.step_parts import PARTS, MeasuredStep, PartName, StepAccount, step_account


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPart:
    """One part of the loss; below 0 where the run has less of it than ideal scaling of the base would give.

    lost_s: of each step. lost_ratio: of the run's step; so are the ends.
    low_s, high_s: 95 % interval by Welch's t on the trials' seconds, widened to hold `lost_s`; None without one.
    """

    name: PartName
    lost_s: float
    low_s: float | None
    high_s: float | None
    step_s: float

    @property
    def lost_ratio(self) -> float:
        """Share of the run's step."""
        return self.lost_s / self.step_s

    @property
    def low_ratio(self) -> float | None:
        """Lower end of the share; the step is taken as exact, as its noise is small beside the parts'."""
        return None if self.low_s is None else self.low_s / self.step_s

    @property
    def high_ratio(self) -> float | None:
        """Upper end of the share."""
        return None if self.high_s is None else self.high_s / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of one run against its base.

    step_s, ideal_s: the run's step, and what ideal scaling of the base's gives: ideal_s / step_s is the efficiency.
    parts: in the order of `PARTS`, those that both runs tell; they add up to step_s - ideal_s.
    absent: why a part is not among them; its time is within another part, which the reason names, or unexplained.
    notes: what the parts rest on: how much longer than measured ones traced steps were, and a straggler.
    """

    step_s: float
    ideal_s: float
    parts: tuple[LostPart, ...]
    absent: Mapping[PartName, str]
    notes: tuple[str, ...]

    @property
    def lost_ratio(self) -> float:
        """1 - efficiency."""
        return (self.step_s - self.ideal_s) / self.step_s


def loss_of(run: MeasuredStep, base: MeasuredStep) -> Loss | str:
    """Return what the run's step lost against ideal scaling of the base's, or why that is unknown."""
    account, base_account = step_account(run), step_account(base)
    for reason in (account, base_account):
        if isinstance(reason, str):
            return reason
    assert isinstance(account, StepAccount)
    assert isinstance(base_account, StepAccount)
    # The ideal step has the base's tokens per second and rank.
    work = run.case.shape.tokens / base.case.shape.tokens
    factor = work * base.case.ranks / run.case.ranks
    absent = {**account.absent, **base_account.absent}  # All points lack what the base lacks, for one reason.
    divided, base_divided = account.divide(absent), base_account.divide(absent)
    step_s, ideal_s = account.step_s, factor * base_account.step_s
    parts = []
    for name in PARTS:
        if name in divided:
            lost_s = account.of_step(divided[name]) - factor * base_account.of_step(base_divided[name])
            parts.append(_part(name, divided[name], [factor * value for value in base_divided[name]], lost_s, step_s))
    return Loss(
        step_s=step_s,
        ideal_s=ideal_s,
        parts=tuple(parts),
        absent={name: absent[name] for name in PARTS if name in absent},
        notes=(*_surplus(account, base_account), *account.notes),
    )


def _part(name: PartName, run_s: Sequence[float], base_s: Sequence[float], lost_s: float, step_s: float) -> LostPart:
    """Return the difference of two parts with its interval."""
    low = high = None
    if (interval := welch(run_s, base_s)) is not None:
        low, high = min(interval[0], lost_s), max(interval[1], lost_s)
    return LostPart(name=name, lost_s=lost_s, low_s=low, high_s=high, step_s=step_s)


def welch(run_values: Sequence[float], base_values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the difference of two means by Welch's t; None of a lone trial, or without noise."""
    if min(len(run_values), len(base_values)) < 2:
        return None
    squares = [variance(side) / len(side) for side in (run_values, base_values)]
    if sum(squares) <= 0:
        return None
    from scipy.special import stdtrit

    # Welch and Satterthwaite's degrees of freedom.
    freedom = sum(squares) ** 2 / sum(
        square**2 / (len(side) - 1) for square, side in zip(squares, (run_values, base_values), strict=True)
    )
    half_width = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(sum(squares))
    middle = fmean(run_values) - fmean(base_values)
    return middle - half_width, middle + half_width


_MUCH_LONGER = 0.1
"""Share by which traced steps may be longer than measured ones without a word."""


def _surplus(*accounts: StepAccount) -> list[str]:
    """Return, where traced steps are much longer than measured ones, by how much."""
    longest = max(
        (
            median(trace.step_s for trace in account.traces) / median(account.steps_s) - 1
            for account in accounts
            if account.traces
        ),
        default=0.0,
    )
    if longest < _MUCH_LONGER:
        return []
    return [
        f"traced steps are up to {longest:.0%} longer than measured ones: parts but data are of steps that the profiler"
        " disturbs"
    ]
