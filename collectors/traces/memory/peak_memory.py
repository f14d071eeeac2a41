"""What one device of one rank held from change to change, and what lived there when it was most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.memory.blocks import HOST, Blocks, blocks_of
from collectors.traces.memory.memory_categories import categories_of, held_by_category
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.foreground import NOBODY, Foreground
from collectors.traces.steps.operators import operators_at
from collectors.traces.steps.phases import phases
from collectors.traces.steps.stretches import step_names

BLOCKS_SHOWN = 20

_FETCHES = ("aten::empty", "aten::new_", "aten::zeros", "aten::ones", "aten::full", "aten::resize_", "aten::_resize_")
"""How the names of operators begin that only fetch memory, or fill it, which the operator around them wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One that lives at the peak. step, operator: the names of which took it; None where none did, or none is told."""

    address: int
    size_bytes: int
    taken_ns: int
    step: str | None
    operator: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """An operator in one step, with all that it had taken and lives at the peak; most first among its like."""

    step: str | None
    operator: str | None
    blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device. device: None is the host's.

    begin_bytes: what was held when the trace began; None where that is not told. Bytes count from there then, so that
        they may fall below 0.
    times_ns: (moments,) Unix time of each change, after that of the first, which stands for all that was before it.
    held_bytes: (moments,) what is held from then to the next.
    by_category: (moments, categories) in the order of `CATEGORIES`; None where the phases of steps are not told.
    peak: the first moment at which most was held. step: in which that was.
    takers, largest: what of it was taken in the trace, by operator, and the largest blocks, both most first.
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
    largest: tuple[Block, ...]

    @property
    def peak_ns(self) -> int:
        """When most was held, Unix time."""
        return int(self.times_ns[self.peak])

    @property
    def peak_bytes(self) -> int:
        """The most that was held."""
        return int(self.held_bytes[self.peak])


def memory_of(timeline: Timeline, device: int) -> DeviceMemory:
    """That of a device which the timeline's allocations name."""
    blocks = blocks_of(timeline.allocations, device)
    begin_bytes = None if blocks.total_bytes is None else int(blocks.total_bytes[0] - blocks.change_bytes[0])
    after_bytes = blocks.change_bytes.cumsum() if blocks.total_bytes is None else blocks.total_bytes
    held_bytes = np.append(begin_bytes or 0, after_bytes)
    times_ns = np.append(blocks.time_ns[:1], blocks.time_ns)
    peak = int(np.argmax(held_bytes))
    found = phases(timeline)
    alive = _alive(timeline, blocks, peak - 1)
    return DeviceMemory(
        rank=timeline.rank,
        device=None if device == HOST else device,
        begin_bytes=begin_bytes,
        times_ns=times_ns,
        held_bytes=held_bytes,
        by_category=None if found is None else held_by_category(blocks, categories_of(blocks, found), held_bytes),
        peak=peak,
        step=_steps(timeline, times_ns[[peak]])[0],
        takers=_takers(alive),
        largest=tuple(alive[:BLOCKS_SHOWN]),
    )


def _alive(timeline: Timeline, blocks: Blocks, change: int) -> list[Block]:
    """The blocks that live after a change, the largest first."""
    alive = np.flatnonzero(blocks.alive_after(change))
    alive = alive[np.argsort(-blocks.size_bytes[alive], kind="stable")]
    taken_ns = blocks.time_ns[blocks.taken[alive]]
    rows = zip(
        blocks.address[alive].tolist(),
        blocks.size_bytes[alive].tolist(),
        taken_ns.tolist(),
        _steps(timeline, taken_ns),
        _operators(timeline, taken_ns, blocks.thread[alive]),
        strict=True,
    )
    return [
        Block(address=address, size_bytes=size_bytes, taken_ns=moment_ns, step=step, operator=operator)
        for address, size_bytes, moment_ns, step, operator in rows
    ]


def _takers(alive: list[Block]) -> tuple[Taker, ...]:
    blocks: dict[tuple[str | None, str | None], list[int]] = {}
    for block in alive:
        blocks.setdefault((block.step, block.operator), []).append(block.size_bytes)
    takers = [
        Taker(step=step, operator=operator, blocks=len(sizes), size_bytes=sum(sizes))
        for (step, operator), sizes in blocks.items()
    ]
    return tuple(sorted(takers, key=lambda taker: -taker.size_bytes))


def _steps(timeline: Timeline, moments_ns: Times) -> list[str | None]:
    """The name of the step in which each moment lies."""
    chosen, names = timeline.of_kind("step"), step_names(timeline)
    found = Foreground(timeline.start_ns[chosen], timeline.end_ns[chosen]).at(moments_ns)
    return [None if step == NOBODY else names[step] for step in found.tolist()]


def _operators(timeline: Timeline, moments_ns: Times, threads: NDArray[np.int64]) -> list[str | None]:
    """On these threads the innermost operator that did more than fetch memory; one that only did so where none else."""
    found = operators_at(timeline, moments_ns, threads, counts=lambda name: not name.startswith(_FETCHES))
    anyway = operators_at(timeline, moments_ns, threads)
    rows = np.where(found == ABSENT, anyway, found)
    return [None if row == ABSENT else timeline.names[timeline.name[row]] for row in rows.tolist()]
