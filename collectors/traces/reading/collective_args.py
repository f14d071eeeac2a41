"""What is known of each collective of a trace: from its own words, from the host's at its launch, from its name."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import ANNOTATION, GLOO, OTHER, RECORD, collective_of
from collectors.traces.reading.decoders import UNDECODABLE
from collectors.traces.reading.metadata import ranks_of
from collectors.traces.reading.raw_events import RawEvents, Said
from collectors.traces.timeline import ABSENT, KINDS, Call, Timeline

DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "BFloat16": "bfloat16",
    "Bool": "bool",
}
"""torch's short names of what the traces call dtypes; others, such as Float8_e4m3fn, are in small letters the same."""

NESTED_AT_MOST = 16
"""So many annotations of collectives, or fewer, begin within one before its launch."""


NO_SEQUENCE = 1 << 63
"""From here on a number of a collective is none: columns hold 64 bits with a sign, and no group counts so far."""

LARGEST_WORLD = 2**31
"""torch counts ranks in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A collective: the event's row, what it is, and its number in its process group where that is said."""

    row: int
    call: Call
    sequence: int = ABSENT


def collectives(raw: RawEvents, kind: NDArray[np.int8], groups: Mapping[str, tuple[int, ...]]) -> Iterator[Spoken]:
    """All events of communication. kind: of each event, an index in `KINDS`. groups: the ranks of process groups."""
    said = dict(raw.said)
    by_id: dict[int, Said] = {}
    for each in said.values():
        if each.external_id is not None:
            by_id[each.external_id] = _merged(each, by_id.get(each.external_id))
    callers = _Callers(raw, kind, said)
    for row in np.flatnonzero(kind == KINDS.index("communication")).tolist():
        own = said.get(row)
        if own is not None:
            own = _merged(own, by_id.get(own.external_id) if own.external_id is not None else None)
        caller = callers.of(row) if own is None else None
        words = said.get(caller) if own is None and caller is not None else own
        if words is not None:
            yield _spoken(row, words, raw.names[raw.name[row]], groups)
            continue
        at_host = row if caller is None else caller
        collective = _first_known(raw.names[raw.name[at_host]], raw.names[raw.name[row]])
        shape = int(raw.shape[at_host])
        given = None if shape == ABSENT else elements_of(raw.shapes[shape])
        yield Spoken(row=row, call=Call(collective=collective, given_elements=given))


def elements_of(shape: str) -> int | None:
    """How many elements the tensors have whose sizes these are, all together; None where it tells of none."""
    try:
        counts = list(_counts(msgspec.json.decode(shape)))
    except UNDECODABLE:
        return None
    return sum(counts) if counts else None


def _counts(sizes: object) -> Iterator[int]:
    if not isinstance(sizes, list) or not sizes:
        return
    if all(isinstance(size, int) for size in sizes):
        yield int(np.prod(sizes, dtype=object))
    else:
        for each in sizes:
            yield from _counts(each)


def _merged(one: Said, other: Said | None) -> Said:
    """The first, with the other's words where it has none."""
    if other is None:
        return one
    fields = one.__struct_fields__
    return Said(**{name: getattr(other, name) if getattr(one, name) is None else getattr(one, name) for name in fields})


def _first_known(*names: str | None) -> str:
    known = (collective_of(name) for name in names if name)
    return next((collective for collective in known if collective != OTHER), OTHER)


def _spoken(row: int, said: Said, name: str, groups: Mapping[str, tuple[int, ...]]) -> Spoken:
    group = said.group or None
    ranks = ranks_of(said.ranks) if said.ranks else ()
    if not ranks and group is not None:
        ranks = groups.get(group, ())
    return Spoken(
        row=row,
        call=Call(
            collective=_first_known(said.collective, name),
            group=group,
            ranks=ranks,
            dtype=None if not said.dtype else DTYPES.get(said.dtype, said.dtype.lower()),
            given_elements=said.given_elements,
            filled_elements=said.filled_elements,
            peer=_peer(said),
            group_size=_group_size(said),
        ),
        sequence=said.sequence if said.sequence is not None and 0 <= said.sequence < NO_SEQUENCE else ABSENT,
    )


def _peer(said: Said) -> int | None:
    """The other rank of a message; None where both ends are told, of which the rank itself is one."""
    told = [rank for rank in (said.source, said.destination) if rank is not None and rank >= 0]
    return told[0] if len(told) == 1 else None


def _group_size(said: Said) -> int | None:
    """How many ranks the process group has; None where the trace does not say, or says what no world has."""
    size = said.group_size
    return size if size is not None and 0 < size < LARGEST_WORLD else None


class _Callers:
    """The host's events that stand around the launch of a collective and tell which one it is."""

    def __init__(self, raw: RawEvents, kind: NDArray[np.int8], said: Mapping[int, Said]) -> None:
        self._raw = raw
        is_launch = (kind == KINDS.index("launch")) & (raw.correlation != ABSENT)
        is_wanted = (kind == KINDS.index("communication")) & (raw.correlation != ABSENT)
        rows = np.flatnonzero(is_launch & np.isin(raw.correlation, raw.correlation[is_wanted])).tolist()
        self._launches: dict[int, int] = dict(zip(raw.correlation[rows].tolist(), rows, strict=True))
        tells = [name == RECORD or ANNOTATION.match(name) is not None for name in raw.names]
        is_host = kind == KINDS.index("host")
        rows = np.flatnonzero(is_host & np.array([*tells, False], dtype=np.bool_)[raw.name]).tolist()
        by_thread: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: int(raw.start_ns[row])):
            if row in said or raw.names[raw.name[row]] != RECORD:
                by_thread[self._thread(row)].append(row)
        self._told = by_thread
        self._starts = {thread: raw.start_ns[rows].tolist() for thread, rows in by_thread.items()}

    def of(self, row: int) -> int | None:
        """The row of the event around this one's launch that says most; None where there is none."""
        launch = self._launches.get(int(self._raw.correlation[row]))
        if launch is None:
            return None
        thread, start_ns = self._thread(launch), int(self._raw.start_ns[launch])
        around = self._around(self._told.get(thread, ()), self._starts.get(thread, ()), start_ns)
        return max(around, key=lambda each: self._raw.names[self._raw.name[each]] == RECORD, default=None)

    def _around(self, rows: Sequence[int], starts_ns: Sequence[int], time_ns: int) -> Iterator[int]:
        """Those that last at the time, the innermost first."""
        last = bisect_right(starts_ns, time_ns)
        for row in reversed(rows[max(0, last - NESTED_AT_MOST) : last]):
            if time_ns < int(self._raw.start_ns[row]) + int(self._raw.duration_ns[row]):
                yield row

    def _thread(self, row: int) -> tuple[int, int]:
        return int(self._raw.process[row]), int(self._raw.thread[row])


# What gloo's events are: a trace says neither their process group nor their number, which the rank's own record does.
#
# gloo gives each process group two threads of its own, which take up its collectives in the order of their issue. So
# the events of a group are those of one or two threads, there are as many of each name as were issued, and none
# begins before its issue; where one way only of giving threads to groups fits, that is how it was.

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
