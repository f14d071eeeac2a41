"""Timeline: the spans of a rank's trace as numpy columns, which can be saved and then read without the trace.

Times are integer nanoseconds of Unix time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, TypeVar, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.files import drafted, open_to_read
from collectors.traces.intervals import Times, intersection, length_ns, union


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """Allocations and frees of memory in a rank's trace: one row each, by time.

    time_ns: Unix time. address: of the block. change_bytes: positive if allocated, negative if freed.
    allocated_bytes: the allocator's total after the change; -1 if the trace does not have it.
    device: the GPU's index; -1 for the host's memory.
    thread: the host thread that made the change, numbered like a Timeline's streams; -1 if the trace does not name it.
    """

    time_ns: NDArray[np.int64]
    address: NDArray[np.uint64]
    change_bytes: NDArray[np.int64]
    allocated_bytes: NDArray[np.int64]
    device: NDArray[np.int16]
    thread: NDArray[np.int64]

    def at(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Allocations:
        """Return the chosen rows, in the given order."""
        return Allocations(**{name: getattr(self, name)[rows] for name in ALLOCATION_COLUMNS})


ALLOCATION_COLUMNS = tuple(field.name for field in fields(Allocations))

NO_ALLOCATIONS = Allocations(
    time_ns=np.empty(0, dtype=np.int64),
    address=np.empty(0, dtype=np.uint64),
    change_bytes=np.empty(0, dtype=np.int64),
    allocated_bytes=np.empty(0, dtype=np.int64),
    device=np.empty(0, dtype=np.int16),
    thread=np.empty(0, dtype=np.int64),
)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's description of a collective; equal calls share a Call.

    Fields that the trace does not have are None or empty.
    collective: a uniform name, for example all_reduce, whatever name the trace uses.
    group: the name of the process group, equal on all of its ranks. ranks: its ranks. group_size: their number, which
    a trace may have without the ranks.
    dtype: of the elements, by torch's short name, for example bfloat16.
    given_elements, filled_elements: elements of this rank's input and output.
    peer: the other rank of a message.
    """

    collective: str
    group: str | None = None
    ranks: tuple[int, ...] = ()
    dtype: str | None = None
    given_elements: int | None = None
    filled_elements: int | None = None
    peer: int | None = None
    group_size: int | None = None


SpanKind = Literal["compute", "communication", "copy", "host", "step", "launch", "wait"]
KINDS: tuple[SpanKind, ...] = get_args(SpanKind)
"""host: operators and annotations. launch: driver calls. wait: a stream, or the host, waits for another stream."""

ABSENT = -1
"""Marks a missing value in a column; it is never a real value."""

STREAM_BITS = 32
"""Bits of a stream's number; if a trace has several devices, the bits above are the device's number."""

MOST_DEVICES = 1 << 10
"""Upper bits from this value on belong to a thread, not a device: some systems number threads by addresses."""

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """A trace's information on its rank; fields that it does not have are None or empty.

    groups: the ranks of each process group, by its name.
    left_out: parts of the trace that could not be used, one line each.
    is_cut: the file ends before its list of events does. Events are in no order of time, so any may be missing.
    untimed: correlations of launches and device work with unknown times.
    clocks_differ: times of the host and the device are not comparable.
    decided_by: for each name of a kernel or copy that communicates, the rule that classified it.
    """

    world_size: int | None = None
    device_name: str | None = None
    host: str | None = None
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    is_cut: bool = False
    untimed: tuple[int, ...] = ()
    clocks_differ: bool = False
    decided_by: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All spans of a rank, sorted by start; if two start together, the longer comes first.

    names, calls, shapes: distinct values. name, call, shape: for each span an index into these; kind: into `KINDS`.
    start_ns, end_ns: Unix time. stream: of the device, or a thread of the host; if a trace has several devices, the
    bits above a stream's 32 are the device's number. correlation: shared by a launch and its work on the device.
    call, sequence: of communication only; the sequence is its number in its process group. shape: of an operator only,
    the sizes of its inputs as the trace writes them. Missing values are `ABSENT`.
    is_device: whether computation, communication and copies ran on a device, not on the host.
    """

    rank: int
    is_device: bool
    names: tuple[str, ...]
    name: NDArray[np.int32]
    kind: NDArray[np.int8]
    start_ns: Times
    end_ns: Times
    stream: NDArray[np.int64]
    correlation: NDArray[np.int64]
    calls: tuple[Call, ...]
    call: NDArray[np.int32]
    sequence: NDArray[np.int64]
    shapes: tuple[str, ...]
    shape: NDArray[np.int32]
    allocations: Allocations = NO_ALLOCATIONS
    about: About = field(default_factory=About)

    def of_kind(self, kind: SpanKind) -> NDArray[np.bool_]:
        """Return for each span whether it is of this kind."""
        chosen: NDArray[np.bool_] = self.kind == KINDS.index(kind)
        return chosen

    def intervals(self, kind: SpanKind) -> Times:
        """Return the time in which at least one span of the kind ran."""
        chosen = self.of_kind(kind)
        return union(self.start_ns[chosen], self.end_ns[chosen])

    def busy_ns(self, kind: SpanKind) -> int:
        """Return how long at least one span of the kind ran; overlapping spans count once."""
        return length_ns(self.intervals(kind))

    def overlap_ns(self, kind: SpanKind, other: SpanKind) -> int:
        """Return how long spans of both kinds ran at once."""
        return length_ns(intersection(self.intervals(kind), self.intervals(other)))

    def steps(self) -> list[tuple[int, int]]:
        """Return the start and end of each marked step, in order."""
        chosen = self.of_kind("step")
        return [(int(start), int(end)) for start, end in zip(self.start_ns[chosen], self.end_ns[chosen], strict=True)]

    def moved(self, offset_ns: int) -> Timeline:
        """Return the Timeline with all times shifted by the offset."""
        return replace(
            self,
            start_ns=self.start_ns + offset_ns,
            end_ns=self.end_ns + offset_ns,
            allocations=replace(self.allocations, time_ns=self.allocations.time_ns + offset_ns),
        )


def stream_name(stream: int) -> int | str:
    """Return a stream's number, with its device if the trace has several: "7 of GPU 3"."""
    device, number = divmod(stream, 1 << STREAM_BITS)
    return f"{number} of GPU {device}" if 0 < device < MOST_DEVICES else stream


# Numbering: replaces a column of repeated values by its distinct values and indices into them.


class _Numbers(dict[T, int]):
    """Numbers distinct keys in the order in which they are first looked up."""

    def __missing__(self, key: T) -> int:
        self[key] = number = len(self)
        return number


def numbered(things: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Return the distinct things in order of first appearance, and each thing's index among them."""
    numbers = _Numbers[T]()
    number = np.fromiter(map(numbers.__getitem__, things), dtype=np.int32, count=len(things))
    return tuple(numbers), number


def numbered_except(nothing: T, things: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """Like `numbered`, but leave out things equal to `nothing`, which get the number `ABSENT`."""
    distinct, number = numbered(things)
    if nothing not in distinct:
        return distinct, number
    absent = distinct.index(nothing)
    moved = np.arange(len(distinct), dtype=np.int32)
    moved[absent:] -= 1
    moved[absent] = ABSENT
    return tuple(thing for thing in distinct if thing != nothing), moved[number]


# The file of a Timeline: compressed columns, with a schema version.

Field = TypeVar("Field")

SCHEMA_VERSION = 2
COLUMNS = ("name", "kind", "start_ns", "end_ns", "stream", "correlation", "call", "sequence", "shape")
OF_VERSION_1 = ("name", "kind", "start_ns", "end_ns", "stream")


def save(timeline: Timeline, path: Path) -> None:
    columns = {name: getattr(timeline, name) for name in COLUMNS}
    columns |= {f"allocations_{name}": getattr(timeline.allocations, name) for name in ALLOCATION_COLUMNS}
    with drafted(path) as file:
        np.savez_compressed(
            file,
            schema_version=np.int64(SCHEMA_VERSION),
            rank=np.int64(timeline.rank),
            is_device=np.bool_(timeline.is_device),
            names=_bytes(timeline.names),
            calls=_bytes(timeline.calls),
            shapes=_bytes(timeline.shapes),
            about=_bytes(asdict(timeline.about)),
            **columns,
        )


def load(path: Path) -> Timeline:
    """Return the Timeline from a file that `save` wrote, also in an older version.

    Raises:
        ValueError: a newer version wrote it.
    """
    # Open the file here, since numpy does not close a file that is not an archive.
    with open_to_read(path) as opened, np.load(opened, allow_pickle=False) as file:
        version = int(file["schema_version"])
        if version > SCHEMA_VERSION:
            raise ValueError(
                f"{path}: schema version {version} is newer than {SCHEMA_VERSION}, which this program reads"
            )
        rank, is_device = int(file["rank"]), bool(file["is_device"])
        if version == 1:
            names = tuple(str(name) for name in file["names"])
            columns = {name: file[name] for name in OF_VERSION_1}
            absent = np.full(columns["name"].size, ABSENT, dtype=np.int64)
            return Timeline(
                rank=rank,
                is_device=is_device,
                names=names,
                **columns,
                correlation=absent,
                calls=(),
                call=absent.astype(np.int32),
                sequence=absent,
                shapes=(),
                shape=absent.astype(np.int32),
            )
        allocations = {name: file[key] for name in ALLOCATION_COLUMNS if (key := f"allocations_{name}") in file}
        no_threads = np.full(allocations["time_ns"].size, ABSENT, dtype=np.int64)  # Older files have no threads.
        return Timeline(
            rank=rank,
            is_device=is_device,
            names=_decoded(file["names"], tuple[str, ...]),
            calls=_decoded(file["calls"], tuple[Call, ...]),
            shapes=_decoded(file["shapes"], tuple[str, ...]),
            about=_decoded(file["about"], About),
            **{name: file[name] for name in COLUMNS},
            allocations=Allocations(**{"thread": no_threads, **allocations}),
        )


def _bytes(value: object) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(msgspec.json.encode(value), dtype=np.uint8)


def _decoded(column: np.ndarray[tuple[int], np.dtype[np.uint8]], type_: type[Field]) -> Field:
    return msgspec.json.decode(column.tobytes(), type=type_)
