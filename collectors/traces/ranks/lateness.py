"""How often each rank comes last to collectives, what that costs the others, and what it does meanwhile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.intervals import union
from collectors.traces.ranks.activities import ACTIVITIES, Activities, Activity
from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.late_arrivals import LateArrival

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
