"""Arguments of each collective in a trace: its name, process group, sequence number, dtype and sizes.

They come from the event itself, or else from the host's event around its launch, or else from its name. gloo's events
have no arguments, so theirs come from the rank's Flight Recorder.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import ANNOTATION, GLOO, OTHER, RECORD, collective_of
from collectors.traces.reading.decoders import UNDECODABLE
from collectors.traces.reading.metadata import ranks_of
from collectors.traces.reading.raw_events import CollectiveArgs, RawEvents
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
"""torch's short names of dtypes, by those in a trace; others, for example Float8_e4m3fn, only need lower case."""

NESTED_AT_MOST = 16
"""Maximum number of annotations that begin between the start of a collective's annotation and the launch inside it."""


NO_SEQUENCE = 1 << 63
"""Sequence numbers from here on are ignored: columns have signed 64 bits, and no group counts that far."""

LARGEST_WORLD = 2**31
"""No world has this many ranks: torch counts ranks in 32 bits."""

MOST_ELEMENTS = 2**48
"""No tensor has this many elements: they would take hundreds of terabytes."""

RANGES = {
    "given_elements": range(MOST_ELEMENTS),
    "filled_elements": range(MOST_ELEMENTS),
    "group_size": range(1, LARGEST_WORLD),
    "sequence": range(NO_SEQUENCE),
}
"""The plausible values of each attribute of `CollectiveArgs`; -1 in a trace means that there is none."""

_KEYS = {field.name: field.encode_name for field in msgspec.structs.fields(CollectiveArgs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveEvent:
    """The known facts about a collective. row: of its event. sequence: its number in its process group, or `ABSENT`."""

    row: int
    call: Call
    sequence: int = ABSENT


def drop_impossible_args(raw: RawEvents) -> tuple[RawEvents, tuple[str, ...]]:
    """Return the events without impossible arguments, and a line for each argument that lost values."""
    lost = Counter(raw.misfits)
    sound: list[tuple[int, CollectiveArgs]] = []
    for row, args in raw.collective_args:
        wrong = [
            name
            for name, possible in RANGES.items()
            if (value := getattr(args, name)) is not None and value not in possible
        ]
        lost.update(_KEYS[name] for name in wrong if getattr(args, name) != ABSENT)
        sound.append((row, msgspec.structs.replace(args, **dict.fromkeys(wrong)) if wrong else args))
    lines = tuple(
        f'{count} value{"s" * (count > 1)} of "{key}" of another type than it has, or out of its range'
        for key, count in sorted(lost.items())
    )
    return replace(raw, collective_args=tuple(sound)), lines


def collectives(
    raw: RawEvents, kind: NDArray[np.int8], groups: Mapping[str, tuple[int, ...]]
) -> Iterator[CollectiveEvent]:
    """Yield all events of communication. raw: without impossible arguments.

    kind: for each event an index into `KINDS`. groups: ranks by process group.
    """
    args_of = dict(raw.collective_args)
    by_id: dict[int, CollectiveArgs] = {}  # By the external id that a kernel shares with the host's operator.
    for each in args_of.values():
        if each.external_id is not None:
            by_id[each.external_id] = _merged(each, by_id.get(each.external_id))
    callers = _Callers(raw, kind, args_of.keys())
    for row in np.flatnonzero(kind == KINDS.index("communication")).tolist():
        name, caller = raw.names[raw.name[row]], None
        args = args_of.get(row)
        if args is not None and args.external_id is not None:
            args = _merged(args, by_id.get(args.external_id))
        elif args is None and (caller := callers.of(row)) is not None:
            args = args_of.get(caller)
        if args is not None:
            yield _described(row, args, name, groups)
            continue
        at_host = row if caller is None else caller
        shape = int(raw.shape[at_host])
        elements = None if shape == ABSENT else elements_of(raw.shapes[shape])
        collective = _first_known(raw.names[raw.name[at_host]], name)
        yield CollectiveEvent(row=row, call=Call(collective=collective, given_elements=elements))


def elements_of(shape: str) -> int | None:
    """Return the number of elements in all tensors of a JSON list of sizes; None if it has no sizes.

    Example: "[[2, 3], [4]]" gives 10.
    """
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


def _merged(first: CollectiveArgs, other: CollectiveArgs | None) -> CollectiveArgs:
    """Return the first, with missing values taken from the other."""
    if other is None:
        return first
    fields = first.__struct_fields__
    return CollectiveArgs(
        **{name: getattr(other, name) if getattr(first, name) is None else getattr(first, name) for name in fields}
    )


def _first_known(*names: str | None) -> str:
    known = (collective_of(name) for name in names if name)
    return next((collective for collective in known if collective != OTHER), OTHER)


def _described(row: int, args: CollectiveArgs, name: str, groups: Mapping[str, tuple[int, ...]]) -> CollectiveEvent:
    """Return the event for these args. name: of the event. groups: ranks by process group, if the args have none."""
    ranks = ranks_of(args.ranks) if args.ranks else ()
    # If both ends of a message are given, its peer is unknown, since either may be this rank.
    ends = [rank for rank in (args.source, args.destination) if rank is not None and rank >= 0]
    return CollectiveEvent(
        row=row,
        call=Call(
            collective=_first_known(args.collective, name),
            group=args.group or None,
            ranks=ranks or (groups.get(args.group, ()) if args.group else ()),
            dtype=None if not args.dtype else DTYPES.get(args.dtype, args.dtype.lower()),
            given_elements=args.given_elements,
            filled_elements=args.filled_elements,
            peer=ends[0] if len(ends) == 1 else None,
            group_size=args.group_size,
        ),
        sequence=ABSENT if args.sequence is None else args.sequence,
    )


class _Callers:
    """Finds the host's event that surrounds a collective's launch and describes the collective."""

    def __init__(self, raw: RawEvents, kind: NDArray[np.int8], with_args: Collection[int]) -> None:
        self._raw = raw
        # Launches of communication, by correlation.
        is_launch = (kind == KINDS.index("launch")) & (raw.correlation != ABSENT)
        is_communication = (kind == KINDS.index("communication")) & (raw.correlation != ABSENT)
        rows = np.flatnonzero(is_launch & np.isin(raw.correlation, raw.correlation[is_communication])).tolist()
        self._launches: dict[int, int] = dict(zip(raw.correlation[rows].tolist(), rows, strict=True))
        # Host events that describe a collective, by thread and start; a RECORD counts only if it has arguments.
        describes = [name == RECORD or ANNOTATION.match(name) is not None for name in raw.names]
        is_host = kind == KINDS.index("host")
        rows = np.flatnonzero(is_host & np.array([*describes, False], dtype=np.bool_)[raw.name]).tolist()
        self._by_thread: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: int(raw.start_ns[row])):
            if row in with_args or raw.names[raw.name[row]] != RECORD:
                self._by_thread[self._thread(row)].append(row)
        self._starts_ns = {thread: raw.start_ns[rows].tolist() for thread, rows in self._by_thread.items()}

    def of(self, row: int) -> int | None:
        """Return the row of the innermost event around this event's launch, preferably a RECORD; None without one."""
        raw = self._raw
        launch = self._launches.get(int(raw.correlation[row]))
        if launch is None or (thread := self._thread(launch)) not in self._by_thread:
            return None
        launch_ns = int(raw.start_ns[launch])
        last = bisect_right(self._starts_ns[thread], launch_ns)
        # Innermost first: of nested events, it starts last.
        around = [
            each
            for each in reversed(self._by_thread[thread][max(0, last - NESTED_AT_MOST) : last])
            if launch_ns < int(raw.start_ns[each]) + int(raw.duration_ns[each])
        ]
        return max(around, key=lambda each: raw.names[raw.name[each]] == RECORD, default=None)

    def _thread(self, row: int) -> tuple[int, int]:
        return int(self._raw.process[row]), int(self._raw.thread[row])


# gloo: a trace has neither the process group nor the sequence number of its events; the Flight Recorder does.
#
# gloo has two threads for each process group, which execute its collectives in the order of issue. So the events of a
# group are those of one or two threads, with as many of each name as were issued, and none begins before its issue. If
# a single assignment of threads to groups meets all this, it is the true one.

CLOCKS_APART_NS = 100_000
"""Tolerance between clocks: the profiler reads a different clock than the record, and scales it to Unix time itself."""

_Threads: TypeAlias = frozenset[int]
_Group: TypeAlias = tuple[str | None, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A collective, or a batch of messages issued together, from the rank's record (its Flight Recorder).

    event: its name in the profiler. created_ns: Unix time of its issue. sequence: its number in its process group; None
    if the record lacks it, and for messages.
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
    """Return the Timeline with the arguments of gloo's events filled in, and why others are absent.

    issued: all collectives that the rank issued during the trace, in order. Messages are in no record. Two with the
    same name may be swapped if a group's two threads start them within microseconds of each other.
    """
    recorded = Counter(record.event for record in issued)
    events = []
    for row in np.flatnonzero(timeline.of_kind("communication")).tolist():
        name = timeline.names[timeline.name[row]]
        if name.startswith(GLOO) and name in recorded:
            start_ns, thread = int(timeline.start_ns[row]), int(timeline.stream[row])
            events.append(_Event(row=row, name=name, start_ns=start_ns, thread=thread))
    traced = Counter(event.name for event in events)
    notes = tuple(
        f"process groups and numbers of {name} are absent: {traced[name]} of its events were traced, and the Flight"
        f" Recorder has {count}"
        for name, count in sorted(recorded.items())
        if traced[name] != count
    )
    events = [event for event in events if traced[event.name] == recorded[event.name]]
    by_group: dict[_Group, list[Issued]] = defaultdict(list)
    for record in issued:
        if traced[record.event] == recorded[record.event]:
            by_group[record.call.group, record.call.ranks].append(record)
    ways = _only_way(by_group, events)
    if ways is None:
        groups = "the process group" if len(by_group) == 1 else f"which of {len(by_group)} process groups"
        return timeline, (
            *notes,
            f"process groups and numbers of {len(events)} collectives are absent: their events do not tell which of"
            f" gloo's threads serve {groups}",
        )
    return replace_calls(timeline, {row: record for pairs in ways for row, record in pairs}), notes


def _only_way(
    by_group: Mapping[_Group, Sequence[Issued]], events: Sequence[_Event]
) -> list[list[tuple[int, Issued]]] | None:
    """Return (row, record) pairs of each group if exactly one assignment of threads to groups fits; else None."""
    threads = sorted({event.thread for event in events})
    # For each group, the sets of one or two threads whose events fit it, with the resulting pairs.
    fitting = []
    for issued in by_group.values():
        pairs = {}
        for chosen in map(frozenset, (*combinations(threads, 1), *combinations(threads, 2))):
            if matching := _paired(issued, [event for event in events if event.thread in chosen]):
                pairs[chosen] = matching
        fitting.append(pairs)
    fitting.sort(key=len)
    # Stop at the second way: the true one is then unknown.
    ways = _ways(fitting, frozenset(threads))
    way = next(ways, None)
    if way is None or next(ways, None) is not None:
        return None
    return [pairs[chosen] for pairs, chosen in zip(fitting, way, strict=True)]


def _ways(fitting: Sequence[Mapping[_Threads, object]], free: _Threads) -> Iterator[list[_Threads]]:
    """Yield each assignment of threads to the groups that uses every thread exactly once.

    Example: fitting sets [{1}], [{1}, {2, 3}] and threads {1, 2, 3} give a single way, [{1}, {2, 3}].
    """
    if not fitting:
        if not free:
            yield []
        return
    for chosen in fitting[0]:
        if chosen <= free:
            for rest in _ways(fitting[1:], free - chosen):
                yield [chosen, *rest]


def _paired(issued: Iterable[Issued], events: Iterable[_Event]) -> list[tuple[int, Issued]] | None:
    """Pair events with records, in order for each name; None if counts differ or an event begins before its issue."""
    by_name: dict[str, list[Issued]] = defaultdict(list)
    for record in issued:
        by_name[record.event].append(record)
    traced: dict[str, list[_Event]] = defaultdict(list)
    for event in events:
        traced[event.name].append(event)
    if {name: len(rows) for name, rows in traced.items()} != {name: len(records) for name, records in by_name.items()}:
        return None
    pairs = [
        (event, record)
        for name, records in by_name.items()
        for event, record in zip(traced[name], records, strict=True)
    ]
    if any(event.start_ns + CLOCKS_APART_NS < record.created_ns for event, record in pairs):
        return None
    return [(event.row, record) for event, record in pairs]


def replace_calls(timeline: Timeline, records: Mapping[int, Issued]) -> Timeline:
    """Return the Timeline with the calls and sequence numbers of these rows replaced."""
    numbers: dict[Call, int] = {}
    call = np.full(timeline.call.size, ABSENT, dtype=np.int32)
    sequence = timeline.sequence.copy()
    for row in np.flatnonzero(timeline.of_kind("communication")).tolist():
        if row in records:
            its: Call | None = records[row].call
            number = records[row].sequence
            sequence[row] = ABSENT if number is None else number
        else:
            its = None if timeline.call[row] == ABSENT else timeline.calls[timeline.call[row]]
        if its is not None:
            call[row] = numbers.setdefault(its, len(numbers))
    return replace(timeline, calls=tuple(numbers), call=call, sequence=sequence)
