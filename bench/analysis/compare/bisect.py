"""Finds the commit that changed a figure: a walk over the commits between a good and a bad one, measured in pairs.

Knows neither git nor engines: the caller passes in a function that measures a pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.errors import plural
from bench.gate.cause.attribution import MeasuredChange

BisectOutcome = Literal["commit", "environment", "unsure"]
EQUAL_RATIO = 0.02
"""Trees that differ by less are equal. If a change is suspected, half of it is the limit instead."""


class Unmeasurable(Exception):
    """The pair cannot be measured: the tree of its second commit cannot be run. The message says why."""


Measure = Callable[[str, str], MeasuredChange]
"""Measures two commits in pairs and returns the change from the first to the second. Raises Unmeasurable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """The result of a walk.

    commit: the culprit; None if there is none. change: that of the culprit, or else from the good to the bad commit.
    between: the commits that may be the culprit, oldest first. measured: number of measured pairs of commits. skipped:
    commits that cannot be run, with the reason.
    """

    outcome: BisectOutcome
    reason: str
    commit: str | None = None
    change: MeasuredChange | None = None
    between: tuple[str, ...] = ()
    measured: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def most_measured(count: int) -> int:
    """Return the most pairs of commits that are measured if this many commits may have made the change."""
    return math.ceil(math.log2(max(count, 1))) + 2


def bisect(commits: Sequence[str], measure: Measure, *, direction: int, suspected: float | None = None) -> Bisected:
    """Find the commit that changed the figure, if one did and the pairs show it.

    commits: the good one, then all that may have made the change, oldest first. direction: +1 if the figure rose, else
    -1. suspected: the change of the logarithm that nights showed.

    Each step decides, by the estimate from a commit's pairs, on which side of half of the whole change it lies: to
    require that its interval lies on one side would stop most walks. After a wrong step, the walk ends at an innocent
    commit; then the last pair (that commit and the one before it) does not show the change.
    """
    walk = _Walk(commits, measure)
    whole = walk.change(0, len(commits) - 1)
    if isinstance(whole, str):
        return walk.ended("unsure", f"the last commit cannot be measured: {whole}")
    middle, low, high = _logs(whole, direction)
    if low <= 0:
        limit = math.log1p(EQUAL_RATIO) if suspected is None else abs(suspected) / 2
        if max(abs(low), abs(high)) <= limit:
            return walk.ended("environment", "the good and the bad commit are equal tonight", whole)
        return walk.ended("unsure", "the pairs do not show that the good and the bad commit differ", whole)
    good, bad = 0, len(commits) - 1
    most = most_measured(len(commits) - 1)
    while (at := walk.between(good, bad)) is not None and walk.count < most - 1:
        change = walk.change(0, at)
        if isinstance(change, str):
            continue
        if _logs(change, direction)[0] > middle / 2:
            bad = at
        else:
            good = at
    between = tuple(commits[good + 1 : bad + 1])
    if len(between) > 1:
        return walk.ended("unsure", f"{plural(len(between) - 1, 'commit')} before it cannot be run", whole, between)
    last = whole if (good, bad) == (0, len(commits) - 1) else walk.change(good, bad)
    if isinstance(last, str):
        return walk.ended("unsure", f"the last pair cannot be measured: {last}", whole, between)
    of_last, low, _ = _logs(last, direction)
    if low > 0 and of_last > middle / 2:
        return walk.ended("commit", "by pairs of this commit and the one before it", last, between)
    return walk.ended("unsure", "the walk's last pair does not show the change", whole, between)


@dataclass(slots=True)
class _Walk:
    """The commits, and the measurements so far."""

    commits: Sequence[str]
    measure: Measure
    count: int = 0
    skipped: dict[int, str] | None = None

    def between(self, good: int, bad: int) -> int | None:
        """Return the runnable commit nearest to the middle; None if there is none."""
        inside = [at for at in range(good + 1, bad) if at not in (self.skipped or {})]
        return min(inside, key=lambda at: abs(2 * at - good - bad), default=None)

    def change(self, good: int, at: int) -> MeasuredChange | str:
        """Return the change between two commits, or why it cannot be measured."""
        try:
            change = self.measure(self.commits[good], self.commits[at])
        except Unmeasurable as error:
            self.skipped = {**(self.skipped or {}), at: str(error)}
            return str(error)
        self.count += 1
        return change

    def ended(
        self,
        outcome: BisectOutcome,
        reason: str,
        change: MeasuredChange | None = None,
        between: tuple[str, ...] = (),
    ) -> Bisected:
        return Bisected(
            outcome=outcome,
            reason=reason,
            commit=between[0] if outcome == "commit" else None,
            change=change,
            between=between,
            measured=self.count,
            skipped=tuple((self.commits[at], why) for at, why in (self.skipped or {}).items()),
        )


def _logs(change: MeasuredChange, direction: int) -> tuple[float, float, float]:
    """Return middle, low and high of a change as logarithms, with the suspected direction as positive."""
    ends = sorted(direction * math.log(end) for end in (change.low, change.high))
    return direction * math.log(change.ratio), ends[0], ends[1]
