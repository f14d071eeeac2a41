"""The mean step of a run's ranks, divided among what ran in it, in whole nanoseconds that add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor

from collectors.traces.difference.step_division import NOTHING, Amount, Item, divided
from collectors.traces.spans import Timeline
from collectors.traces.steps.stretches import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """Each rank counts alike, and each step of a rank.

    ranks: of which it is the mean. steps: how many of all ranks were taken.
    amounts: of each item; its own time is in whole nanoseconds, and all of them add up to step_ns.
    """

    ranks: tuple[int, ...]
    steps: int
    step_ns: int
    amounts: Mapping[Item, Amount]


def mean_step(ranks: Sequence[tuple[Timeline, Sequence[Stretch]]]) -> MeanStep:
    """The mean over each timeline's stretches, of which it has at least one."""
    amounts: dict[Item, Amount] = {}
    for timeline, steps in ranks:
        share = Fraction(1, len(ranks) * len(steps))
        for item, amount in divided(timeline, steps).items():
            amounts[item] = amounts.get(item, NOTHING) + amount * share
    whole = _in_whole_ns(amounts)
    return MeanStep(
        ranks=tuple(timeline.rank for timeline, _ in ranks),
        steps=sum(len(steps) for _, steps in ranks),
        step_ns=sum(int(amount.exposed_ns) for amount in whole.values()),
        amounts=whole,
    )


def _in_whole_ns(amounts: Mapping[Item, Amount]) -> dict[Item, Amount]:
    """The same with own times that are whole, each off by less than 1 ns, and that add up to the rounded total.

    What is rounded is the sum up to each item, in their order, so that what stands together adds up best.
    """
    whole = {}
    exact_ns, given_ns = Fraction(0), 0
    for item in sorted(amounts):
        exact_ns += amounts[item].exposed_ns
        own_ns = floor(exact_ns + Fraction(1, 2)) - given_ns
        given_ns += own_ns
        whole[item] = replace(amounts[item], exposed_ns=own_ns)
    return whole
