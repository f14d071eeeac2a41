"""What became of one part of a step from one trace to another, and what that came from."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from collectors.traces.difference.step_division import Amount, Item

Seen = Literal["both", "new", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one item, per step. before, after: None where it did not occur; their own time is in whole nanoseconds.

    The change of its own time is that of how often it ran, of how long it then took, and of how much of that was hidden
    behind what has precedence: the three effects add up to it.
    """

    item: Item
    before: Amount | None
    after: Amount | None

    @property
    def seen(self) -> Seen:
        """On which side it occurred."""
        if self.before is None:
            return "new"
        return "gone" if self.after is None else "both"

    @property
    def before_ns(self) -> int:
        """Its own time before."""
        return 0 if self.before is None else int(self.before.exposed_ns)

    @property
    def after_ns(self) -> int:
        """Its own time after."""
        return 0 if self.after is None else int(self.after.exposed_ns)

    @property
    def change_ns(self) -> int:
        """By how much its own time grew."""
        return self.after_ns - self.before_ns

    @property
    def count_effect_ns(self) -> int:
        """What running more or less often costs, at the mean of both durations; all of what is new, or gone."""
        one, other = _work_and_count(self.before), _work_and_count(self.after)
        if not (one[1] and other[1]):
            return round(other[0] - one[0])
        return round((other[1] - one[1]) * (one[0] / one[1] + other[0] / other[1]) / 2)

    @property
    def duration_effect_ns(self) -> int:
        """What taking longer or shorter costs, at the mean of both counts."""
        return round(_work_and_count(self.after)[0] - _work_and_count(self.before)[0]) - self.count_effect_ns

    @property
    def hiding_effect_ns(self) -> int:
        """What being hidden less or more costs."""
        return self.change_ns - self.count_effect_ns - self.duration_effect_ns


def mean_ns(amount: Amount | None) -> int | None:
    """How long one span lasted in the mean; None where none started."""
    work_ns, count = _work_and_count(amount)
    return round(work_ns / count) if count else None


def _work_and_count(amount: Amount | None) -> tuple[Fraction, Fraction]:
    return (Fraction(0), Fraction(0)) if amount is None else (Fraction(amount.work_ns), Fraction(amount.count))
