"""Collectives to which one rank came after all others, and what it had done that the last but one had not.

The two are compared from the last collective that they left together: what the late rank did since then, less what the
other did until it came, adds up to the delay. So a rank that computes as long as the others, but began later because it
waited for data, is late for its data. And a rank that left that collective later lost nothing by it where it then
idled that much less, as ranks do that next wait for something else.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collectors.traces.ranks.activities import ACTIVITIES, Activities, Activity
from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.matching import Matched

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
