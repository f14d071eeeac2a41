"""Lateness: how often each rank arrives last at collectives, what this costs the others, and what it does meanwhile.

A late arrival is a collective at which a rank arrives after all others; its delay is the time since the second-to-last
arrival. We compare the late rank's activities with those of the second-to-last; the differences add up to the delay.
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

# A rank's activities before it arrived at a collective.
#
# If several activities overlap, the time belongs to the one that ended last before the arrival, since the rank waited
# for it; it did not wait for activities that continued after the arrival. In a trace without a device, data loading
# takes precedence over the operators inside it.

Activity = Literal["compute", "an earlier collective", "copy", "data loading", "host"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
"""host: time in which none of the others ran."""

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
    """The activities of a rank, by its own clock; if its device has another clock, the device's activities alone."""

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
        """Return all activities but "host", starting with the one whose last span in the window ended last."""

        def last_end_ns(activity: Activity) -> int:
            ends_ns = self._ends_ns[activity]
            ended = int(np.searchsorted(ends_ns, end_ns, side="right"))
            return max(int(ends_ns[ended - 1]), start_ns) if ended else start_ns

        order = sorted(_BUSY, key=last_end_ns, reverse=True)
        if not self._timeline.is_device:
            order.sort(key=lambda activity: activity != "data loading")
        return order

    def spent_ns(self, order: Sequence[Activity], start_ns: int, end_ns: int) -> dict[Activity, int]:
        """Return how much of the window each activity took; the parts add up to the window.

        order: precedence of overlapping activities, highest first.
        """
        spent_ns: dict[Activity, int] = {}
        covered = np.empty((0, 2), dtype=np.int64)
        for activity in order:
            # The part of the set in the window; for a long set and a short window, searching is faster than `clip`.
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


# Late arrivals, each explained by comparing the late rank with the second-to-last.
#
# The comparison starts at the last collective that both had left: the late rank's activities since then, minus the
# other's until its arrival, add up to the delay. So a rank that computes as long as the others, but began later because
# it waited for data, is late because of data loading. Leaving the earlier collective later costs nothing if the rank
# then idles that much less, as happens if it waits for something else anyway.

REMEMBERED = 8
"""Number of earlier collectives of each set of ranks to remember, to find one that both ranks had left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateArrival:
    """A collective at which a rank arrived after all others.

    matched: the collective. rank: the last to arrive. arrival_ns: its arrival, on the common clock. delay_ns: time
    since the second-to-last arrival.
    waits_ns: by other rank, how long it waited from its own arrival.
    doing_ns: the delay by activity; negative if the rank did less of it than the second-to-last. Leaving the earlier
    collective later counts as "an earlier collective", reduced by the time that the host idled less.
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
    """Yield, in order of time, the collectives whose last rank arrived more than least_ns after the second-to-last.

    A rank's first collective never counts as late; it only serves as the earlier collective of others.
    activities: by rank. offset_ns: by rank, the offset from its clock to the common one.
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

    began_ns: when the first of the two left the earlier collective. left_ns: when this rank left it. came_ns: this
    rank's arrival at the next.
    """

    activities: Activities
    began_ns: int
    left_ns: int
    came_ns: int


def _parts_ns(late: _Window, other: _Window) -> dict[Activity, int]:
    """Return by activity how much more the late rank did than the other; the parts add up to the delay.

    Example: it left the earlier collective 5 ms later and then idled 3 ms less, so 2 ms of the delay are "an earlier
    collective" and 0 "host".
    """
    order = late.activities.by_last_end(late.began_ns, late.came_ns)
    late_ns, other_ns = (
        arrival.activities.spent_ns(order, arrival.began_ns, arrival.came_ns) for arrival in (late, other)
    )
    parts_ns = {activity: late_ns[activity] - other_ns[activity] for activity in ACTIVITIES}
    # How much longer the late rank stayed in the earlier collective without doing anything else, and idled since.
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
    """Return when each of the two ranks left the last collective that both had left before they arrived at the next.

    If there is none, both get the first arrival: their earlier activities may not be comparable.
    """
    ends = []
    for time in (time for of_ranks in before for time in of_ranks):
        end_ns = dict(zip(time.matched.ranks, time.end_ns, strict=True))
        if all(rank in end_ns and end_ns[rank] <= came_ns for rank, came_ns in arrival_ns.items()):
            ends.append({rank: end_ns[rank] for rank in arrival_ns})
    none = dict.fromkeys(arrival_ns, min(arrival_ns.values()))
    return max(ends, key=lambda left_ns: min(left_ns.values()), default=none)


# Overlapping delays.
#
# The all-reduces of one backward pass run concurrently, and a rank that is 6 ms late arrives 6 ms late at each of them:
# it delays the others by 6 ms, however many collectives there are. If its delays overlap, the others did not wait for
# it in between. So of overlapping delays, only the longest counts.


def own_delays_ns(late: Iterable[LateArrival]) -> list[int]:
    """Return by how much each arrival's delay exceeds the same rank's earlier delays that it overlaps.

    Example: a rank arrives at one collective at 10 ms, 6 ms after the second-to-last rank, and at another at 12 ms,
    7 ms after it: the result is 6 ms and 1 ms.
    """
    awaited: dict[int, _Awaited] = defaultdict(_Awaited)
    return [awaited[each.rank].add(each.arrival_ns, each.delay_ns) for each in late]


class _Awaited:
    """The longest of the overlapping waits for a rank."""

    def __init__(self) -> None:
        self._end_ns: int | None = None
        self._longest_ns = 0

    def add(self, end_ns: int, wait_ns: int) -> int:
        """Add a wait with this end; return by how much it is longer than the waits that it overlaps."""
        if self._end_ns is None or end_ns - wait_ns >= self._end_ns:
            self._longest_ns = 0
        own_ns = max(0, wait_ns - self._longest_ns)
        self._longest_ns += own_ns
        self._end_ns = end_ns if self._end_ns is None else max(self._end_ns, end_ns)
        return own_ns


# Delays by rank and step.
#
# Late arrivals within a step are not independent, since a rank that is behind stays behind until the step's end. So
# the independent observation of lateness is the step, not the collective.


def delays_by_step(
    late: Sequence[LateArrival], ranks: Sequence[int], step_of: Mapping[MatchedCollective, int]
) -> NDArray[np.int64]:
    """Return delays (steps, ranks) in nanoseconds, one row for each step with a collective; see `own_delays_ns`.

    step_of: the number of each collective's step, late or not. If it is empty because no trace marks steps, a row
    covers consecutive arrivals of the same late rank: late ranks 0, 0, 2, 0 make three rows.
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
    """The lateness of a rank.

    collectives: number that it took part in. last: at how many of these it arrived last.
    delay_ns: total time by which those could have begun sooner if it had arrived with the second-to-last; of
    overlapping delays, the longest counts. waits_ns: by other rank, how long it waited in those from its own arrival,
    added up in the same way; only ranks that took part in any.
    doing_ns: the delay by activity, see `LateArrival`. cause: the largest part; None if the rank was never last.
    names: the events that ran longest in the cause, longest first.
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
        """Total time that all other ranks waited for this rank."""
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
    """The lateness of all ranks of a trial, and the traced time to relate it to.

    ranks: ascending; empty if no two ranks took part in a collective that counts.
    delays_ns: (steps, ranks), see `delays_by_step`.
    traced_ns: total time of the traced steps, on the device if there is one, of the rank with the most; if no step is
    marked, the time from the first arrival to the last end of these collectives.
    """

    ranks: tuple[Lateness, ...]
    delays_ns: NDArray[np.int64]
    traced_ns: int
    has_steps: bool


def traced_lateness(analysis: Collectives) -> TracedLateness:
    """Return the ranks' lateness at collectives that none leaves before the last arrives, without each rank's first.

    A rank is late if it arrives after all others by more than the clock error: the difference between the ends of a
    collective on different clocks.
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
