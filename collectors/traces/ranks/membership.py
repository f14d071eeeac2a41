"""Which spans of communication belong to which process group, and which to none that can be matched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.calls import Call
from collectors.traces.names import OTHER, collective_of
from collectors.traces.spans import ABSENT, Timeline

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The collectives of one process group on the ranks whose traces hold some.

    name: None where the traces do not tell groups; it then stands for all collectives of one name.
    ranks: those in the group; empty where the traces do not tell them. size: how many they are; None likewise.
    rows: by rank, ascending, the indices of its spans, in order.
    """

    name: str | None
    ranks: tuple[int, ...]
    rows: Mapping[int, Rows]
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """Spans of one rank that cannot be matched, and why."""

    rank: int
    rows: Rows
    reason: str


def call_of(timeline: Timeline, row: int) -> Call:
    """What the span of communication is, by its name alone where its trace says nothing else."""
    number = int(timeline.call[row])
    return _named(timeline, row) if number == ABSENT else timeline.calls[number]


def groups(timelines: Mapping[int, Timeline]) -> tuple[list[Group], list[Stray]]:
    """All process groups of these ranks, and what belongs to none. timelines: by rank."""
    calls = {rank: _calls(timeline) for rank, timeline in sorted(timelines.items())}
    told = _told_ranks(timelines, calls)
    sizes = _told_sizes(calls)
    rows: dict[tuple[str | None, tuple[int, ...], int | None, str], dict[int, list[Rows]]] = defaultdict(dict)
    strays = []
    for rank, called in calls.items():
        for call, found in called.items():
            if reason := _why_stray(call):
                strays.append(Stray(rank=rank, rows=found, reason=reason))
                continue
            members = call.ranks or _only(told.get(call.group, set()), rank, call.group_size)
            size = len(members) or call.group_size or _only_size(sizes[_alike(call)])
            rows[call.group, members, size, _alike(call)[1]].setdefault(rank, []).append(found)
    found_groups = [
        Group(
            name=name,
            ranks=ranks,
            rows={rank: np.sort(np.concatenate(parts)) for rank, parts in of_rank.items()},
            size=size,
        )
        for (name, ranks, size, _), of_rank in rows.items()
    ]
    return found_groups, strays


def _calls(timeline: Timeline) -> dict[Call, Rows]:
    """The rank's communication, by what it says of itself."""
    chosen = np.flatnonzero(timeline.of_kind("communication"))
    called: dict[Call, list[Rows]] = defaultdict(list)
    # Calls and names are few, spans are many.
    kinds = timeline.call[chosen].astype(np.int64) * len(timeline.names) + timeline.name[chosen]
    order = np.argsort(kinds, kind="stable")
    _, firsts = np.unique(kinds[order], return_index=True)
    for rows in np.split(chosen[order], firsts[1:]):
        if rows.size:
            called[call_of(timeline, int(rows[0]))].append(rows)
    return {call: np.sort(np.concatenate(parts)) for call, parts in called.items()}


def _named(timeline: Timeline, row: int) -> Call:
    return Call(collective=collective_of(timeline.names[timeline.name[row]]))


def _told_ranks(
    timelines: Mapping[int, Timeline], calls: Mapping[int, Mapping[Call, Rows]]
) -> dict[str | None, set[tuple[int, ...]]]:
    """By a group's name the ranks in it; of several sets if unlike groups of one name are on unlike ranks."""
    told: dict[str | None, set[tuple[int, ...]]] = defaultdict(set)
    for timeline in timelines.values():
        for name, ranks in timeline.about.groups.items():
            told[name].add(tuple(ranks))
    for called in calls.values():
        for call in called:
            if call.group is not None and call.ranks:
                told[call.group].add(call.ranks)
    return told


def _only(told: set[tuple[int, ...]], rank: int, size: int | None) -> tuple[int, ...]:
    """The one set of ranks, of this size where it is told, that this rank is in; empty where there is none, or more."""
    found = [ranks for ranks in told if rank in ranks and size in (None, len(ranks))]
    return found[0] if len(found) == 1 else ()


def _alike(call: Call) -> tuple[str | None, str]:
    """What collectives of one group share; without a group, order within all of one name is all there is to go by."""
    return call.group, call.collective if call.group is None else ""


def _told_sizes(calls: Mapping[int, Mapping[Call, Rows]]) -> dict[tuple[str | None, str], set[int]]:
    """The sizes that are told of a group whose ranks are not; several if unlike groups bear one name."""
    told: dict[tuple[str | None, str], set[int]] = defaultdict(set)
    for called in calls.values():
        for call in called:
            if call.group_size is not None and not call.ranks:
                told[_alike(call)].add(call.group_size)
    return told


def _only_size(told: set[int]) -> int | None:
    return next(iter(told)) if len(told) == 1 else None


def _why_stray(call: Call) -> str | None:
    if call.collective == "send":
        if call.peer is None:
            return "a message from one rank to another, and the trace does not say which"
        return f"a message with rank {call.peer}; messages are not matched"
    if call.collective == OTHER:
        return "the trace does not say which collective it is"
    if len(call.ranks) == 1 or (not call.ranks and call.group_size == 1):
        return "its process group has no other rank"
    return None
