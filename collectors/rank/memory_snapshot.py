"""The memory of a rank over one step, by category: the blocks that torch's profiler saw come and go, on any device.

A block is told by whose it is in the end, and otherwise by the phase of the step that it was made in and by whether it
outlived it. So tensors need not be understood, and operators that are compiled or divided over ranks hide nothing.
The profiler does not hear what threads of other libraries drop (gloo's do): such a block counts until its address is
given out again, so that with them the curve may be too high.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._C._profiler import _EventType, _ExtraFields_Allocation, _ProfilerEvent
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.metrics.metric import Sample
from collectors.metrics.rank import TIMELINE_PEAK_BYTES
from collectors.rank.profiler import recording

# What a rank's memory held from moment to moment of a step, by category.

CATEGORIES = ("parameters", "optimizer", "gradients", "activations", "temporary", "other")


class CannotSave(RuntimeError):
    """The file cannot be written; the message says where, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """Bytes by category.

    times_ns: (moments,) int64, ascending, Unix time.
    held_bytes: (moments, categories) int64, what is held from that moment to the next, in the order of `CATEGORIES`.
    """

    times_ns: NDArray[np.int64]
    held_bytes: NDArray[np.int64]

    def peak(self) -> dict[str, int]:
        """Those of the first moment when most was held, and their total; a category of none is left out."""
        if not self.times_ns.size:
            return {}
        most = self.held_bytes[int(np.argmax(self.held_bytes.sum(axis=1)))]
        held = {name: int(size) for name, size in zip(CATEGORIES, most, strict=True) if size}
        return {**held, "total": sum(held.values())}

    def samples(self) -> list[Sample]:
        """The peak."""
        return [TIMELINE_PEAK_BYTES.at(size_bytes, category=name) for name, size_bytes in self.peak().items()]

    def save(self, path: Path) -> None:
        """Write it as a compressed trace of counters, which Perfetto draws.

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
                "args": dict(zip(CATEGORIES, held, strict=True)),
            }
            for time_ns, held in zip(self.times_ns.tolist(), self.held_bytes.tolist(), strict=True)
        ]
        trace = {"displayTimeUnit": "ns", "otherData": {"begins_ns": str(begins_ns)}, "traceEvents": events}
        try:
            path.write_bytes(gzip.compress(msgspec.json.encode(trace)))
        except OSError as error:
            raise CannotSave(f"{path} cannot be written: {error.strerror}") from error


def added_up(deltas: Iterable[tuple[int, str, int]]) -> MemoryCurve:
    """The curve of these changes, which are in order: when, of which category, by how many bytes."""
    rows = list(deltas)
    times_ns = np.array([time_ns for time_ns, _, _ in rows], np.int64)
    grown = np.zeros((len(rows), len(CATEGORIES)), np.int64)
    grown[np.arange(len(rows)), [CATEGORIES.index(category) for _, category, _ in rows]] = [size for *_, size in rows]
    is_last_of_moment = np.append(times_ns[1:] != times_ns[:-1], np.ones(min(1, len(rows)), bool))
    return MemoryCurve(times_ns=times_ns[is_last_of_moment], held_bytes=grown.cumsum(axis=0)[is_last_of_moment])


# The history of a rank's device memory in one step: each block that was given and taken back, with who asked for it.
#
# Only CUDA's allocator keeps one; pytorch.org/memory_viz draws it.

ENTRIES = 200_000
"""Events that are kept, the newest; one takes some kilobytes of the host."""


class Recorder(Protocol):
    """Keeps a history of blocks while it is on."""

    def start(self) -> None:
        """From now on every block's coming and going is kept."""

    def save(self, path: Path) -> None:
        """Write what was kept, and every block that is there."""

    def stop(self) -> None:
        """Keep nothing any more, and forget what was kept."""


class CudaRecorder:
    """The CUDA allocator's own."""

    def start(self) -> None:
        """See `Recorder.start`; with Python's stacks alone, which name the line of the workload."""
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")

    def save(self, path: Path) -> None:
        """See `Recorder.save`."""
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """See `Recorder.stop`."""
        torch.cuda.memory._record_memory_history(enabled=None)


def save_history(run_step: Callable[[], object], path: Path, recorder: Recorder) -> None:
    """Run the step, and save the blocks that came and went in it. It must not be measured; those after it may be.

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
"""How the annotation of a phase begins; its name follows."""

States = Mapping[str, Iterable[Tensor]]
"""The tensors behind parameters, gradients and optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A block came, or went where size_bytes is negative."""

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
    """What a state's tensors lie in."""

    part: str
    size_bytes: int


def mark_phase(name: str) -> AbstractContextManager[object]:
    """Mark a phase of the step that is recorded."""
    return record_function(f"{PHASE}{name}")


def record_curve(run_step: Callable[[], object], device: torch.device, states: Callable[[], States]) -> MemoryCurve:
    """What a step held whose phases are marked by `mark_phase`; it is slower than others, and must not be measured.

    states: the training state of this rank, asked before the step and after it.
    """
    before = _storages(states(), device)
    # The allocators of all devices report to the host.
    profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with recording(profiled):
        run_step()
    after = _storages(states(), device)
    assert profiled.profiler is not None
    assert profiled.profiler.kineto_results is not None
    events = list(_events(profiled.profiler.kineto_results.experimental_event_tree()))
    return curve_of(sorted(_changes(events, device), key=_time_ns), list(_spans(events)), before=before, after=after)


def curve_of(
    changes: Sequence[Change], phases: Sequence[Span], *, before: Mapping[int, Storage], after: Mapping[int, Storage]
) -> MemoryCurve:
    """What was held by category from change to change.

    A block is of a state where one's tensors lie in it after the step. Of the rest it is an activation where it was
    made in forward and outlived that, temporary where it was made and dropped in one phase, and other where neither.
    changes: in order. phases: in any order, none inside of another. before, after: the states' storages, by address.
    """
    categories = _categories(changes, sorted(phases, key=lambda span: span.start_ns), after)
    held: dict[int, tuple[str, int]] = {}
    deltas: list[tuple[int, str, int]] = []

    def hold(time_ns: int, address: int, category: str, size_bytes: int) -> None:
        held[address] = category, size_bytes
        deltas.append((time_ns, category, size_bytes))

    def drop(time_ns: int, address: int) -> None:
        if address in held:  # Not so a block that is older than the profiler, and of no state.
            category, size_bytes = held.pop(address)
            deltas.append((time_ns, category, -size_bytes))

    for address, storage in _there_from_the_beginning(changes, before, after).items():
        hold(changes[0].time_ns if changes else 0, address, storage.part, storage.size_bytes)
    for number, change in enumerate(changes):
        drop(change.time_ns, change.address)
        if change.size_bytes > 0:
            hold(change.time_ns, change.address, categories[number], change.size_bytes)
    return added_up(deltas)


def _there_from_the_beginning(
    changes: Sequence[Change], before: Mapping[int, Storage], after: Mapping[int, Storage]
) -> dict[int, Storage]:
    """The states' storages of before that the step drops, or still has in the end.

    One that is gone without a word was dropped at the beginning, as gradients are: a CPU's allocator does not tell of
    the end of blocks that are older than the profiler.
    """
    first: dict[int, Change] = {}
    for change in changes:
        first.setdefault(change.address, change)
    return {
        address: storage
        for address, storage in before.items()
        if (address in after if address not in first else first[address].size_bytes < 0)
    }


def _categories(changes: Sequence[Change], phases: Sequence[Span], after: Mapping[int, Storage]) -> dict[int, str]:
    """That of each block that came, by the number of its change."""
    starts_ns = [span.start_ns for span in phases]
    last_at: dict[int, int] = {}
    ended_ns: dict[int, int] = {}
    for number, change in enumerate(changes):
        if change.size_bytes > 0:
            last_at[change.address] = number
        elif (made := last_at.pop(change.address, None)) is not None:
            ended_ns[made] = change.time_ns

    def category(number: int, change: Change) -> str:
        if number not in ended_ns and change.address in after:
            return after[change.address].part
        place = bisect_right(starts_ns, change.time_ns) - 1
        phase = phases[place] if place >= 0 and change.time_ns <= phases[place].end_ns else None
        if phase is None:
            return "other"
        if number in ended_ns and ended_ns[number] <= phase.end_ns:
            return "temporary"
        return "activations" if phase.name == "forward" else "other"

    return {number: category(number, change) for number, change in enumerate(changes) if change.size_bytes > 0}


def _storages(states: States, device: torch.device) -> dict[int, Storage]:
    """Those of this rank on the device, each in the first part that it belongs to."""
    found: dict[int, Storage] = {}
    for part, tensors in states.items():
        for tensor in tensors:
            storage = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
            if storage.device == device and storage.nbytes():
                found.setdefault(storage.data_ptr(), Storage(part=part, size_bytes=storage.nbytes()))
    return found


def _events(roots: Iterable[_ProfilerEvent]) -> Iterator[_ProfilerEvent]:
    """All events of the trees."""
    waiting = list(roots)
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.children


def _changes(events: Iterable[_ProfilerEvent], device: torch.device) -> Iterator[Change]:
    for event in events:
        if event.tag == _EventType.Allocation:
            _, fields = event.typed
            assert isinstance(fields, _ExtraFields_Allocation)
            if fields.device == device:
                yield Change(time_ns=event.start_time_ns, address=fields.ptr, size_bytes=fields.alloc_size)


def _spans(events: Iterable[_ProfilerEvent]) -> Iterator[Span]:
    for event in events:
        if event.tag == _EventType.TorchOp and event.name.startswith(PHASE):
            yield Span(name=event.name.removeprefix(PHASE), start_ns=event.start_time_ns, end_ns=event.end_time_ns)


def _time_ns(change: Change) -> int:
    return change.time_ns
