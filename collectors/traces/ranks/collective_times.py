"""One collective on several ranks: how long each waited for the last, and how long the transfer then took.

wait: from a rank's own arrival to the last rank's. transfer: from the last arrival to the rank's own end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from collectors.traces.ranks.element_bytes import buffer_bytes
from collectors.traces.ranks.matching import ROOTED, Matched
from collectors.traces.ranks.membership import call_of
from collectors.traces.spans import Timeline
from workloads.laws.bus import bus_factor
from workloads.laws.terms import Collective

_WITH_BANDWIDTH: tuple[Collective, ...] = get_args(Collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One collective on the common clock; per rank in the order of `matched.ranks`.

    wait_ns, transfer_ns: together what it lasted on the rank. A rank that left before the last came (of a rooted
    collective it may, else clocks are off) only waited.
    size_bytes: of the larger of a rank's two buffers, where ranks differ the largest; None where traces do not say.
    """

    matched: Matched
    arrival_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    size_bytes: int | None

    @property
    def last_rank(self) -> int:
        """The rank that came last; of several the lowest."""
        return self.matched.ranks[self.arrival_ns.index(max(self.arrival_ns))]

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes per second from the last arrival to the last end.

        None where the size is not known, the traces show no such time, ranks are missing, one of which may be last, or
        the collective is rooted, whose data moves before the last has come.
        """
        elapsed_ns = max(self.end_ns) - max(self.arrival_ns)
        is_partial = self.matched.missing_count > 0 or self.matched.collective in ROOTED
        if self.size_bytes is None or elapsed_ns <= 0 or is_partial:
            return None
        return self.size_bytes * 1e9 / elapsed_ns

    @property
    def bus_bandwidth(self) -> float | None:
        """The algorithm bandwidth times the collective's factor; None where the one is or there is no other."""
        speed = self.algorithm_bandwidth
        factor = next(
            (
                bus_factor(collective, len(self.matched.ranks))
                for collective in _WITH_BANDWIDTH
                if collective == self.matched.collective
            ),
            None,
        )
        return None if speed is None or factor is None else speed * float(factor)


def time_of(matched: Matched, timelines: Mapping[int, Timeline], offset_ns: Mapping[int, int]) -> CollectiveTime:
    """The times of one collective. timelines: by rank, on their own clocks. offset_ns: what these must show more."""
    places = list(zip(matched.ranks, matched.rows, strict=True))
    arrival_ns = tuple(int(timelines[rank].start_ns[row]) + offset_ns[rank] for rank, row in places)
    end_ns = tuple(int(timelines[rank].end_ns[row]) + offset_ns[rank] for rank, row in places)
    last_ns = max(arrival_ns)
    sizes = [buffer_bytes(call_of(timelines[rank], row)) for rank, row in places]
    known = [size for size in sizes if size is not None]
    return CollectiveTime(
        matched=matched,
        arrival_ns=arrival_ns,
        end_ns=end_ns,
        wait_ns=tuple(min(last_ns, end) - start for start, end in zip(arrival_ns, end_ns, strict=True)),
        transfer_ns=tuple(max(0, end - last_ns) for end in end_ns),
        size_bytes=max(known) if len(known) == len(sizes) else None,
    )
