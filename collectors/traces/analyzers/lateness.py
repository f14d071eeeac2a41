"""Lateness: how often each rank comes last to collectives, what that costs the others, and what it does meanwhile.

A late arrival is a collective to which one rank came after all others; its delay is the time since the last but one.
The late rank's activities are compared with those of the last but one, and the differences add up to the delay.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.analyzers.collectives import Collectives
from collectors.traces.analyzers.step_division import length_before
from collectors.traces.cross_rank.collective_times import CollectiveTime, steps_of
from collectors.traces.cross_rank.matching import ROOTED, MatchedCollective
from collectors.traces.event_names import DATA_LOADING
from collectors.traces.intervals import Times, length_ns, union, union_of, without
from collectors.traces.operators import Foreground
from collectors.traces.steps import steps
from collectors.traces.timeline import SpanKind, Timeline

# What a rank did before it arrived at a collective.
#
# Time in which several activities overlap belongs to the one that ended last before the arrival, since the rank had
# waited for that; it did not wait for what still ran when it arrived. In a trace without a device, data loading takes
# precedence over the operators inside of it.

Activity = Literal["compute", "an earlier collective", "copy", "data loading", "host"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
"""host: the time in which none of the others ran."""

_KINDS: Mapping[Activity, tuple[SpanKind, ...]] = {
    "compute": ("compute",),
    "an earlier collective": ("communication",),
    "copy": ("copy",),
    "data loading": ("host",),
    "host": ("host", "launch", "wait"),
}
_OF_THE_HOST: tuple[Activity, ...] = ("data loading", "host")
_BUSY: tuple[Activity, ...] = ("compute", "an earlier collective", "copy", "data loading")


class Activities:
    """The activities of one rank, at any time of its own clock; on a device with another clock, its own alone."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._rows: dict[Activity, NDArray[np.int64]] = {}
        for activity in ACTIVITIES:
            chosen = np.logical_or.reduce([timeline.of_kind(kind) for kind in _KINDS[activity]])
            if activity == "data loading":
                is_loading = np.array([DATA_LOADING.match(name) is not None for name in timeline.names], dtype=np.bool_)
                chosen &= is_loading[timeline.name]
            if timeline.about.clocks_differ and activity in _OF_THE_HOST:
                chosen[:] = False
            self._rows[activity] = np.flatnonzero(chosen)
        self._ends_ns = {activity: np.sort(timeline.end_ns[self._rows[activity]]) for activity in _BUSY}
        self._busy = {
            activity: union(timeline.start_ns[self._rows[activity]], timeline.end_ns[self._rows[activity]])
            for activity in _BUSY
        }

    def by_last_end(self, start_ns: int, end_ns: int) -> list[Activity]:
        """Return all activities but "host", starting with the one whose span ended last in the window."""

        def last_end_ns(activity: Activity) -> int:
            ends_ns = self._ends_ns[activity]
            ended = int(np.searchsorted(ends_ns, end_ns, side="right"))
            return max(int(ends_ns[ended - 1]), start_ns) if ended else start_ns

        order = sorted(_BUSY, key=last_end_ns, reverse=True)
        if not self._timeline.is_device:
            order.sort(key=lambda activity: activity != "data loading")
        return order

    def spent_ns(self, order: Sequence[Activity], start_ns: int, end_ns: int) -> dict[Activity, int]:
        """Return how much of the window each activity took; the parts add up to it.

        order: the precedence among activities that overlap, highest first.
        """
        spent_ns: dict[Activity, int] = {}
        covered = np.empty((0, 2), dtype=np.int64)
        for activity in order:
            # The part of the set in the window; a search is faster than `clip` for a long set and a short window.
            busy = self._busy[activity]
            first = int(np.searchsorted(busy[:, 1], start_ns, side="right"))
            behind = int(np.searchsorted(busy[:, 0], end_ns, side="left"))
            wider = union_of([covered, np.clip(busy[first:behind], start_ns, end_ns)])
            spent_ns[activity] = length_ns(wider) - length_ns(covered)
            covered = wider
        spent_ns["host"] = end_ns - start_ns - length_ns(covered)
        return spent_ns

    def names_ns(self, activity: Activity, windows: Times) -> Counter[str]:
        """Return by name how long events of the activity ran in these windows; nested time counts for the innermost.

        windows: disjoint and in order. For "host", only the time in which no other activity ran.
        """
        timeline, rows = self._timeline, self._rows[activity]
        if activity == "host":
            windows = without(windows, union_of(self._busy.values()))
        run_ns = np.zeros(len(timeline.names), dtype=np.int64)
        for stream in np.unique(timeline.stream[rows]):
            of_stream = rows[timeline.stream[rows] == stream]
            pieces = Foreground(timeline.start_ns[of_stream], timeline.end_ns[of_stream]).pieces()
            inside_ns = length_before(windows, pieces.end_ns) - length_before(windows, pieces.start_ns)
            np.add.at(run_ns, timeline.name[of_stream[pieces.owner]], inside_ns)
        return Counter({timeline.names[number]: int(run_ns[number]) for number in np.flatnonzero(run_ns)})


# Late arrivals, each explained by comparing the late rank with the last but one.
#
# They are compared from the last collective on that both had left: what the late rank did since then, less what the
# other did until it arrived, adds up to the delay. So a rank that computes as long as the others, but began later
# because it waited for data, is late by data loading. A rank that left that earlier collective later lost nothing by it
# if it then idled that much less, as ranks do that next wait for something else.

REMEMBERED = 8
"""How many earlier collectives of each set of ranks are kept, to find one that both ranks had left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateArrival:
    """A collective to which one rank came after all others.

    matched: the collective. rank: the one that came last. arrival_ns: its arrival, on the common clock. delay_ns: time
    since the last but one arrived.
    waits_ns: by other rank, how long it waited from its own arrival.
    doing_ns: the delay by activity; below 0 where the rank did less of it than the last but one. Having left the
    earlier collective later counts as "an earlier collective", reduced by as much as the host idled less.
    window_ns: on the rank's own clock, from when the first of the two left the earlier collective to the arrival.
    """

    matched: MatchedCollective
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
    """Yield, in order of time, the collectives whose last rank came more than least_ns after the last but one.

    A rank's first collective is never late itself, and only serves as the earlier collective of others.
    activities: by rank. offset_ns: by rank, what to add to its clock to get the common one.
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
    """The window in which one of the two ranks is compared, on its own clock.

    began_ns: when the first of the two left the earlier collective. left_ns: when this one did. came_ns: its arrival at
    the next.
    """

    activities: Activities
    began_ns: int
    left_ns: int
    came_ns: int


def _parts_ns(late: _Window, other: _Window) -> dict[Activity, int]:
    """Return by activity how much more the late rank did than the other; the parts add up to the delay.

    Example: it left the earlier collective 5 ms later and idled 3 ms less since; then 2 ms of the delay are "an earlier
    collective" and 0 "host".
    """
    order = late.activities.by_last_end(late.began_ns, late.came_ns)
    late_ns, other_ns = (
        arrival.activities.spent_ns(order, arrival.began_ns, arrival.came_ns) for arrival in (late, other)
    )
    parts_ns = {activity: late_ns[activity] - other_ns[activity] for activity in ACTIVITIES}
    # By how much longer the late rank stayed in the earlier collective doing nothing else, and idled since.
    late_stayed_ns, other_stayed_ns = (
        arrival.activities.spent_ns(order, arrival.began_ns, arrival.left_ns)["an earlier collective"]
        for arrival in (late, other)
    )
    stayed_ns, idled_ns = late_stayed_ns - other_stayed_ns, parts_ns["host"]
    if stayed_ns * idled_ns < 0:
        made_up_ns = min(abs(stayed_ns), abs(idled_ns)) * (1 if stayed_ns > 0 else -1)
        parts_ns["an earlier collective"] -= made_up_ns
        parts_ns["host"] += made_up_ns
    return parts_ns


def _left_together_ns(before: Iterable[Iterable[CollectiveTime]], arrival_ns: Mapping[int, int]) -> dict[int, int]:
    """Return when each of the two ranks left the last collective that both had left before they came to the next.

    Where there was none, it is the first arrival for both: what they did before is not known to be comparable.
    """
    ends = []
    for time in (time for of_ranks in before for time in of_ranks):
        end_ns = dict(zip(time.matched.ranks, time.end_ns, strict=True))
        if all(rank in end_ns and end_ns[rank] <= came_ns for rank, came_ns in arrival_ns.items()):
            ends.append({rank: end_ns[rank] for rank in arrival_ns})
    none = dict.fromkeys(arrival_ns, min(arrival_ns.values()))
    return max(ends, key=lambda left_ns: min(left_ns.values()), default=none)


# Delays that overlap.
#
# The all-reduces of one backward run at once, and a rank that is late by 6 ms comes 6 ms late to each of them: it holds
# the others up for 6 ms, however many they are. That its delays overlap shows that the others had not waited for it in
# between. So of delays that overlap the longest counts.


def own_delays_ns(late: Iterable[LateArrival]) -> list[int]:
    """Return by how much each arrival's delay exceeds those of the same rank before it that it overlaps.

    Example: a rank comes at 10 ms to a collective to which the last but one came at 4 ms, and at 12 ms to one to which
    that one came at 5 ms: 6 ms and 1 ms.
    """
    awaited: dict[int, _Awaited] = defaultdict(_Awaited)
    return [awaited[each.rank].add(each.arrival_ns, each.delay_ns) for each in late]


class _Awaited:
    """The longest of the waits for a rank that overlap."""

    def __init__(self) -> None:
        self._end_ns: int | None = None
        self._longest_ns = 0

    def add(self, end_ns: int, wait_ns: int) -> int:
        """Add a wait that ends then; return by how much it is longer than those that it overlaps."""
        if self._end_ns is None or end_ns - wait_ns >= self._end_ns:
            self._longest_ns = 0
        own_ns = max(0, wait_ns - self._longest_ns)
        self._longest_ns += own_ns
        self._end_ns = end_ns if self._end_ns is None else max(self._end_ns, end_ns)
        return own_ns


# Delays by rank and step.
#
# Late arrivals within a step are not independent, since a rank that is behind stays behind until the step's end. So the
# independent observation of lateness is the step, not the collective.


def delays_by_step(
    late: Sequence[LateArrival], ranks: Sequence[int], step_of: Mapping[MatchedCollective, int]
) -> NDArray[np.int64]:
    """Return (steps, ranks) delays in nanoseconds, a row for each step with a collective; see `own_delays_ns`.

    step_of: the step's number of each collective, late or not. Where it is empty, since no trace marks steps, a row
    holds all arrivals of a late rank until another rank is late: late ranks 0, 0, 2, 0 make three rows.
    """
    column = {rank: number for number, rank in enumerate(ranks)}
    if step_of:
        steps = np.unique(np.array(list(step_of.values()), dtype=np.int64))
        rows = np.searchsorted(steps, np.array([step_of[arrival.matched] for arrival in late], dtype=np.int64))
        count = steps.size
    else:
        turns = np.diff([arrival.rank for arrival in late]) != 0
        rows = np.concatenate(([0], np.cumsum(turns)))[: len(late)]
        count = int(rows[-1]) + 1 if late else 0
    delays_ns = np.zeros((count, len(ranks)), dtype=np.int64)
    for row, arrival, own_ns in zip(rows, late, own_delays_ns(late), strict=True):
        delays_ns[row, column[arrival.rank]] += own_ns
    return delays_ns


NAMES_SHOWN = 3


def _shared_out(doing_ns: Mapping[Activity, int], delay_ns: int, part_ns: int) -> dict[Activity, int]:
    """Return the activities' shares of a part of the delay; they add up to it."""
    shares_ns = {activity: doing_ns[activity] * part_ns // delay_ns for activity in ACTIVITIES}
    largest = max(ACTIVITIES, key=lambda activity: shares_ns[activity])
    shares_ns[largest] += part_ns - sum(shares_ns.values())
    return shares_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """The lateness of one rank.

    collectives: how many it took part in. last: to how many of these it came last.
    delay_ns: how much sooner those could have begun, had it come with the last but one: a sum, in which of
    delays that overlap the longest counts. waits_ns: by other rank, how long it waited in those from its own arrival,
    added up alike; only ranks that were in one of them.
    doing_ns: the delay by activity, see `LateArrival`. cause: the largest part; None if the rank was never last.
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
        """How long all other ranks waited for this one: a sum."""
        return sum(self.waits_ns.values())


def _lateness(rank: int, collectives: int, late: Sequence[LateArrival], activities: Activities) -> Lateness:
    own_ns = own_delays_ns(late)
    doing_ns = dict.fromkeys(ACTIVITIES, 0)
    for arrival, part_ns in zip(late, own_ns, strict=True):
        for activity, spent_ns in _shared_out(arrival.doing_ns, arrival.delay_ns, part_ns).items():
            doing_ns[activity] += spent_ns
    cause = max(ACTIVITIES, key=lambda activity: doing_ns[activity])
    start_ns, end_ns = (np.array([arrival.window_ns[edge] for arrival in late], dtype=np.int64) for edge in (0, 1))
    waits_ns: Counter[int] = Counter()
    awaited: dict[int, _Awaited] = defaultdict(_Awaited)
    for arrival in late:
        for other, wait_ns in arrival.waits_ns.items():
            waits_ns[other] += awaited[other].add(arrival.arrival_ns, wait_ns)
    names_ns = activities.names_ns(cause, union(start_ns, end_ns))
    return Lateness(
        rank=rank,
        collectives=collectives,
        last=len(late),
        delay_ns=sum(own_ns),
        waits_ns=dict(sorted(waits_ns.items())),
        doing_ns=doing_ns,
        cause=cause if late else None,
        names=tuple(name for name, _ in names_ns.most_common(NAMES_SHOWN)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLateness:
    """The lateness of all ranks of one trial, and the traced time that it is a share of.

    ranks: ascending; empty if no two ranks met in a collective that counts.
    delays_ns: (steps, ranks), see `delays_by_step`.
    traced_ns: total time of the traced steps, on the device where there is one, of the rank that has the most; where no
    step is marked, from the first arrival to the last end of these collectives.
    """

    ranks: tuple[Lateness, ...]
    delays_ns: NDArray[np.int64]
    traced_ns: int
    has_steps: bool


def traced_lateness(analysis: Collectives) -> TracedLateness:
    """Return how late ranks come to collectives that none leaves before the last arrives, without each rank's first.

    A rank is late if it comes after all others by more than the clock error: how far the ends of a collective lie apart
    on different clocks.
    """
    alignment = analysis.alignment
    activities = {timeline.rank: Activities(timeline) for timeline in alignment.timelines}
    for_all = [time for time in analysis.times if time.matched.collective not in ROOTED]
    late = list(late_arrivals(for_all, activities, alignment.offset_ns, alignment.residual_ns or 0))
    times = [time for time in for_all if not time.matched.is_first]
    took_part = Counter(rank for time in times for rank in time.matched.ranks)
    ranks = tuple(
        _lateness(rank, count, [arrival for arrival in late if arrival.rank == rank], activities[rank])
        for rank, count in sorted(took_part.items())
    )
    marked = {timeline.rank: steps(timeline) for timeline in alignment.timelines}
    traced_ns = max((sum(step.end_ns - step.start_ns for step in of_rank) for of_rank in marked.values()), default=0)
    if times and not traced_ns:
        traced_ns = max(max(time.end_ns) for time in times) - min(min(time.arrival_ns) for time in times)
    step_of = steps_of(times, alignment.timelines, marked, alignment.offset_ns)
    return TracedLateness(
        ranks=ranks,
        delays_ns=delays_by_step(late, [lateness.rank for lateness in ranks], step_of),
        traced_ns=traced_ns,
        has_steps=any(marked.values()),
    )
