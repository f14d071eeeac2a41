"""The rule by which one rank is said to hold the others up, in one trial or in several.

A trial alone may have too few traced steps to tell a straggler from bad luck, so the steps of all trials are one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.activities import ACTIVITIES, Activity
from collectors.traces.ranks.chance import chance_of_worst, least_steps
from collectors.traces.ranks.traced_lateness import TracedLateness

MOST_CHANCE = 0.02
"""Lateness that luck explains with more than this probability is nobody's."""

LEAST_COST = 0.01
"""Of the traced time; a rank that costs less holds nobody up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The verdict: this rank holds the others up, and what it does meanwhile.

    delay_ns: see `Lateness`. cost_ratio: of the traced time; cost_ratios: by trial. delay_ratio: of all ranks' delays.
    chance: at most so probable is as much if all ranks are late alike.
    names: the events that ran longest in the cause.
    """

    rank: int
    cause: Activity
    delay_ns: int
    cost_ratio: float
    cost_ratios: tuple[float, ...]
    delay_ratio: float
    chance: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nobody:
    """The verdict: lateness is spread evenly, may be luck or costs next to nothing.

    more_steps: so many would have to be traced besides for lateness as it is to be told from luck; None where that is
    not what the verdict lacks.
    """

    why: str
    more_steps: int | None = None


def verdict(trials: Sequence[TracedLateness]) -> Straggler | Nobody:
    """Who holds the others up in these trials of the same ranks, or why nobody does."""
    if not trials or not all(trial.ranks for trial in trials):
        return Nobody(
            why="no collective that all ranks wait in was found on two ranks or more, apart from each rank's first"
        )
    if len({tuple(one.rank for one in trial.ranks) for trial in trials}) > 1:
        return Nobody(why="trials differ in the ranks that were found in collectives")
    delays_ns = np.concatenate([trial.delays_ns for trial in trials])
    if not delays_ns.any():
        return Nobody(why="in every collective the last ranks come together, as far as the clocks can tell")
    by_rank_ns = delays_ns.sum(axis=0)
    place, ranks = int(by_rank_ns.argmax()), int(by_rank_ns.size)
    of_rank = [trial.ranks[place] for trial in trials]
    rank, delay_ns = of_rank[0].rank, int(by_rank_ns[place])
    cost_ratio = _share(delay_ns, sum(trial.traced_ns for trial in trials))
    if cost_ratio < LEAST_COST:
        return Nobody(why=f"rank {rank}, the costliest, holds the others up for {cost_ratio:.2%} of the traced time")
    delay_ratio = delay_ns / int(by_rank_ns.sum())
    # Half-way from an even share to all of it.
    least_ratio = (1 + 1 / ranks) / 2
    if delay_ratio < least_ratio:
        return Nobody(
            why=f"lateness is spread: rank {rank}, the costliest, has {delay_ratio:.0%} of it, and one that stands out"
            f" among {ranks} has {least_ratio:.0%} or more"
        )
    chance = chance_of_worst(delays_ns)
    if chance > MOST_CHANCE:
        has_steps = all(trial.has_steps for trial in trials)
        return _may_be_luck(
            f"rank {rank} has {delay_ratio:.0%} of the lateness", delays_ns, place, chance, has_steps=has_steps
        )
    cause = max(ACTIVITIES, key=lambda activity: sum(one.doing_ns[activity] for one in of_rank))
    return Straggler(
        rank=rank,
        cause=cause,
        delay_ns=delay_ns,
        cost_ratio=cost_ratio,
        cost_ratios=tuple(_share(one.delay_ns, trial.traced_ns) for one, trial in zip(of_rank, trials, strict=True)),
        delay_ratio=delay_ratio,
        chance=chance,
        names=next((one.names for one in of_rank if one.cause == cause), ()),
    )


def _may_be_luck(has: str, delays_ns: NDArray[np.int64], place: int, chance: float, *, has_steps: bool) -> Nobody:
    luck = f"may be luck (chance up to {chance:.0%})"
    steps, needed = delays_ns.shape[0], least_steps(delays_ns.shape[1], MOST_CHANCE)
    if not has_steps:
        return Nobody(why=f"{has}, but no trace marks the steps by which to tell whether that {luck}")
    if steps < needed:
        return Nobody(why=f"{has}, but in so few steps that it {luck}", more_steps=needed - steps)
    late = int((delays_ns[:, place] > 0).sum())
    return Nobody(why=f"{has}, but is late in {late} of {steps} steps and unevenly, which {luck}")


def _share(delay_ns: int, traced_ns: int) -> float:
    """Of the traced time; collectives outside of steps may make it more than all."""
    return min(1.0, delay_ns / traced_ns) if traced_ns else 0.0
