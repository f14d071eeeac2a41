"""Which commit changed a figure: a walk over the commits between a good and a bad one, by runs of pairs of trees.

Knows neither git nor engines: whoever walks hands in how a pair is measured.
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
"""Trees are equal if they differ by less, where no change is suspected whose half would be the limit."""


class Unmeasurable(Exception):
    """The pair cannot be measured: the tree of its second commit cannot be run. The message says why."""


Measure = Callable[[str, str], MeasuredChange]
"""Measures two commits in pairs; returns the change from the first to the second. Raises Unmeasurable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisected:
    """How a walk ended.

    commit: the one that made the change, with what it changed; else the change is of all commits, from the good to the
    bad one. between: the commits among which it must be, oldest first. measured: how many pairs of commits were.
    skipped: commits that cannot be run, with the reason.
    """

    outcome: BisectOutcome
    reason: str
    commit: str | None = None
    change: MeasuredChange | None = None
    between: tuple[str, ...] = ()
    measured: int = 0
    skipped: tuple[tuple[str, str], ...] = ()


def most_measured(count: int) -> int:
    """Return how many pairs of commits are measured at most, if so many commits may have made the change."""
    return math.ceil(math.log2(max(count, 1))) + 2


def bisect(commits: Sequence[str], measure: Measure, *, direction: int, suspected: float | None = None) -> Bisected:
    """Return the commit that changed the figure, or that none did, or that the pairs do not tell.

    commits: the good one, then all that may have made the change, oldest first. direction: +1 if the figure rose.
    suspected: the change that nights showed, of the logarithm.

    Each step asks on which side of half of the whole change a commit lies, by the middle of its pairs: an interval that
    must lie on one side would stop most walks. A step that was wrong ends at an innocent commit, which the last pair
    (that commit and the one before it) does not show to have changed anything.
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
    """What was measured so far."""

    commits: Sequence[str]
    measure: Measure
    count: int = 0
    skipped: dict[int, str] | None = None

    def between(self, good: int, bad: int) -> int | None:
        """Return the commit nearest to the middle of both that can be run; None if there is none."""
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
    """Return middle, low and high of a change, of the logarithm, so that the suspected direction is up."""
    ends = sorted(direction * math.log(end) for end in (change.low, change.high))
    return direction * math.log(change.ratio), ends[0], ends[1]
