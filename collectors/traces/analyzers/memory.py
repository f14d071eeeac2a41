"""Memory of each rank during its trace: bytes in use over time, the peak, and the operators that allocated it.

A block is a piece of memory that the allocator hands out; it is in use until it is freed. A trace does not record what
a block is for, so parameters, gradients and optimizer state look like other long-lived blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import STEP
from collectors.traces.intervals import Times
from collectors.traces.operators import NOBODY, PHASES, Foreground, Phases, StepPhase, operators_at, phases
from collectors.traces.steps import step_names
from collectors.traces.table import Cell, Table, table_of
from collectors.traces.timeline import ABSENT, Allocations, Timeline

# The blocks of memory that a rank allocated during its trace, with the end of each.

Numbers = NDArray[np.int64]

HOST = -1
"""The device number of the host's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks that were allocated on a device, by time, and each change of the memory in use.

    allocated, ended, address, size_bytes, thread: per block.
    allocated, ended: indices of the changes that allocated and ended it; `ended` is the number of changes if nothing
        ended it. A block ends when it is freed, or when its address is handed out again: the profiler does not record
        frees by threads of other libraries.
    thread: the thread that allocated it; -1 if the trace does not record it.
    time_ns, change_bytes, total_bytes: per change. A block that was freed without a record is subtracted when its
        address is reused.
    total_bytes: all memory in use after the change, including from before the trace; None if not recorded.
    """

    allocated: Numbers
    ended: Numbers
    address: NDArray[np.uint64]
    size_bytes: Numbers
    thread: Numbers
    time_ns: Times
    change_bytes: Numbers
    total_bytes: Numbers | None

    def alive_after(self, change: int) -> NDArray[np.bool_]:
        """Return for each block whether it is in use after the change."""
        alive: NDArray[np.bool_] = (self.allocated <= change) & (self.ended > change)
        return alive


def blocks_of(allocations: Allocations, device: int) -> Blocks:
    """Return the blocks of a device.

    The trace's total of the host's memory counts from the first profile of the process, not from its start, so it is
    not used.
    """
    rows = np.flatnonzero((allocations.device == device) & (allocations.change_bytes != 0))
    address, change_bytes = allocations.address[rows], allocations.change_bytes[rows].copy()
    # followed_by: for each change, the next change of the same address; the number of changes if there is none.
    by_address = np.argsort(address, kind="stable")
    is_same = address[by_address[1:]] == address[by_address[:-1]]
    followed_by = np.full(rows.size, rows.size, dtype=np.int64)
    followed_by[by_address[:-1][is_same]] = by_address[1:][is_same]
    allocated = np.flatnonzero(change_bytes > 0)
    ended, size_bytes = followed_by[allocated], change_bytes[allocated]
    # Blocks whose address was handed out again were freed without a record: subtract them at that point.
    taken_again = (ended < rows.size) & (np.append(change_bytes, 0)[ended] > 0)
    change_bytes[ended[taken_again]] -= size_bytes[taken_again]
    total_bytes = allocations.allocated_bytes[rows]
    has_totals = device != HOST and bool((total_bytes >= 0).all())
    return Blocks(
        allocated=allocated,
        ended=ended,
        address=address[allocated],
        size_bytes=size_bytes,
        thread=allocations.thread[rows][allocated],
        time_ns=allocations.time_ns[rows],
        change_bytes=change_bytes,
        total_bytes=total_bytes if has_totals else None,
    )


# Categories of blocks, by the phase of the step that allocated them and whether they outlive it.
#
# A backward leaves mostly gradients, an optimizer mostly its state.

Category = Literal["activations", "left_by_backward", "left_by_optimizer", "temporary", "other", "older"]
"""temporary: freed in the phase that allocated it. older: allocated before the trace, as far as known."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

_LEFT_BY: dict[StepPhase, Category] = {
    "forward": "activations",
    "backward": "left_by_backward",
    "optimizer": "left_by_optimizer",
    "between": "other",
}


def categories_of(blocks: Blocks, phases: Phases) -> NDArray[np.int64]:
    """Return for each block the index of its category in `CATEGORIES`."""
    taken_in = phases.at(blocks.time_ns[blocks.allocated])
    ended_ns = np.append(blocks.time_ns, np.iinfo(np.int64).max)[blocks.ended]
    is_dropped = blocks.ended < blocks.time_ns.size
    category_of_phase = np.array([CATEGORIES.index(_LEFT_BY[phase]) for phase in PHASES], dtype=np.int64)
    # Before the first phase the index is `NOBODY` (-1), which selects the last entry, so "other" is appended.
    phase_of = np.append(phases.phase, len(PHASES)).astype(np.int64)
    category = np.append(category_of_phase, CATEGORIES.index("other"))[phase_of[taken_in]]
    is_temporary = is_dropped & (taken_in != NOBODY) & (phases.at(ended_ns) == taken_in)
    return np.where(is_temporary, CATEGORIES.index("temporary"), category)


def held_by_category(blocks: Blocks, category: NDArray[np.int64], held_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes in use before all changes and after each: (changes + 1, categories) int64.

    held_bytes: (changes + 1,) the sums over categories. Bytes that no block of the trace explains are "older".
    """
    # Row 0 is before all changes, so change c acts on row c + 1; the last row, cut off, absorbs blocks that never end.
    grown = np.zeros((blocks.time_ns.size + 2, len(CATEGORIES)), dtype=np.int64)
    np.add.at(grown, (blocks.allocated + 1, category), blocks.size_bytes)
    np.subtract.at(grown, (blocks.ended + 1, category), blocks.size_bytes)
    bytes_by_category: NDArray[np.int64] = grown[:-1].cumsum(axis=0)
    bytes_by_category[:, CATEGORIES.index("older")] = held_bytes - bytes_by_category.sum(axis=1)
    return bytes_by_category


# The memory of a rank's device over time, and the blocks in use at its peak.

BLOCKS_SHOWN = 20

_FETCHES = ("aten::empty", "aten::new_", "aten::zeros", "aten::ones", "aten::full", "aten::resize_", "aten::_resize_")
"""Prefixes of operators that only allocate or fill memory on behalf of the operator around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakBlock:
    """A block in use at the peak. step, operator: names of those that allocated it; None if unknown or outside any."""

    address: int
    size_bytes: int
    taken_ns: int
    step: str | None
    operator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """An operator in a step, with the number and size of its blocks in use at the peak."""

    step: str | None
    operator: str | None
    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of a device over time. device: None for the host's memory.

    begin_bytes: bytes in use when the trace began; None if not recorded, in which case bytes count from 0 there and may
        fall below 0.
    times_ns: (changes + 1,) Unix time of each change; the first change's time occurs twice, first for the time before.
    held_bytes: (changes + 1,) bytes in use from then to the next.
    by_category: (changes + 1, categories) in the order of `CATEGORIES`; None if the trace has no phases.
    peak: index of the first time at which most bytes were in use. step: the step at that time.
    takers, largest: memory that was allocated in the trace and in use at the peak, by operator and as the largest
        blocks; largest first.
    """

    rank: int
    device: int | None
    begin_bytes: int | None
    times_ns: Times
    held_bytes: NDArray[np.int64]
    by_category: NDArray[np.int64] | None
    peak: int
    step: str | None
    takers: tuple[Taker, ...]
    largest: tuple[PeakBlock, ...]

    @property
    def peak_ns(self) -> int:
        """The Unix time of the peak."""
        return int(self.times_ns[self.peak])

    @property
    def peak_bytes(self) -> int:
        return int(self.held_bytes[self.peak])


def memory_of(timeline: Timeline, device: int) -> DeviceMemory:
    """Return the memory of a device that the timeline's allocations name."""
    blocks = blocks_of(timeline.allocations, device)
    # Before the first change: its total minus the change. Without totals, sums of changes count from 0.
    begin_bytes = None if blocks.total_bytes is None else int(blocks.total_bytes[0] - blocks.change_bytes[0])
    after_bytes = blocks.change_bytes.cumsum() if blocks.total_bytes is None else blocks.total_bytes
    held_bytes = np.append(begin_bytes or 0, after_bytes)
    times_ns = np.append(blocks.time_ns[:1], blocks.time_ns)
    peak = int(np.argmax(held_bytes))
    step_phases = phases(timeline)
    alive = _alive(timeline, blocks, peak - 1)
    return DeviceMemory(
        rank=timeline.rank,
        device=None if device == HOST else device,
        begin_bytes=begin_bytes,
        times_ns=times_ns,
        held_bytes=held_bytes,
        by_category=None
        if step_phases is None
        else held_by_category(blocks, categories_of(blocks, step_phases), held_bytes),
        peak=peak,
        step=_steps(timeline, times_ns[[peak]])[0],
        takers=_takers(alive),
        largest=tuple(alive[:BLOCKS_SHOWN]),
    )


def _alive(timeline: Timeline, blocks: Blocks, change: int) -> list[PeakBlock]:
    """Return the blocks in use after a change, largest first."""
    alive = np.flatnonzero(blocks.alive_after(change))
    alive = alive[np.argsort(-blocks.size_bytes[alive], kind="stable")]
    taken_ns = blocks.time_ns[blocks.allocated[alive]]
    rows = zip(
        blocks.address[alive].tolist(),
        blocks.size_bytes[alive].tolist(),
        taken_ns.tolist(),
        _steps(timeline, taken_ns),
        _operators(timeline, taken_ns, blocks.thread[alive]),
        strict=True,
    )
    return [
        PeakBlock(address=address, size_bytes=size_bytes, taken_ns=moment_ns, step=step, operator=operator)
        for address, size_bytes, moment_ns, step, operator in rows
    ]


def _takers(alive: list[PeakBlock]) -> tuple[Taker, ...]:
    blocks: dict[tuple[str | None, str | None], list[int]] = {}
    for block in alive:
        blocks.setdefault((block.step, block.operator), []).append(block.size_bytes)
    takers = [
        Taker(step=step, operator=operator, blocks=len(sizes), size_bytes=sum(sizes))
        for (step, operator), sizes in blocks.items()
    ]
    return tuple(sorted(takers, key=lambda taker: -taker.size_bytes))


def _steps(timeline: Timeline, moments_ns: Times) -> list[str | None]:
    """Return the name of the step that contains each moment."""
    chosen, names = timeline.of_kind("step"), step_names(timeline)
    steps = Foreground(timeline.start_ns[chosen], timeline.end_ns[chosen]).at(moments_ns)
    return [None if step == NOBODY else names[step] for step in steps.tolist()]


def _operators(timeline: Timeline, moments_ns: Times, threads: NDArray[np.int64]) -> list[str | None]:
    """Return the innermost operator at each moment that did more than allocate; if none did, the innermost one.

    threads: of each moment, see `operators_at`.
    """
    operators = operators_at(timeline, moments_ns, threads, counts=lambda name: not name.startswith(_FETCHES))
    anyway = operators_at(timeline, moments_ns, threads)
    rows = np.where(operators == ABSENT, anyway, operators)
    return [None if row == ABSENT else timeline.names[timeline.name[row]] for row in rows.tolist()]


CURVE_ROWS = 100
"""Maximum rows of a device's curve in its table; each shows the peak of an equal part of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """The memory of each device of each rank, in order. notes: what is unknown, and why."""

    devices: tuple[DeviceMemory, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """Return the peaks, the memory in use at them by operator, category and block, and the curves over time."""
        begin = "rank device"
        return (
            table_of(
                "peaks",
                "Peak memory of each device",
                f"{begin} begin_bytes peak_bytes end_bytes since_first_change_ns step most_taken_in_step most_taken_by",
                map(_peak, self.devices),
            ),
            table_of(
                "operators",
                "Memory in use at the peak, by the step and operator that allocated it",
                f"{begin} step operator blocks held_bytes share_ratio",
                chain.from_iterable(map(_operators_at_peak, self.devices)),
                "share: of the memory that was allocated in the trace and in use at the peak",
            ),
            table_of(
                "categories",
                "Memory in use at the peak, by category",
                f"{begin} category held_bytes",
                [
                    (*_device(memory), category, held_bytes)
                    for memory in self.devices
                    if memory.by_category is not None
                    for category, held_bytes in zip(CATEGORIES, memory.by_category[memory.peak].tolist(), strict=True)
                    if held_bytes
                ],
                "a trace does not record what a block is for, so parameters, gradients and optimizer state are not "
                "separated; backward leaves mostly gradients, and the optimizer mostly its state",
            ),
            table_of(
                "blocks",
                "The largest blocks in use at the peak",
                f"{begin} address held_bytes since_first_change_ns step operator",
                [
                    (
                        *_device(memory),
                        hex(block.address),
                        block.size_bytes,
                        block.taken_ns - int(memory.times_ns[0]),
                        block.step,
                        block.operator,
                    )
                    for memory in self.devices
                    for block in memory.largest
                ],
            ),
            table_of(
                "curve",
                "Memory in use over time: the peak of each interval",
                f"{begin} since_first_change_ns held_bytes {' '.join(f'{category}_bytes' for category in CATEGORIES)}",
                chain.from_iterable(map(_curve, self.devices)),
            ),
        )


def held_memory(timelines: Sequence[Timeline]) -> HeldMemory:
    """Return the memory of every rank whose trace has memory events."""
    devices = []
    notes = []
    for timeline in sorted(timelines, key=lambda timeline: timeline.rank):
        changes = timeline.allocations
        numbers = np.unique(changes.device[changes.change_bytes != 0]).tolist()
        # GPUs first, since they run out of memory.
        memories = [memory_of(timeline, device) for device in sorted(numbers, key=lambda number: (number < 0, number))]
        devices += memories
        notes += [f"rank {timeline.rank}: {note}" for note in _notes(memories, is_ours=STEP in timeline.names)]
    return HeldMemory(devices=tuple(devices), notes=tuple(notes))


def _notes(memories: Sequence[DeviceMemory], *, is_ours: bool) -> Iterator[str]:
    if not memories and is_ours:
        yield (
            "the windows of a run have no memory events; `observatory run ... --memory-snapshot` keeps the memory of"
            " one step: by category, exactly, in rank<k>.memory.json.gz for ui.perfetto.dev, and on CUDA its blocks in"
            " rank<k>.memory.pickle for pytorch.org/memory_viz"
        )
    elif not memories:
        yield "the trace has no memory events; torch.profiler writes them with profile_memory=True"
    for memory in memories:
        if memory.begin_bytes is None:
            where = "the host" if memory.device is None else f"GPU {memory.device}"
            yield f"memory in use on {where} before the trace is unknown: its bytes count from the first change"
    if any(memory.device is None for memory in memories):
        yield (
            "the profiler does not record frees by threads of other libraries on the host: such a block counts until"
            " its address is used again"
        )
    if any(memory.by_category is None for memory in memories):
        yield "no name of a backward or an optimizer was seen: categories are left out"


def _device(memory: DeviceMemory) -> tuple[Cell, Cell]:
    return memory.rank, "host" if memory.device is None else f"GPU {memory.device}"


def _peak(memory: DeviceMemory) -> tuple[Cell, ...]:
    return (
        *_device(memory),
        memory.begin_bytes,
        memory.peak_bytes,
        int(memory.held_bytes[-1]),
        memory.peak_ns - int(memory.times_ns[0]),
        memory.step,
        *((memory.takers[0].step, memory.takers[0].operator) if memory.takers else (None, None)),
    )


def _operators_at_peak(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    total_bytes = sum(taker.size_bytes for taker in memory.takers)
    for taker in memory.takers:
        share = taker.size_bytes / total_bytes
        yield *_device(memory), taker.step, taker.operator, taker.blocks, taker.size_bytes, share


def _curve(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    """Yield the first maximum in each part of the time; parts without a change are left out."""
    since_ns = memory.times_ns - memory.times_ns[0]
    part = since_ns * CURVE_ROWS // (int(since_ns[-1]) + 1)
    for number in np.unique(part):
        changes = np.flatnonzero(part == number)
        highest = changes[np.argmax(memory.held_bytes[changes])]
        by_category = [None] * len(CATEGORIES) if memory.by_category is None else memory.by_category[highest].tolist()
        yield *_device(memory), int(since_ns[highest]), int(memory.held_bytes[highest]), *by_category
