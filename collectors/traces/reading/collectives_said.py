"""What is known of each collective of a trace: from its own words, from the host's at its launch, from its name."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.calls import Call
from collectors.traces.names import ANNOTATION, OTHER, RECORD, collective_of
from collectors.traces.reading.raw_events import RawEvents, Said
from collectors.traces.reading.trace_about import ranks_of
from collectors.traces.reading.trace_events import UNDECODABLE
from collectors.traces.spans import ABSENT, KINDS

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
