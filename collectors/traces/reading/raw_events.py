"""What a decoder makes of a chunk of a trace: its events as columns, before any rule says what they mean.

A decoder takes a chunk, which is one whole JSON array of events as bytes, and gives its `RawEvents`, or None where it
is not sure of every event in it; then the next decoder is asked, and the last is written in Python. Decoders agree in
every column of what they give. What they all do:

- An event of phase "X" whose category is in `CATEGORIES` is a row; other categories are not kept, and those that are
  not in `NOT_KEPT` either are named in `unknown`. An event of phase "i" called "[memory]" is a row of `allocations`;
  without "Addr" it is only counted. Other events whose phase is in `KNOWN_PHASES` (flows, counters, names of threads)
  are passed over, and the phases of those that then remain are named in `unread_phases`.
- ts and dur are decimal microseconds of at most three decimals and become nanoseconds without a floating point between.
- Of numbers written twice under one key of an object the last counts.
- A decoder other than the last says None to: a string with a backslash or a byte above 127 in what it keeps, a number
  that is written otherwise than as digits with a sign and a point, more than three decimals, a time or a number beyond
  int64, an event that it keeps without name, ts, dur, pid or tid or with a string as pid or tid, a value of another
  type than said here, the key "Input dims" (as "Input Dims" was written in 2021), and whatever is not JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.traces.timeline import ABSENT, NO_ALLOCATIONS, Allocations

CATEGORIES: tuple[str, ...] = (
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    # ROCm's and others' calls of the runtime and the driver.
    "hip_runtime",
    "hip_driver",
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
)
"""Those that are kept; `RawEvents.category` is an index here."""

ON_DEVICE = tuple(CATEGORIES.index(name) for name in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"))
"""Those whose process is a device, and whose thread a stream of it."""

OF_2021 = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""What kineto called some of them at first; only the last decoder knows these, and to others they are unknown."""

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
"""Those that are known and hold nothing that is read."""


KNOWN_PHASES = "XiICMstfbnePSTpFNODVvRc()"
"""The letters of phases that are read or hold nothing that is read.

Those of what begins ("B") and what ends ("E") are not among them: such pairs are spans, and are not read.
Source: Trace Event Format, of Chrome's tracing.
"""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the args of an event say of its collective, with the values as they are written; None where they do not.

    source, destination: of a message, the rank that it comes from, or goes to; torch says only which the other one is.
    external_id: joins a kernel with the operator of the host that called for it.
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


said_of = msgspec.json.Decoder(Said).decode
"""What the text of an event's args says.

Raises:
    msgspec.DecodeError: it is no JSON object, or a value is of another type.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEvents:
    """The rows of one chunk, in its order.

    names, shapes: each once, in the order in which rows first bear them. name, shape: a row's index there; a shape is
    the text of "Input Dims", as it is written, and -1 where there is none.
    category: an index in `CATEGORIES`. start_ns, duration_ns: ts and dur; as in the file, so relative to its base time.
    process, thread: pid and tid. correlation: of args, and -1 where it is not there.
    said: of each row whose args have a "Collective name" that is not null: its number, and what its args say; by row.
    allocations: time_ns as start_ns; address "Addr" modulo 2**64; change_bytes "Bytes"; allocated_bytes
    "Total Allocated", -1 where it is not there; device "Device Id" where "Device Type" is not 0, else -1; thread
    tid, -1 where it is no number.
    without_address: how many changes of memory have no "Addr". unknown: categories of phase "X" that no list knows.
    unread_phases: those that are not in `KNOWN_PHASES`.
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
    said: tuple[tuple[int, Said], ...]
    allocations: Allocations
    without_address: int
    unknown: frozenset[str]
    unread_phases: frozenset[str]


Decoder = Callable[[bytes | bytearray | memoryview], RawEvents | None]


# The events of all chunks as one, with each text kept once.

PLAIN_COLUMNS = ("category", "start_ns", "duration_ns", "process", "thread", "correlation")
ALLOCATION_COLUMNS = ("time_ns", "address", "change_bytes", "allocated_bytes", "device", "thread")


class Rows:
    """Chunks as they come; `whole` is all of them. count: of events that are kept, changes of memory among them."""

    def __init__(self) -> None:
        self.count = 0
        self._rows = 0
        self._names: dict[str, int] = {}
        self._shapes: dict[str, int] = {}
        # One growing buffer a column: chunks that are kept until they are joined would be there twice.
        self._columns = {name: bytearray() for name in (*PLAIN_COLUMNS, "name", "shape")}
        self._allocations: list[Allocations] = []
        self._said: list[tuple[int, Said]] = []
        self._without_address = 0
        self._unknown: set[str] = set()
        self._unread_phases: set[str] = set()

    def add(self, raw: RawEvents) -> None:
        """Put the events of a chunk behind those of earlier ones."""
        for name in PLAIN_COLUMNS:
            self._put(name, getattr(raw, name))
        self._put("name", _renumbered(raw.name, raw.names, self._names))
        self._put("shape", _renumbered(raw.shape, raw.shapes, self._shapes))
        self._allocations.append(raw.allocations)
        self._said.extend((self._rows + row, said) for row, said in raw.said)
        self._without_address += raw.without_address
        self._unknown |= raw.unknown
        self._unread_phases |= raw.unread_phases
        self._rows += raw.name.size
        self.count += raw.name.size + raw.allocations.time_ns.size

    def whole(self) -> RawEvents:
        """All events as one, in columns that may be written to; nothing can be added any more."""
        columns: dict[str, Any] = {
            name: np.frombuffer(buffer, dtype=_dtype(name)) for name, buffer in self._columns.items()
        }
        return RawEvents(
            names=tuple(self._names),
            shapes=tuple(self._shapes),
            said=tuple(self._said),
            allocations=_joined([part for part in self._allocations if part.time_ns.size]),
            without_address=self._without_address,
            unknown=frozenset(self._unknown),
            unread_phases=frozenset(self._unread_phases),
            **columns,
        )

    def _put(self, name: str, column: NDArray[Any]) -> None:
        self._columns[name] += np.ascontiguousarray(column, dtype=_dtype(name)).data


_DTYPES: dict[str, type] = {"category": np.int8, "name": np.int32, "shape": np.int32}


def _dtype(name: str) -> type:
    return _DTYPES.get(name, np.int64)


def _renumbered(number: NDArray[np.int32], texts: Sequence[str], all_texts: dict[str, int]) -> NDArray[np.int32]:
    """The numbers of a chunk's texts as those of all; what has none keeps having none."""
    moved = np.array([*(all_texts.setdefault(text, len(all_texts)) for text in texts), ABSENT], dtype=np.int32)
    renumbered: NDArray[np.int32] = moved[number]
    return renumbered


def _joined(parts: Sequence[Allocations]) -> Allocations:
    if not parts:
        return NO_ALLOCATIONS
    return Allocations(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in ALLOCATION_COLUMNS})
