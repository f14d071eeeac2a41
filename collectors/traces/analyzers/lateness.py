"""How often each rank comes last to collectives, what that costs the others, and what it does meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.analyzers.collectives import Collectives
from collectors.traces.cross_rank.collective_times import CollectiveTime, steps_of
from collectors.traces.cross_rank.matching import ROOTED, Matched
from collectors.traces.event_names import DATA_LOADING
from collectors.traces.intervals import Times, length_ns, union, without
from collectors.traces.operators import Foreground
from collectors.traces.steps import Stretch, steps
from collectors.traces.timeline import Kind, Timeline

# What a rank did in the time before it came to a collective.
#
# Where several things ran at once, the time is that of the one that ended last before the rank came, since that is what
# it had waited for; what still ran when it came, it did not wait for. On a host, the loading of data comes before the
# operators in it.

Activity = Literal["compute", "an earlier collective", "copy", "data loading", "host"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
"""host: nothing of the others."""

_KINDS: Mapping[Activity, tuple[Kind, ...]] = {
    "compute": ("compute",),
    "an earlier collective": ("communication",),
    "copy": ("copy",),
    "data loading": ("host",),
    "host": ("host", "launch", "wait"),
}
_BUSY: tuple[Activity, ...] = ("compute", "an earlier collective", "copy", "data loading")


class Activities:
    """Those of one rank, at any time of its own clock."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._rows = {activity: _rows(timeline, activity) for activity in ACTIVITIES}
        self._ends_ns = {activity: np.sort(timeline.end_ns[self._rows[activity]]) for activity in _BUSY}
        self._busy = {
            activity: union(timeline.start_ns[self._rows[activity]], timeline.end_ns[self._rows[activity]])
            for activity in _BUSY
        }

    def by_last_end(self, start_ns: int, end_ns: int) -> list[Activity]:
        """All but the host, that which ended last in the window first."""
        order = sorted(_BUSY, key=lambda activity: -self._last_end_ns(activity, start_ns, end_ns))
        if not self._timeline.is_device:
            order.sort(key=lambda activity: activity != "data loading")
        return order

    def spent_ns(self, order: Sequence[Activity], start_ns: int, end_ns: int) -> dict[Activity, int]:
        """How much of the window each took; the parts add up to it. order: of what runs at once, the first counts."""
        spent_ns: dict[Activity, int] = {}
        covered = np.empty((0, 2), dtype=np.int64)
        for activity in order:
            wider = _together(covered, _clipped(self._busy[activity], start_ns, end_ns))
            spent_ns[activity] = length_ns(wider) - length_ns(covered)
            covered = wider
        spent_ns["host"] = end_ns - start_ns - length_ns(covered)
        return spent_ns

    def names_ns(self, activity: Activity, windows: Times) -> Counter[str]:
        """By name, how long events of the activity ran in these windows; of nested ones the innermost.

        windows: disjoint and in order. Of the host, only while it did nothing else.
        """
        timeline, rows = self._timeline, self._rows[activity]
        if activity == "host":
            windows = without(windows, reduce(_together, self._busy.values()))
        run_ns = np.zeros(len(timeline.names), dtype=np.int64)
        for stream in np.unique(timeline.stream[rows]):
            of_stream = rows[timeline.stream[rows] == stream]
            pieces = Foreground(timeline.start_ns[of_stream], timeline.end_ns[of_stream]).pieces()
            inside_ns = _until_ns(windows, pieces.end_ns) - _until_ns(windows, pieces.start_ns)
            np.add.at(run_ns, timeline.name[of_stream[pieces.owner]], inside_ns)
        return Counter({timeline.names[number]: int(run_ns[number]) for number in np.flatnonzero(run_ns)})

    def _last_end_ns(self, activity: Activity, start_ns: int, end_ns: int) -> int:
        """When the last of the activity's spans that ended in the window did; its start where none did."""
        ends_ns = self._ends_ns[activity]
        behind = int(np.searchsorted(ends_ns, end_ns, side="right"))
        return max(int(ends_ns[behind - 1]), start_ns) if behind else start_ns


def _rows(timeline: Timeline, activity: Activity) -> NDArray[np.int64]:
    """The rows of the activity's spans."""
    chosen = np.logical_or.reduce([timeline.of_kind(kind) for kind in _KINDS[activity]])
    if activity == "data loading":
        numbers = [number for number, name in enumerate(timeline.names) if DATA_LOADING.match(name)]
        chosen &= np.isin(timeline.name, numbers)
    return np.flatnonzero(chosen)


def _clipped(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """What of the set lies in the window; of a long set and a short window sooner than `clip`."""
    first = int(np.searchsorted(intervals[:, 1], start_ns, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end_ns, side="left"))
    return np.clip(intervals[first:last], start_ns, end_ns)


def _together(one: Times, other: Times) -> Times:
    both = np.concatenate((one, other))
    return union(both[:, 0], both[:, 1])


def _until_ns(windows: Times, moments_ns: Times) -> Times:
    """How much of the windows lies before each moment."""
    lasting_ns = windows[:, 1] - windows[:, 0]
    before_ns = np.concatenate(([0], np.cumsum(lasting_ns)))
    place = np.searchsorted(windows[:, 0], moments_ns, side="right")
    # Of the window that began last, what lies behind the moment is not before it.
    end_ns = np.concatenate(([np.iinfo(np.int64).min], windows[:, 1]))
    after_ns: Times = np.maximum(end_ns[place], moments_ns) - moments_ns
    return before_ns[place] - after_ns


# Collectives to which one rank came after all others, and what it had done that the last but one had not.
#
# The two are compared from the last collective that they left together: what the late rank did since then, less what
# the other did until it came, adds up to the delay. So a rank that computes as long as the others, but began later
# because it waited for data, is late for its data. And a rank that left that collective later lost nothing by it
# where it then idled that much less, as ranks do that next wait for something else.

REMEMBERED = 8
"""Collectives of one set of ranks, of which those that are still going on are no beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateArrival:
    """One of them.

    matched: the collective. rank: that came last. arrival_ns: when it did, on the common clock. delay_ns: after the
    last but one.
    waits_ns: by other rank, how long it waited from its own arrival.
    doing_ns: the parts of the delay; below 0 where it did less than the last but one. To have left the last collective
    later counts as an earlier collective, but for as much as the host then did less.
    window_ns: from when the first of both left the last collective to when it came to this one, on its own clock.
    """

    matched: Matched
    rank: int
    arrival_ns: int
    delay_ns: int
    waits_ns: Mapping[int, int]
    doing_ns: Mapping[Activity, int]
    window_ns: tuple[int, int]


def late_arrivals(
    times: Iterable[CollectiveTime],
    activities: Mapping[int, Activities],
    offset_ns: Mapping[int, int],
    least_ns: int,
) -> Iterator[LateArrival]:
    """Those of these collectives, in order of time, whose last rank came more than least_ns after the last but one.

    A rank's first collective only tells where the next begins. activities: by rank. offset_ns: by rank, what its clock
    must show more.
    """
    before: dict[tuple[int, ...], deque[CollectiveTime]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
    for time in times:
        (previous_ns, previous), (last_ns, last) = sorted(zip(time.arrival_ns, time.matched.ranks, strict=True))[-2:]
        if last_ns - previous_ns > least_ns and not time.matched.is_first:
            left_ns = _left_together_ns(before.values(), {last: last_ns, previous: previous_ns})
            began_ns = min(left_ns.values())
            late, other = (
                _Window(
                    activities=activities[rank],
                    began_ns=began_ns - offset_ns[rank],
                    left_ns=left_ns[rank] - offset_ns[rank],
                    came_ns=came_ns - offset_ns[rank],
                )
                for rank, came_ns in ((last, last_ns), (previous, previous_ns))
            )
            yield LateArrival(
                matched=time.matched,
                rank=last,
                arrival_ns=last_ns,
                delay_ns=last_ns - previous_ns,
                waits_ns={
                    rank: wait_ns
                    for rank, wait_ns in zip(time.matched.ranks, time.wait_ns, strict=True)
                    if rank != last
                },
                doing_ns=_parts_ns(late, other),
                window_ns=(late.began_ns, late.came_ns),
            )
        before[time.matched.ranks].append(time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """What is looked at of one of the two ranks, on its own clock.

    began_ns: when the first of both left the last collective. left_ns: when this one did. came_ns: to the next.
    """

    activities: Activities
    began_ns: int
    left_ns: int
    came_ns: int

    def spent_ns(self, order: Sequence[Activity]) -> dict[Activity, int]:
        return self.activities.spent_ns(order, self.began_ns, self.came_ns)

    def stayed_ns(self, order: Sequence[Activity]) -> int:
        """How long it did nothing else than to stay in the collective that the other had left."""
        return self.activities.spent_ns(order, self.began_ns, self.left_ns)["an earlier collective"]


def _parts_ns(late: _Window, other: _Window) -> dict[Activity, int]:
    """What the late rank did more than the other, by what; together the delay."""
    order = late.activities.by_last_end(late.began_ns, late.came_ns)
    late_ns, other_ns = late.spent_ns(order), other.spent_ns(order)
    parts_ns = {activity: late_ns[activity] - other_ns[activity] for activity in ACTIVITIES}
    stayed_ns, idled_ns = late.stayed_ns(order) - other.stayed_ns(order), parts_ns["host"]
    if stayed_ns * idled_ns < 0:
        made_up_ns = min(abs(stayed_ns), abs(idled_ns)) * (1 if stayed_ns > 0 else -1)
        parts_ns["an earlier collective"] -= made_up_ns
        parts_ns["host"] += made_up_ns
    return parts_ns


def _left_together_ns(before: Iterable[Iterable[CollectiveTime]], arrival_ns: Mapping[int, int]) -> dict[int, int]:
    """When each of these two ranks left the last collective that both had left when they came to the next.

    Where there was none, when the first came: what both did until then is then not known to be alike.
    """
    found = []
    for time in (time for of_ranks in before for time in of_ranks):
        end_ns = dict(zip(time.matched.ranks, time.end_ns, strict=True))
        if all(rank in end_ns and end_ns[rank] <= came_ns for rank, came_ns in arrival_ns.items()):
            found.append({rank: end_ns[rank] for rank in arrival_ns})
    none = dict.fromkeys(arrival_ns, min(arrival_ns.values()))
    return max(found, key=lambda left_ns: min(left_ns.values()), default=none)


# What each rank's lateness cost in each step.
#
# Collectives of one step are late together, since a rank that is behind stays behind until the step's end. So a step,
# and not a collective, is what says once more that a rank is late.


def delays_by_step(
    late: Sequence[LateArrival], ranks: Sequence[int], step_of: Mapping[Matched, int]
) -> NDArray[np.int64]:
    """Delays in nanoseconds, one row for each step with a collective, one column for each of these ranks.

    step_of: of all collectives, late or not, the number of the step. Where it is empty, since no trace marks steps,
    there is one row for all arrivals of a late rank until another is late.
    """
    column = {rank: number for number, rank in enumerate(ranks)}
    if step_of:
        steps = np.unique(np.array(list(step_of.values()), dtype=np.int64))
        rows = np.searchsorted(steps, np.array([step_of[one.matched] for one in late], dtype=np.int64))
        count = steps.size
    else:
        turns = np.diff([one.rank for one in late]) != 0
        rows = np.concatenate(([0], np.cumsum(turns)))[: len(late)]
        count = int(rows[-1]) + 1 if late else 0
    delays_ns = np.zeros((count, len(ranks)), dtype=np.int64)
    for row, one in zip(rows, late, strict=True):
        delays_ns[row, column[one.rank]] += one.delay_ns
    return delays_ns


NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One rank's.

    collectives: that it took part in. last: to how many of them it came last.
    delay_ns: how much sooner these could have begun, had it come with the last but one: a sum.
    waits_ns: by other rank, how long it waited in these from its own arrival; only ranks that were in one of them.
    doing_ns: the parts of the delay, see `LateArrival`. cause: the largest; None of a rank that was never last.
    names: the events that ran longest in the cause, the longest first.
    """

    rank: int
    collectives: int
    last: int
    delay_ns: int
    waits_ns: Mapping[int, int]
    doing_ns: Mapping[Activity, int]
    cause: Activity | None
    names: tuple[str, ...]

    @property
    def others_wait_ns(self) -> int:
        """How long all other ranks waited in these: a sum."""
        return sum(self.waits_ns.values())


def lateness_by_rank(
    times: Iterable[CollectiveTime], late: Iterable[LateArrival], activities: Mapping[int, Activities]
) -> tuple[Lateness, ...]:
    """One for each rank of these collectives, the costliest first."""
    took_part = Counter(rank for time in times for rank in time.matched.ranks)
    of_rank: dict[int, list[LateArrival]] = defaultdict(list)
    for one in late:
        of_rank[one.rank].append(one)
    found = [_lateness(rank, count, of_rank[rank], activities[rank]) for rank, count in sorted(took_part.items())]
    return tuple(sorted(found, key=lambda one: -one.delay_ns))


def _lateness(rank: int, collectives: int, late: Sequence[LateArrival], activities: Activities) -> Lateness:
    doing_ns = {activity: sum(one.doing_ns[activity] for one in late) for activity in ACTIVITIES}
    cause = max(ACTIVITIES, key=lambda activity: doing_ns[activity])
    start_ns, end_ns = (np.array([one.window_ns[edge] for one in late], dtype=np.int64) for edge in (0, 1))
    waits_ns: Counter[int] = Counter()
    for one in late:
        waits_ns.update(one.waits_ns)
    names_ns = activities.names_ns(cause, union(start_ns, end_ns))
    return Lateness(
        rank=rank,
        collectives=collectives,
        last=len(late),
        delay_ns=sum(one.delay_ns for one in late),
        waits_ns=dict(sorted(waits_ns.items())),
        doing_ns=doing_ns,
        cause=cause if late else None,
        names=tuple(name for name, _ in names_ns.most_common(NAMES_SHOWN)),
    )


# All lateness of ranks that were traced together: by rank, by step, and the time that it is a share of.


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
