"""The memory of a rank at each step, as the CUDA allocator or the system accounts for it.

The allocator keeps its account when the host queues work, so that nothing here waits for the device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from collectors.catalogue.memory import (
    ACTIVE_BYTES,
    ALLOCATED_BYTES,
    ALLOCATION_RETRIES,
    INACTIVE_SPLIT_BYTES,
    OUT_OF_MEMORY,
    PEAK_BYTES,
    PHASE_PEAK_BYTES,
    RESERVED_BYTES,
    RESIDENT_BYTES,
)
from collectors.metric import Sample

STATM = Path("/proc/self/statm")

Account = Mapping[str, Any]
"""The allocator's own, nested as torch gives it."""


class StepMemory(Protocol):
    """Follows the memory of steps that come one after another."""

    def start(self) -> None:
        """The first step begins now; again after a pause."""

    def end_phase(self, name: str) -> None:
        """A phase of the running step is over."""

    def end_step(self) -> list[Sample]:
        """The memory at the end of the running step and its peaks; the next begins."""


def make_memory(device: torch.device) -> StepMemory:
    """What suits the device: the allocator's account on CUDA, the process's memory on the CPU."""
    if device.type == "cuda":
        return AllocatorMemory(
            read=partial(torch.cuda.memory_stats_as_nested_dict, device),
            reset_peak=partial(torch.cuda.reset_peak_memory_stats, device),
        )
    return ProcessMemory()


class AllocatorMemory:
    """Steps by an allocator's account, whose peak is that since it was last reset.

    It is read and reset where a phase ends, and not where one begins: so each moment of a step lies in the peak of one
    phase, and the step's own peak is the largest of theirs and of what came after the last.
    """

    def __init__(self, *, read: Callable[[], Account], reset_peak: Callable[[], None]) -> None:
        self._read = read
        self._reset_peak = reset_peak
        self._peaks_bytes: dict[str, int] = {}

    def start(self) -> None:
        """See `StepMemory.start`."""
        self._peaks_bytes = {}
        self._reset_peak()

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; a phase that is entered several times has the largest of its peaks."""
        peak_bytes = self._read()["allocated_bytes"]["all"]["peak"]
        self._reset_peak()
        self._peaks_bytes[name] = max(self._peaks_bytes.get(name, 0), peak_bytes)

    def end_step(self) -> list[Sample]:
        """See `StepMemory.end_step`."""
        account = self._read()
        self._reset_peak()
        peaks_bytes, self._peaks_bytes = self._peaks_bytes, {}
        allocated_bytes = account["allocated_bytes"]["all"]
        return [
            ALLOCATED_BYTES.at(allocated_bytes["current"]),
            RESERVED_BYTES.at(account["reserved_bytes"]["all"]["current"]),
            ACTIVE_BYTES.at(account["active_bytes"]["all"]["current"]),
            INACTIVE_SPLIT_BYTES.at(account["inactive_split_bytes"]["all"]["current"]),
            PEAK_BYTES.at(max([allocated_bytes["peak"], *peaks_bytes.values()])),
            *(PHASE_PEAK_BYTES.at(peak_bytes, phase=phase) for phase, peak_bytes in peaks_bytes.items()),
            ALLOCATION_RETRIES.at(account["num_alloc_retries"]),
            OUT_OF_MEMORY.at(account["num_ooms"]),
        ]


class ProcessMemory:
    """Steps on a CPU, where no allocator keeps an account: what the process holds at their ends, and no peaks.

    statm: the system's account of the process.
    """

    def __init__(self, statm: Path = STATM) -> None:
        self._statm = statm

    def start(self) -> None:
        """See `StepMemory.start`."""

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; nothing is known of it."""

    def end_step(self) -> list[Sample]:
        """Resident memory; nothing where the system has no /proc.

        getrusage knows the largest value since the start only, which is another figure: there is no fallback to it.
        """
        try:
            pages = int(self._statm.read_text().split()[1])
        except FileNotFoundError:
            return []
        return [RESIDENT_BYTES.at(pages * os.sysconf("SC_PAGE_SIZE"))]
