"""Memory of a rank over one step, by category, from the allocations and frees that torch's profiler records.

Works on any device. A block's category is the state (parameters, gradients, optimizer) whose tensors lie in it after
the step; otherwise it follows from the phase that allocated it, and whether it outlived that phase. So no tensors are
tracked, and compiled or sharded operators hide nothing.
The profiler does not record frees by threads of other libraries, for example gloo's. Such a block counts until its
address is allocated again, so the curve may then be too high.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch._C._profiler import _EventType, _ExtraFields_Allocation
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.files import replace_file
from collectors.metrics.metric import Sample
from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from collectors.rank.memory import StateTensors, local_storage
from collectors.rank.profiler import recording

# The memory curve: bytes held over one step, by category.

CATEGORIES = ("parameters", "optimizer", "gradients", "activations", "temporary", "other")


class CannotSave(RuntimeError):
    """The file cannot be written; the message says where, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Bytes held by category over time.

    times_ns: (moments,) int64, ascending, Unix time.
    held_bytes: (moments, categories) int64, bytes held from that moment to the next; columns as in `CATEGORIES`.
    """

    times_ns: NDArray[np.int64]
    held_bytes: NDArray[np.int64]

    def peak(self) -> dict[str, int]:
        """Return the bytes by category and in total at the first moment of the peak, without empty categories."""
        if not self.times_ns.size:
            return {}
        most = self.held_bytes[int(np.argmax(self.held_bytes.sum(axis=1)))]
        sizes = {name: int(size) for name, size in zip(CATEGORIES, most, strict=True) if size}
        return {**sizes, "total": sum(sizes.values())}

    def samples(self) -> list[Sample]:
        return [TIMELINE_PEAK_BYTES.at(size_bytes, category=name) for name, size_bytes in self.peak().items()]

    def save(self, path: Path) -> None:
        """Write the curve as a compressed trace of counters, which Perfetto can draw.

        Raises:
            CannotSave: the file cannot be written.
        Source: Trace Event Format, Google, counter events.
        """
        begins_ns = int(self.times_ns[0]) if self.times_ns.size else 0
        events = [
            {
                "ph": "C",
                "pid": 1,
                "name": "memory bytes",
                "ts": (time_ns - begins_ns) / 1e3,
                "args": dict(zip(CATEGORIES, sizes, strict=True)),
            }
            for time_ns, sizes in zip(self.times_ns.tolist(), self.held_bytes.tolist(), strict=True)
        ]
        trace = {"displayTimeUnit": "ns", "otherData": {"begins_ns": str(begins_ns)}, "traceEvents": events}
        try:
            replace_file(path, gzip.compress(msgspec.json.encode(trace)))
        except OSError as error:
            raise CannotSave(f"{path} cannot be written: {error.strerror}") from error


def added_up(deltas: Iterable[tuple[int, str, int]]) -> MemoryCurve:
    """Return the curve for changes in order: (time_ns, category, bytes added or, if negative, freed).

    Example: (5, "other", 8), (5, "gradients", 2), (9, "other", -8) gives two moments, 5 and 9, since changes at the
    same moment are combined. They hold 8 and 0 bytes of other, and both hold 2 bytes of gradients.
    """
    rows = list(deltas)
    # One row for each change, with its bytes in the column of its category.
    times_ns = np.array([time_ns for time_ns, _, _ in rows], np.int64)
    grown = np.zeros((len(rows), len(CATEGORIES)), np.int64)
    grown[np.arange(len(rows)), [CATEGORIES.index(category) for _, category, _ in rows]] = [size for *_, size in rows]
    # The running sums after the last change of each moment.
    is_last_of_moment = np.append(times_ns[1:] != times_ns[:-1], np.ones(min(1, len(rows)), bool))
    return MemoryCurve(times_ns=times_ns[is_last_of_moment], held_bytes=grown.cumsum(axis=0)[is_last_of_moment])


# The history of CUDA's allocator over one step: each block, with the stack that allocated it.
# No other allocator has one. pytorch.org/memory_viz draws it.

ENTRIES = 200_000
"""Maximum number of events to keep, the newest; each takes a few kilobytes of host memory."""


class Recorder(Protocol):
    """Records a history of blocks while it is on."""

    def start(self) -> None:
        """Begin to record each allocation and each free."""

    def save(self, path: Path) -> None:
        """Write the history, and all currently allocated blocks."""

    def stop(self) -> None:
        """Stop recording and discard the history."""


class CudaRecorder:
    """The recorder of CUDA's allocator."""

    def start(self) -> None:
        """See `Recorder.start`. Records Python stacks only, which contain the workload's line."""
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")

    def save(self, path: Path) -> None:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)


def save_history(run_step: Callable[[], object], path: Path, recorder: Recorder) -> None:
    """Run a step and save the history of its blocks. This step must not be measured; later ones may be.

    Raises:
        CannotSave: the file cannot be written.
    """
    recorder.start()
    try:
        run_step()
        try:
            recorder.save(path)
        except OSError as error:
            raise CannotSave(f"{path} cannot be written: {error.strerror}") from error
    finally:
        recorder.stop()


PHASE = "observatory phase "
"""Prefix of the annotation of a phase; the phase's name follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockChange:
    """A block was allocated, or freed if size_bytes is negative."""

    time_ns: int
    address: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A phase of the step."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A storage with tensors of the training state. part: parameters, gradients or optimizer."""

    part: str
    size_bytes: int


def mark_phase(name: str) -> AbstractContextManager[object]:
    """Return a context that marks a phase of the recorded step."""
    return record_function(f"{PHASE}{name}")


def record_curve(
    run_step: Callable[[], object], device: torch.device, states: Callable[[], StateTensors]
) -> MemoryCurve:
    """Run a step and return its memory curve. The step is slow and must not be measured.

    run_step: marks its phases with `mark_phase`.
    states: returns the training state of this rank; called before the step and after it.
    """
    before = _storages(states(), device)
    # CPU suffices: the allocators of all devices report to the host.
    profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording(profiled):
        run_step()
    after = _storages(states(), device)
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    changes: list[BlockChange] = []
    phases: list[Span] = []
    events = list(profiled.profiler.kineto_results.experimental_event_tree())
    while events:  # Starts with the roots; each event is replaced by its children.
        event = events.pop()
        events += event.children
        if event.tag == _EventType.TorchOp and event.name.startswith(PHASE):
            name = event.name.removeprefix(PHASE)
            phases.append(Span(name=name, start_ns=event.start_time_ns, end_ns=event.end_time_ns))
        elif event.tag == _EventType.Allocation:
            _, fields = event.typed
            assert isinstance(fields, _ExtraFields_Allocation)
            if fields.device == device:
                changes.append(
                    BlockChange(time_ns=event.start_time_ns, address=fields.ptr, size_bytes=fields.alloc_size)
                )
    changes.sort(key=lambda change: change.time_ns)
    return curve_of(changes, phases, before=before, after=after)


def curve_of(
    changes: Sequence[BlockChange],
    phases: Sequence[Span],
    *,
    before: Mapping[int, Storage],
    after: Mapping[int, Storage],
) -> MemoryCurve:
    """Return the bytes held by category, from change to change.

    A block belongs to a state if tensors of that state lie in it after the step. Otherwise it is an activation if
    forward allocated it and it outlived forward, temporary if it was allocated and freed in the same phase, else other.
    changes: in order. phases: in any order, none nested. before, after: the states' storages by address.
    """
    categories = _categories(changes, sorted(phases, key=lambda span: span.start_ns), after)
    blocks: dict[int, tuple[str, int]] = {}
    deltas: list[tuple[int, str, int]] = []

    def hold(time_ns: int, address: int, category: str, size_bytes: int) -> None:
        blocks[address] = category, size_bytes
        deltas.append((time_ns, category, size_bytes))

    def drop(time_ns: int, address: int) -> None:
        if address in blocks:  # Blocks that are older than the profiler and belong to no state are unknown.
            category, size_bytes = blocks.pop(address)
            deltas.append((time_ns, category, -size_bytes))

    for address, storage in _there_from_the_beginning(changes, before, after).items():
        hold(changes[0].time_ns if changes else 0, address, storage.part, storage.size_bytes)
    for number, change in enumerate(changes):
        drop(change.time_ns, change.address)
        if change.size_bytes > 0:
            hold(change.time_ns, change.address, categories[number], change.size_bytes)
    return added_up(deltas)


def _there_from_the_beginning(
    changes: Sequence[BlockChange], before: Mapping[int, Storage], after: Mapping[int, Storage]
) -> dict[int, Storage]:
    """Return the states' storages that exist when the step begins: those that it frees, and those that survive it.

    A storage that disappeared without a recorded change was freed at the start, like gradients, and is left out: a
    CPU's allocator does not report frees of blocks that are older than the profiler.
    """
    first: dict[int, BlockChange] = {}
    for change in changes:
        first.setdefault(change.address, change)
    return {
        address: storage
        for address, storage in before.items()
        if (address in after if address not in first else first[address].size_bytes < 0)
    }


def _categories(changes: Sequence[BlockChange], phases: Sequence[Span], after: Mapping[int, Storage]) -> dict[int, str]:
    """Return the category of each allocated block, by the index of its change."""
    starts_ns = [span.start_ns for span in phases]
    # When each block was freed, by the index of its allocation; addresses are reused.
    last_at: dict[int, int] = {}
    ended_ns: dict[int, int] = {}
    for number, change in enumerate(changes):
        if change.size_bytes > 0:
            last_at[change.address] = number
        elif (allocation := last_at.pop(change.address, None)) is not None:
            ended_ns[allocation] = change.time_ns

    def category(number: int, change: BlockChange) -> str:
        if number not in ended_ns and change.address in after:
            return after[change.address].part
        index = bisect_right(starts_ns, change.time_ns) - 1
        phase = phases[index] if index >= 0 and change.time_ns <= phases[index].end_ns else None
        if phase is None:
            return "other"
        if number in ended_ns and ended_ns[number] <= phase.end_ns:
            return "temporary"
        return "activations" if phase.name == "forward" else "other"

    return {number: category(number, change) for number, change in enumerate(changes) if change.size_bytes > 0}


def _storages(states: StateTensors, device: torch.device) -> dict[int, Storage]:
    """Return this rank's storages on the device, by address, each with the first part that it belongs to."""
    storages: dict[int, Storage] = {}
    for part, tensors in states.items():
        for tensor in tensors:
            storage = local_storage(tensor)
            if storage.device == device and storage.nbytes():
                storages.setdefault(storage.data_ptr(), Storage(part=part, size_bytes=storage.nbytes()))
    return storages
