"""Raw events of a trace as columns, before any rule assigns them a meaning; and the rules for all decoders.

A decoder takes a chunk, which is a complete JSON array of events as bytes, and returns its `RawEvents`, or None if it
is not sure of every event in it; then the next decoder is tried. The last one is written in Python. The results of all
decoders are equal in every column. The rules:

- An event of phase "X" whose category is in `CATEGORIES` is a row. Other categories are dropped, and listed in
  `unknown` unless they are in `NOT_KEPT`. An event of phase "i" with the name "[memory]" is a row of `allocations`;
  without "Addr" it is only counted. Other events whose phase is in `KNOWN_PHASES` (flows, counters, names of threads)
  are skipped; all other phases are listed in `unread_phases`.
- ts and dur are decimal microseconds with at most three decimals, and become nanoseconds without floating point.
- If an object has several numbers under the same key, the last counts.
- A decoder other than the last returns None for: a string with a backslash or a byte above 127 in a kept value, a
  number that is not written as digits with an optional sign and point, more than three decimals, a time or a number
  beyond int64, an event to keep without name, ts, dur, pid or tid or with a string as pid or tid, a value of another
  type than given here, the key "Input dims" (the spelling of "Input Dims" in 2021), and anything that is not JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.timeline import ABSENT, ALLOCATION_COLUMNS, NO_ALLOCATIONS, Allocations

CATEGORIES: tuple[str, ...] = (
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    # Runtime and driver calls of ROCm and others.
    "hip_runtime",
    "hip_driver",
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
)
"""Categories to keep; `RawEvents.category` is an index into these."""

ON_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"))
"""Categories whose process is a device and whose thread is one of its streams."""

AT_WORK = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset"))
"""Categories of work on a device, without waits."""

CALLS = tuple(number for number, name in enumerate(CATEGORIES) if name.endswith(("_runtime", "_driver")))
"""Categories of calls of a runtime or a driver, which launch work or wait for it."""

OF_2021 = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""Kineto's names of some categories in 2021, which only the last decoder supports."""

NOT_KEPT = frozenset(
    {
        "ac2g",
        "async_cpu_to_gpu",
        "async",
        "cpu_instant_event",
        "cuda_event",
        "cuda_profiler_range",
        "fwdbwd",
        "gpu_user_annotation",
        "overhead",
        "python_function",
        "Trace",
    }
)
"""Known categories that contain nothing we need."""


KNOWN_PHASES = "XiICMstfbnePSTpFNODVvRc()"
"""Letters of phases that are read, or known to contain nothing we need.

"B" (begin) and "E" (end) are missing: such pairs are spans, which are not read.
Source: Trace Event Format, of Chrome's tracing.
"""


class CollectiveArgs(msgspec.Struct, frozen=True, kw_only=True):
    """An event's args that describe its collective, with values as written; None if missing.

    source, destination: the ranks that a message comes from and goes to; torch writes only the other rank.
    external_id: shared by a kernel and the host's operator that launched it.
    """

    collective: str | None = msgspec.field(default=None, name="Collective name")
    dtype: str | None = None
    given_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    filled_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")
    source: int | None = msgspec.field(default=None, name="Src Rank")
    destination: int | None = msgspec.field(default=None, name="Dst Rank")
    sequence: int | None = msgspec.field(default=None, name="Seq")
    external_id: int | None = msgspec.field(default=None, name="External id")


decode_collective_args = msgspec.json.Decoder(CollectiveArgs).decode
"""Decode the text of an event's args.

Raises:
    msgspec.DecodeError: it is not a JSON object, or a value has another type.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEvents:
    """The rows of a chunk, in its order.

    names, shapes: distinct values in order of first appearance. name, shape: a row's index into these; a shape is the
    text of "Input Dims" as written, and the index is -1 if there is none.
    category: an index into `CATEGORIES`. start_ns, duration_ns: ts and dur, relative to the file's base time.
    process, thread: pid and tid. correlation: of args, -1 if absent.
    collective_args: (row, its args) for each row whose args have a "Collective name" that is not null; by row.
    allocations: time_ns as start_ns; address "Addr" modulo 2**64; change_bytes "Bytes"; allocated_bytes
    "Total Allocated", -1 if absent; device "Device Id" if "Device Type" is not 0, else -1; thread tid, -1 if it is not
    a number.
    without_address: the number of memory changes without "Addr". unknown: categories of phase "X" in no list here.
    unread_phases: phases that are not in `KNOWN_PHASES`.
    untimed: correlations of launches and work that are not among the rows because a decoder could not read them.
    misfits: the name of the argument, once for each value that was left out for its type or because it exceeds 64 bits.
    """

    names: tuple[str, ...]
    name: NDArray[np.int32]
    category: NDArray[np.int8]
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    correlation: NDArray[np.int64]
    shapes: tuple[str, ...]
    shape: NDArray[np.int32]
    collective_args: tuple[tuple[int, CollectiveArgs], ...] = ()
    allocations: Allocations = NO_ALLOCATIONS
    without_address: int = 0
    unknown: frozenset[str] = frozenset()
    unread_phases: frozenset[str] = frozenset()
    untimed: tuple[int, ...] = ()
    misfits: tuple[str, ...] = ()

    def at(self, rows: NDArray[np.bool_], changes: NDArray[np.bool_]) -> RawEvents:
        """Return only these rows and these changes of memory."""
        number = np.cumsum(rows) - 1  # The new row of each remaining event.
        columns = {name: getattr(self, name)[rows] for name in (*PLAIN_COLUMNS, "name", "shape")}
        return replace(
            self,
            collective_args=tuple((int(number[row]), args) for row, args in self.collective_args if rows[row]),
            allocations=self.allocations.at(changes),
            **columns,
        )


Decoder = Callable[[bytes | bytearray | memoryview], RawEvents | None]


# Joining the chunks.

PLAIN_COLUMNS = ("category", "start_ns", "duration_ns", "process", "thread", "correlation")
_DTYPES: dict[str, type] = {"category": np.int8, "name": np.int32, "shape": np.int32}
"""dtypes of columns; all others have int64."""


class ChunkJoiner:
    """Joins chunks as they arrive; `joined` returns the result. count: of kept events, including changes of memory."""

    def __init__(self) -> None:
        self.count = 0
        self._rows = 0
        self._names: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # A growing buffer per column: chunks that are stored until they are joined would be in memory twice.
        self._columns = {name: bytearray() for name in (*PLAIN_COLUMNS, "name", "shape")}
        self._allocations: list[Allocations] = []
        self._collective_args: list[tuple[int, CollectiveArgs]] = []
        self._without_address = 0
        self._unknown: set[str] = set()
        self._unread_phases: set[str] = set()
        self._untimed: list[int] = []
        self._misfits: list[str] = []

    def add(self, raw: RawEvents) -> None:
        """Append the events of a chunk."""
        columns = {name: getattr(raw, name) for name in PLAIN_COLUMNS}
        columns["name"] = _renumbered(raw.name, raw.names, self._names)
        columns["shape"] = _renumbered(raw.shape, raw.shapes, self._shapes)
        for name, column in columns.items():
            self._columns[name] += np.ascontiguousarray(column, dtype=_DTYPES.get(name, np.int64)).data
        if raw.allocations.time_ns.size:
            self._allocations.append(raw.allocations)
        self._collective_args.extend((self._rows + row, args) for row, args in raw.collective_args)
        self._without_address += raw.without_address
        self._unknown |= raw.unknown
        self._unread_phases |= raw.unread_phases
        self._untimed += raw.untimed
        self._misfits += raw.misfits
        self._rows += raw.name.size
        self.count += raw.name.size + raw.allocations.time_ns.size

    def joined(self) -> RawEvents:
        """Return all events, in writable columns; nothing can be added afterwards."""
        columns: dict[str, Any] = {
            name: np.frombuffer(buffer, dtype=_DTYPES.get(name, np.int64)) for name, buffer in self._columns.items()
        }
        chunks = self._allocations or [NO_ALLOCATIONS]
        allocations = {name: np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ALLOCATION_COLUMNS}
        return RawEvents(
            names=tuple(self._names),
            shapes=tuple(self._shapes),
            collective_args=tuple(self._collective_args),
            allocations=Allocations(**allocations),
            without_address=self._without_address,
            unknown=frozenset(self._unknown),
            unread_phases=frozenset(self._unread_phases),
            untimed=tuple(self._untimed),
            misfits=tuple(self._misfits),
            **columns,
        )


def _renumbered(number: NDArray[np.int32], texts: Sequence[str], all_texts: dict[str, int]) -> NDArray[np.int32]:
    """Map a chunk's indices into its texts to indices into `all_texts`, which grows; `ABSENT` stays `ABSENT`."""
    # The last entry is ABSENT, so that index -1 maps to itself.
    moved = np.array([*(all_texts.setdefault(text, len(all_texts)) for text in texts), ABSENT], dtype=np.int32)
    renumbered: NDArray[np.int32] = moved[number]
    return renumbered
