"""All lateness of ranks that were traced together: by rank, by step, and the time that it is a share of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.activities import Activities
from collectors.traces.ranks.collective_steps import steps_of
from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.collectives import Collectives
from collectors.traces.ranks.late_arrivals import late_arrivals
from collectors.traces.ranks.late_steps import delays_by_step
from collectors.traces.ranks.lateness import Lateness, lateness_by_rank
from collectors.traces.ranks.matching import ROOTED
from collectors.traces.steps.stretches import Stretch, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLateness:
    """That of one trial.

    ranks: all of them, ascending; empty where none met another in a collective that counts.
    delays_ns: one row for each step with such a collective, one column a rank. Where no trace marks steps, one row for
    each turn, in which a rank is late until another is.
    traced_ns: time of the traced steps, on the device where there is one, on the rank that has the most; where none are
    marked, from the first arrival to the last end of these collectives.
    """

    ranks: tuple[Lateness, ...]
    delays_ns: NDArray[np.int64]
    traced_ns: int
    has_steps: bool


def traced_lateness(found: Collectives) -> TracedLateness:
    """Who comes late to collectives that nobody leaves before the last has come, each rank's first left out.

    A rank is late where it comes after all others by more than the ends of a collective lie apart on different clocks,
    which is how well clocks are known.
    """
    alignment = found.alignment
    activities = {timeline.rank: Activities(timeline) for timeline in alignment.timelines}
    for_all = [time for time in found.times if time.matched.collective not in ROOTED]
    late = list(late_arrivals(for_all, activities, alignment.offset_ns, alignment.residual_ns or 0))
    times = [time for time in for_all if not time.matched.is_first]
    ranks = tuple(sorted(lateness_by_rank(times, late, activities), key=lambda one: one.rank))
    marked = {timeline.rank: steps(timeline) for timeline in alignment.timelines}
    step_of = steps_of(times, alignment.timelines, marked, alignment.offset_ns)
    return TracedLateness(
        ranks=ranks,
        delays_ns=delays_by_step(late, [one.rank for one in ranks], step_of),
        traced_ns=_traced_ns(times, marked.values()),
        has_steps=any(marked.values()),
    )


def _traced_ns(times: Sequence[CollectiveTime], marked: Iterable[Sequence[Stretch]]) -> int:
    in_steps_ns = max((sum(step.end_ns - step.start_ns for step in of_rank) for of_rank in marked), default=0)
    if in_steps_ns or not times:
        return in_steps_ns
    return max(max(time.end_ns) for time in times) - min(min(time.arrival_ns) for time in times)
