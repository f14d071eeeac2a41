"""Stragglers: whether a rank delays the others, judged on one or several trials, and why.

A rank is a straggler if its lateness costs enough of the traced time, makes up most of all ranks' lateness, and is
unlikely to be chance (an upper bound on its p-value is small enough).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from collectors.traces.analyzers.collectives import collectives
from collectors.traces.analyzers.lateness import ACTIVITIES, Activity, Lateness, TracedLateness, traced_lateness
from collectors.traces.cross_rank.clock_sync import Alignment
from collectors.traces.cross_rank.collective_times import CollectiveTime, count_impossible
from collectors.traces.cross_rank.matching import ROOTED
from collectors.traces.table import Table, table_of
from collectors.traces.timeline import Timeline

# The p-value: the probability that a rank is so late by chance alone.

TILTS = np.geomspace(1e-3, 1e3, 200)


def p_value_bound(delays_ns: NDArray[np.int64]) -> float:
    """Return an upper bound on the p-value of the worst rank's total delay.

    This is the probability that some column's sum reaches the largest one, if each row's delays fall on all ranks with
    equal probability.
    delays_ns: (rows, ranks), rows are the independent observations, trials or steps; at least one is above 0.
    Source: Chernoff's bound on a sum of independent variables, times the number of ranks to choose from.
    """
    ranks = int(delays_ns.shape[1])
    scaled = delays_ns / delays_ns.max()
    worst = float(scaled.sum(axis=0).max())
    # For each tilt t: log P(sum >= worst) <= sum over rows of log mean over ranks of exp(t x delay), minus t x worst.
    bounds = [float((np.logaddexp.reduce(tilt * scaled, axis=1) - log(ranks)).sum() - tilt * worst) for tilt in TILTS]
    return min(1.0, ranks * exp(min(*bounds, 0.0)))


def observations_needed(ranks: int, most_p_value: float) -> int:
    """Return in how many trials or steps a rank alone must be late for chance to have at most this probability."""
    return 1 + ceil(log(1 / most_p_value) / log(ranks))


# The verdict over one trial or several.
#
# A rank may be late because of the whole trial's circumstances (its core, a neighbour), which affect all its steps. So
# only several trials show that a rank is late wherever it is started; steps show it only for their own trial.

MOST_P_VALUE = 0.02
"""Maximum p-value of a straggler."""

LEAST_COST = 0.01
"""Minimum share of the traced time that a straggler costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """The verdict that this rank delays the others, and what it does meanwhile.

    delay_ns: see `Lateness`. cost_ratio: share of the traced time; cost_ratios: by trial. delay_ratio: share of all
    ranks' delays.
    p_value: an upper bound on the probability of as much delay if all ranks were equally late.
    names: the events that ran longest in the cause.
    """

    rank: int
    cause: Activity
    delay_ns: int
    cost_ratio: float
    cost_ratios: tuple[float, ...]
    delay_ratio: float
    p_value: float
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoStraggler:
    """The verdict that there is no straggler: lateness is spread evenly, may be chance, or costs next to nothing.

    more: number of additional steps or trials (the unit of the verdict) that it would take to distinguish such lateness
    from chance; None if their number is not the reason.
    likely: the most likely rank; None if there is no evidence against any.
    """

    why: str
    more: int | None = None
    likely: str | None = None


def verdict(trials: Sequence[TracedLateness], *, by: Literal["trial", "step"] = "trial") -> Straggler | NoStraggler:
    """Return the straggler in these trials of the same ranks, or why there is none.

    by: the independent observations. By "step", the verdict holds for the ranks as started in these trials, and not for
    the same ranks when they are started again.
    """
    if not trials or not all(trial.ranks for trial in trials):
        return NoStraggler(
            why="no collective that all ranks wait in was found on two ranks or more, apart from each rank's first"
        )
    if len({tuple(lateness.rank for lateness in trial.ranks) for trial in trials}) > 1:
        return NoStraggler(why="trials differ in the ranks that were found in collectives")
    if by == "trial":
        delays_ns = np.stack([trial.delays_ns.sum(axis=0) for trial in trials])
    else:
        delays_ns = np.concatenate([trial.delays_ns for trial in trials])
    if not delays_ns.any():
        return NoStraggler(why="in every collective the last ranks arrive together, within the clocks' uncertainty")
    by_rank_ns = delays_ns.sum(axis=0)
    column, ranks = int(by_rank_ns.argmax()), int(by_rank_ns.size)
    of_rank = [trial.ranks[column] for trial in trials]
    rank, delay_ns = of_rank[0].rank, int(by_rank_ns[column])
    cost_ratio = _share(delay_ns, sum(trial.traced_ns for trial in trials))
    if cost_ratio < LEAST_COST:
        return NoStraggler(
            why=f"the costliest rank, {rank}, delays the others for {100 * cost_ratio:.2f} % of the traced time"
        )
    delay_ratio = delay_ns / int(by_rank_ns.sum())
    # Halfway between an even share and all of it.
    least_ratio = (1 + 1 / ranks) / 2
    if delay_ratio < least_ratio:
        return NoStraggler(
            why=f"lateness is spread: rank {rank}, the costliest, has {100 * delay_ratio:.0f} % of it; a straggler"
            f" among {ranks} ranks has {100 * least_ratio:.0f} % or more"
        )
    p_value = p_value_bound(delays_ns)
    if p_value > MOST_P_VALUE:
        marked = by == "trial" or all(trial.has_steps for trial in trials)
        reason = _not_significant(
            f"rank {rank} has {100 * delay_ratio:.0f} % of the lateness",
            delays_ns,
            column,
            p_value,
            by=by if marked else None,
        )
        return replace(reason, likely=_likely(of_rank, delays_ns[:, column], reason.more, by if marked else None))
    cause = max(ACTIVITIES, key=lambda activity: sum(lateness.doing_ns[activity] for lateness in of_rank))
    return Straggler(
        rank=rank,
        cause=cause,
        delay_ns=delay_ns,
        cost_ratio=cost_ratio,
        cost_ratios=tuple(
            _share(lateness.delay_ns, trial.traced_ns) for lateness, trial in zip(of_rank, trials, strict=True)
        ),
        delay_ratio=delay_ratio,
        p_value=p_value,
        names=next((lateness.names for lateness in of_rank if lateness.cause == cause), ()),
    )


def _not_significant(
    has: str, delays_ns: NDArray[np.int64], column: int, p_value: float, *, by: Literal["trial", "step"] | None
) -> NoStraggler:
    """Return the verdict for a rank whose p-value is too large. by: the unit of a row of delays; None if unknown."""
    if by is None:
        return NoStraggler(why=f"{has}, but no trace marks the steps, so it may be chance")
    rows, needed = delays_ns.shape[0], observations_needed(delays_ns.shape[1], MOST_P_VALUE)
    late = int((delays_ns[:, column] > 0).sum())
    return NoStraggler(
        why=f"{has} and is late in {late} of {rows} {by}{'s' if rows > 1 else ''}, which may be"
        f" chance (p <= {p_value:.2g}; {MOST_P_VALUE:g} is needed)",
        more=needed - rows if rows < needed else None,
    )


def _likely(
    of_rank: Sequence[Lateness],
    delays_ns: NDArray[np.int64],
    more: int | None,
    by: Literal["trial", "step"] | None,
) -> str | None:
    """Return a text that names the rank as likely; None unless it is late in most of several observations.

    delays_ns: the rank's, by observation. by: as in `_not_significant`; if None, collectives are counted.
    """
    if by is None:
        late, count = (
            sum(values) for values in zip(*((lateness.last, lateness.collectives) for lateness in of_rank), strict=True)
        )
        evidence = f" (last in {late} of {count} collectives)"
    else:
        late, count = int((delays_ns > 0).sum()), int(delays_ns.size)
        evidence = ""
    if 2 * late <= count or late < 2 or (by is not None and more is None):
        return None
    return f"likely rank {of_rank[0].rank}{evidence}"


def _share(delay_ns: int, traced_ns: int) -> float:
    """Return the delay's share of the traced time, at most 1, since collectives outside steps may exceed this time."""
    return min(1.0, delay_ns / traced_ns) if traced_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """The lateness of every rank, costliest first, and the verdict.

    straggler: None if there is none; why_none then has the reason, and likely the rank that might be one.
    """

    alignment: Alignment
    ranks: tuple[Lateness, ...]
    straggler: Straggler | None
    why_none: str | None
    likely: str | None
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return the verdict, lateness and waits by rank, and the clocks, whose notes are in `notes`."""
        straggler = self.straggler
        verdict = (
            ()
            if straggler is None
            else (
                straggler.rank,
                straggler.cause,
                straggler.delay_ns,
                straggler.cost_ratio,
                straggler.delay_ratio,
                straggler.p_value,
            )
        )
        activities = " ".join(f"{activity.replace(' ', '_')}_ns" for activity in ACTIVITIES)
        return (
            table_of(
                "straggler",
                "The rank that delays the others",
                "rank cause delay_ns of_time_ratio of_all_delays_ratio chance_ratio longest_events",
                () if straggler is None else ((*verdict, ", ".join(straggler.names)),),
                *self._why_nobody(),
            ),
            table_of(
                "lateness",
                "How often each rank comes last, what that costs the others, and what it does meanwhile",
                f"rank collectives last delay_ns others_wait_ns {activities} longest_events",
                [
                    (
                        lateness.rank,
                        lateness.collectives,
                        lateness.last,
                        lateness.delay_ns,
                        lateness.others_wait_ns,
                        *(lateness.doing_ns[activity] for activity in ACTIVITIES),
                        ", ".join(lateness.names),
                    )
                    for lateness in self.ranks
                ],
            ),
            table_of(
                "cost",
                "How long each rank waited for each late rank",
                "late_rank waiting_rank wait_ns",
                [
                    (lateness.rank, rank, wait_ns)
                    for lateness in self.ranks
                    for rank, wait_ns in lateness.waits_ns.items()
                ],
            ),
            *(replace(table, notes=()) for table in self.alignment.tables()),
        )

    def _why_nobody(self) -> tuple[str, ...]:
        if self.why_none is None:
            return ()
        return (f"{'none' if self.likely is None else f'{self.likely}, not certain'}: {self.why_none}",)


def stragglers(timelines: Sequence[Timeline]) -> Stragglers:
    """Return the lateness of these ranks, and the straggler if there is one.

    It counts collectives that no rank leaves before the last arrives, without each rank's first. A rank is late if it
    arrives after all others by more than the clock error: the difference between the ends of a collective on different
    clocks.

    Raises:
        ValueError: two Timelines belong to the same rank.
    """
    analysis = collectives(timelines)
    lateness = traced_lateness(analysis)
    judged = verdict([lateness], by="step")
    why_none = judged.why if isinstance(judged, NoStraggler) else None
    if isinstance(judged, NoStraggler) and judged.more is not None:
        why_none = f"{judged.why}; trace at least {judged.more} more whole steps"
    return Stragglers(
        alignment=analysis.alignment,
        ranks=tuple(sorted(lateness.ranks, key=lambda rank_lateness: -rank_lateness.delay_ns)),
        straggler=judged if isinstance(judged, Straggler) else None,
        why_none=why_none,
        likely=judged.likely if isinstance(judged, NoStraggler) else None,
        notes=(*_notes(analysis.times, analysis.alignment), *analysis.matching.notes, *analysis.alignment.notes),
    )


def _notes(times: Sequence[CollectiveTime], alignment: Alignment) -> Iterator[str]:
    yield f"a rank is late if it arrives more than {(alignment.residual_ns or 0) / 1e3:g} us after all others"
    yield (
        "activities are parts of the delay: what the rank did more than the second-to-last since both left a"
        " collective, negative if it did less; leaving that collective later counts as an earlier collective, reduced"
        " by the time that the host then idled less"
    )
    comparable = [time for time in times if time.matched.collective not in ROOTED and not time.matched.is_first]
    if impossible := count_impossible(comparable, alignment.residual_ns or 0):
        yield (
            f"{impossible} of {len(comparable)} collectives seem to end on a rank before the last has arrived: clocks"
            " or groups differ from what is assumed, and another rank may be late"
        )
    rooted = sum(time.matched.collective in ROOTED for time in times)
    if rooted:
        yield f"{rooted} rooted collectives are left out: in them it is unknown who waits for whom"
    if not any(timeline.of_kind("step").any() for timeline in alignment.timelines):
        yield "no trace marks steps: consecutive late arrivals of the same rank count as one step"
    yield (
        "the chance assumes independent steps of the ranks as they were started: only more trials show whether a rank"
        " is late wherever it is started"
    )
