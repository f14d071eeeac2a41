"""The rule by which one rank is said to hold the others up, in one trial or in several.

What makes a rank late may be its trial's luck (its core, a neighbour), which sticks to all steps of the trial. So only
trials say again that a rank is late wherever it is started; steps say it of the one trial that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.activities import ACTIVITIES, Activity
from collectors.traces.ranks.chance import chance_of_worst, least_rows
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

    more: so many steps or trials (by which it was judged) would be needed besides for lateness as it is to be told from
    luck; None where that is not what the verdict lacks.
    """

    why: str
    more: int | None = None


def verdict(trials: Sequence[TracedLateness], *, by: Literal["trial", "step"] = "trial") -> Straggler | Nobody:
    """Who holds the others up in these trials of the same ranks, or why nobody does.

    by: what is taken for independent. By "step" the verdict is of these trials' ranks as they were started, and says
    nothing of how they are late when started anew.
    """
    if not trials or not all(trial.ranks for trial in trials):
        return Nobody(
            why="no collective that all ranks wait in was found on two ranks or more, apart from each rank's first"
        )
    if len({tuple(one.rank for one in trial.ranks) for trial in trials}) > 1:
        return Nobody(why="trials differ in the ranks that were found in collectives")
    if by == "trial":
        delays_ns = np.stack([trial.delays_ns.sum(axis=0) for trial in trials])
    else:
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
        marked = by == "trial" or all(trial.has_steps for trial in trials)
        return _may_be_luck(
            f"rank {rank} has {delay_ratio:.0%} of the lateness", delays_ns, place, chance, by=by if marked else None
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


def _may_be_luck(
    has: str, delays_ns: NDArray[np.int64], place: int, chance: float, *, by: Literal["trial", "step"] | None
) -> Nobody:
    """by: what a row of the delays is; None where nobody knows."""
    luck = f"may be luck (chance up to {chance:.0%})"
    rows, needed = delays_ns.shape[0], least_rows(delays_ns.shape[1], MOST_CHANCE)
    if by is None:
        return Nobody(why=f"{has}, but no trace marks the steps by which to tell whether that {luck}")
    if rows < needed:
        return Nobody(why=f"{has}, but in so few {by}s that it {luck}", more=needed - rows)
    late = int((delays_ns[:, place] > 0).sum())
    return Nobody(why=f"{has}, but is late in {late} of {rows} {by}s and unevenly, which {luck}")


def _share(delay_ns: int, traced_ns: int) -> float:
    """Of the traced time; collectives outside of steps may make it more than all."""
    return min(1.0, delay_ns / traced_ns) if traced_ns else 0.0
