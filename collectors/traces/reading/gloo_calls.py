"""What gloo's events are: a trace says neither their process group nor their number, which the rank's own record does.

gloo gives each process group two threads of its own, which take up its collectives in the order of their issue. So the
events of a group are those of one or two threads, there are as many of each name as were issued, and none begins before
its issue; where one way only of giving threads to groups fits, that is how it was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np

from collectors.traces.calls import Call
from collectors.traces.names import GLOO
from collectors.traces.spans import ABSENT, Timeline

CLOCKS_APART_NS = 100_000
"""The profiler reads another clock than the record, and brings its times to Unix time by a factor of its own."""

_Threads: TypeAlias = frozenset[int]
_Group: TypeAlias = tuple[str | None, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A collective, or messages that were issued as one, as the rank's record has it.

    event: what the profiler calls it. created_ns: Unix time of its issue. sequence: its number in its process group;
    None where the record does not say, and of messages.
    """

    event: str
    created_ns: int
    call: Call
    sequence: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    row: int
    name: str
    start_ns: int
    thread: int


def with_calls(timeline: Timeline, issued: Sequence[Issued]) -> tuple[Timeline, tuple[str, ...]]:
    """The Timeline whose events of gloo say which collective they are, and why others do not.

    issued: all collectives that the rank issued during the trace, in order. Messages are in no record. Of two alike in
    name that both threads of a group take up within microseconds of each other, each may be told to be the other.
    """
    recorded = {one.event for one in issued}
    events = [event for event in _events(timeline) if event.name in recorded]
    notes = tuple(_unlike(events, issued))
    counted = Counter(one.event for one in issued)
    alike = {name for name, count in Counter(event.name for event in events).items() if counted[name] == count}
    events = [event for event in events if event.name in alike]
    by_group: dict[_Group, list[Issued]] = defaultdict(list)
    for one in issued:
        if one.event in alike:
            by_group[one.call.group, one.call.ranks].append(one)
    found = _only_way(by_group, events)
    if found is None:
        groups = "process group" if len(by_group) == 1 else f"{len(by_group)} process groups"
        return timeline, (
            *notes,
            f"process groups and numbers of {len(events)} collectives are absent: which threads of gloo serve which of"
            f" {groups} is not told by their events",
        )
    return spoken(timeline, {row: one for pairs in found for row, one in pairs}), notes


def _events(timeline: Timeline) -> Iterator[_Event]:
    """gloo's, by start."""
    for row in np.flatnonzero(timeline.of_kind("communication")).tolist():
        name = timeline.names[timeline.name[row]]
        if name.startswith(GLOO):
            yield _Event(row=row, name=name, start_ns=int(timeline.start_ns[row]), thread=int(timeline.stream[row]))


def _unlike(events: Iterable[_Event], issued: Iterable[Issued]) -> Iterator[str]:
    seen, counted = Counter(event.name for event in events), Counter(one.event for one in issued)
    for name, count in sorted(counted.items()):
        if seen[name] != count:
            yield (
                f"process groups and numbers of {name} are absent: {seen[name]} of its events were traced, and the"
                f" Flight Recorder has {count}"
            )


def _only_way(
    by_group: Mapping[_Group, Sequence[Issued]], events: Sequence[_Event]
) -> list[list[tuple[int, Issued]]] | None:
    """The events of each group beside what was issued, where no other way of giving threads to groups fits."""
    threads = sorted({event.thread for event in events})
    fitting = []
    for issued in by_group.values():
        pairs = {}
        for chosen in map(frozenset, (*combinations(threads, 1), *combinations(threads, 2))):
            if found := _paired(issued, [event for event in events if event.thread in chosen]):
                pairs[chosen] = found
        fitting.append(pairs)
    fitting.sort(key=len)
    ways = _ways(fitting, frozenset(threads))
    way = next(ways, None)
    if way is None or next(ways, None) is not None:
        return None
    return [pairs[chosen] for pairs, chosen in zip(fitting, way, strict=True)]


def _ways(fitting: Sequence[Mapping[_Threads, object]], free: _Threads) -> Iterator[list[_Threads]]:
    """Threads of each group, each thread given once and none left over."""
    if not fitting:
        if not free:
            yield []
        return
    for chosen in fitting[0]:
        if chosen <= free:
            for rest in _ways(fitting[1:], free - chosen):
                yield [chosen, *rest]


def _paired(issued: Iterable[Issued], events: Iterable[_Event]) -> list[tuple[int, Issued]] | None:
    """Each event's row beside what it is, in order for each name; None where they cannot be these."""
    by_name: dict[str, list[Issued]] = defaultdict(list)
    for one in issued:
        by_name[one.event].append(one)
    seen: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        seen[event.name].append(event)
    if {name: len(rows) for name, rows in seen.items()} != {name: len(ones) for name, ones in by_name.items()}:
        return None
    pairs = [(event, one) for name, ones in by_name.items() for event, one in zip(seen[name], ones, strict=True)]
    if any(event.start_ns + CLOCKS_APART_NS < one.created_ns for event, one in pairs):
        return None
    return [(event.row, one) for event, one in pairs]


def spoken(timeline: Timeline, found: Mapping[int, Issued]) -> Timeline:
    """The Timeline with these rows' calls and numbers."""
    numbers: dict[Call, int] = {}
    call = np.full(timeline.call.size, ABSENT, dtype=np.int32)
    sequence = timeline.sequence.copy()
    for row in np.flatnonzero(timeline.of_kind("communication")).tolist():
        if row in found:
            its: Call | None = found[row].call
            number = found[row].sequence
            sequence[row] = ABSENT if number is None else number
        else:
            its = None if timeline.call[row] == ABSENT else timeline.calls[timeline.call[row]]
        if its is not None:
            call[row] = numbers.setdefault(its, len(numbers))
    return replace(timeline, calls=tuple(numbers), call=call, sequence=sequence)
