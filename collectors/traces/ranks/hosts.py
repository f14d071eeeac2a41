"""Which ranks have one clock because they are on one host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from collectors.traces.ranks.matching import ROOTED, Matching
from collectors.traces.spans import Timeline

MOST_IMPOSSIBLE = 0.05
"""Of the collectives within one host, the share that a rank may seem to leave before another comes.

Clocks of one host agree within microseconds, so that none should; a few may be matched wrongly.
"""


def clocks_of_hosts(timelines: Sequence[Timeline], matching: Matching) -> tuple[dict[int, int], tuple[str, ...]]:
    """By rank the owner of its clock, which is the lowest rank of its host; and what was assumed.

    A rank whose trace names no host has a clock of its own; so have ranks of one name that cannot be one host's, as
    machines may all be called localhost.
    """
    owner = {timeline.rank: timeline.rank for timeline in timelines}
    hosts: dict[str, list[int]] = defaultdict(list)
    for timeline in sorted(timelines, key=lambda one: one.rank):
        if timeline.about.host:
            hosts[timeline.about.host].append(timeline.rank)
    doubted = _doubted({rank: host for host, ranks in hosts.items() for rank in ranks}, timelines, matching)
    notes = []
    for host, ranks in hosts.items():
        if len(ranks) == 1:
            continue
        listed = ", ".join(map(str, ranks))
        if host in doubted:
            notes.append(
                f"ranks {listed} say that they are on host {host}, but by its clock leave collectives before all have"
                " come: each is taken to have a clock of its own"
            )
        else:
            owner |= dict.fromkeys(ranks, ranks[0])
            notes.append(f"ranks {listed} are on host {host}: they have one clock")
    return owner, tuple(notes)


def _doubted(host_of: Mapping[int, str], timelines: Sequence[Timeline], matching: Matching) -> set[str]:
    """The hosts within which too many collectives would end on a rank before another comes."""
    by_rank = {timeline.rank: timeline for timeline in timelines}
    looked_at, impossible = Counter[str](), Counter[str]()
    for one in matching.matched:
        if one.collective in ROOTED or one.is_first:
            continue
        rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for rank, row in zip(one.ranks, one.rows, strict=True):
            if rank in host_of:
                rows[host_of[rank]].append((int(by_rank[rank].start_ns[row]), int(by_rank[rank].end_ns[row])))
        for host, times_ns in rows.items():
            looked_at[host] += 1
            impossible[host] += min(end_ns for _, end_ns in times_ns) < max(start_ns for start_ns, _ in times_ns)
    return {host for host, count in looked_at.items() if impossible[host] > MOST_IMPOSSIBLE * count}
