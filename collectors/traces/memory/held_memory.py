"""What the memory of each rank held while it was traced: how much, when most, and which operators had taken that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.memory.memory_categories import CATEGORIES
from collectors.traces.memory.peak_memory import DeviceMemory, memory_of
from collectors.traces.names import STEP
from collectors.traces.spans import Timeline
from collectors.traces.table import Cell, Column, Table

CURVE_ROWS = 100
"""Rows of a device's curve in its table, each with the most that was held in an equal part of the time."""

_PLACE = (Column(name="rank"), Column(name="device"))
_TAKEN_BY = (Column(name="step"), Column(name="operator"))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldMemory:
    """Each device of each rank, in order. notes: what cannot be known, and why."""

    devices: tuple[DeviceMemory, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> tuple[Table, ...]:
        """The peaks, what lived then by operator, category and block, and the curve."""
        return (
            Table(
                name="peaks",
                title="The most that each device held",
                columns=(
                    *_PLACE,
                    Column(name="begin", unit="bytes"),
                    Column(name="peak", unit="bytes"),
                    Column(name="end", unit="bytes"),
                    Column(name="since_first_change", unit="ns"),
                    Column(name="step"),
                    Column(name="most_taken_in_step"),
                    Column(name="most_taken_by"),
                ),
                rows=tuple(_peak(memory) for memory in self.devices),
            ),
            Table(
                name="operators",
                title="What lived at the peak, by the step and operator that took it",
                columns=(
                    *_PLACE,
                    *_TAKEN_BY,
                    Column(name="blocks"),
                    Column(name="held", unit="bytes"),
                    Column(name="share", unit="ratio"),
                ),
                rows=tuple(row for memory in self.devices for row in _takers(memory)),
                notes=("share: of what was taken in the trace and lived at the peak",),
            ),
            Table(
                name="categories",
                title="What lived at the peak, by what it was for",
                columns=(*_PLACE, Column(name="category"), Column(name="held", unit="bytes")),
                rows=tuple(row for memory in self.devices for row in _categories(memory)),
                notes=(
                    "a trace does not say whose a block is: parameters, gradients and optimizer state are not told "
                    "apart; what a backward leaves is mostly gradients, what an optimizer leaves mostly its state",
                ),
            ),
            Table(
                name="blocks",
                title="The largest blocks that lived at the peak",
                columns=(
                    *_PLACE,
                    Column(name="address"),
                    Column(name="held", unit="bytes"),
                    Column(name="since_first_change", unit="ns"),
                    *_TAKEN_BY,
                ),
                rows=tuple(row for memory in self.devices for row in _blocks(memory)),
            ),
            Table(
                name="curve",
                title="What was held over time: the most of each part of it",
                columns=(
                    *_PLACE,
                    Column(name="since_first_change", unit="ns"),
                    Column(name="held", unit="bytes"),
                    *(Column(name=category, unit="bytes") for category in CATEGORIES),
                ),
                rows=tuple(row for memory in self.devices for row in _curve(memory)),
            ),
        )


def held_memory(timelines: Sequence[Timeline]) -> HeldMemory:
    """The memory of every rank whose trace tells of it."""
    devices = []
    notes = []
    for timeline in sorted(timelines, key=lambda timeline: timeline.rank):
        changes = timeline.allocations
        numbers = np.unique(changes.device[changes.change_bytes != 0]).tolist()
        # The GPUs come first, since it is their memory that ends.
        found = [memory_of(timeline, device) for device in sorted(numbers, key=lambda number: (number < 0, number))]
        devices += found
        notes += [f"rank {timeline.rank}: {note}" for note in _notes(found, is_ours=STEP in timeline.names)]
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
            yield f"what {where} held before the trace is not told: its bytes count from the first change"
    if any(memory.device is None for memory in memories):
        yield (
            "what threads of other libraries drop on the host is not heard: such a block counts until its address is "
            "given out again"
        )
    if any(memory.by_category is None for memory in memories):
        yield "no name of a backward or an optimizer was seen: categories are left out"


def _place(memory: DeviceMemory) -> tuple[Cell, Cell]:
    return memory.rank, "host" if memory.device is None else f"GPU {memory.device}"


def _peak(memory: DeviceMemory) -> tuple[Cell, ...]:
    most = memory.takers[0] if memory.takers else None
    return (
        *_place(memory),
        memory.begin_bytes,
        memory.peak_bytes,
        int(memory.held_bytes[-1]),
        memory.peak_ns - int(memory.times_ns[0]),
        memory.step,
        None if most is None else most.step,
        None if most is None else most.operator,
    )


def _takers(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    total_bytes = sum(taker.size_bytes for taker in memory.takers)
    for taker in memory.takers:
        share = taker.size_bytes / total_bytes
        yield *_place(memory), taker.step, taker.operator, taker.blocks, taker.size_bytes, share


def _categories(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    if memory.by_category is not None:
        for category, held in zip(CATEGORIES, memory.by_category[memory.peak].tolist(), strict=True):
            if held:
                yield *_place(memory), category, held


def _blocks(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    for block in memory.largest:
        since_ns = block.taken_ns - int(memory.times_ns[0])
        yield *_place(memory), hex(block.address), block.size_bytes, since_ns, block.step, block.operator


def _curve(memory: DeviceMemory) -> Iterator[tuple[Cell, ...]]:
    """The first of each part's highest moments; parts in which nothing changes are left out."""
    since_ns = memory.times_ns - memory.times_ns[0]
    part = since_ns * CURVE_ROWS // (int(since_ns[-1]) + 1)
    for number in np.unique(part):
        changes = np.flatnonzero(part == number)
        highest = changes[np.argmax(memory.held_bytes[changes])]
        by_category = [None] * len(CATEGORIES) if memory.by_category is None else memory.by_category[highest].tolist()
        yield *_place(memory), int(since_ns[highest]), int(memory.held_bytes[highest]), *by_category
