"""The memory of a rank at each step, as the CUDA allocator or the system accounts for it.

The allocator keeps its account when the host queues work, so that nothing here waits for the device.
"""

from __future__ import annotations

import os
import time
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

ASKED_SHARE = 0.005
"""Of the time of steps, what asking the allocator may take. An account is a dictionary of some 200 numbers, and making
it takes 20 to 50 us."""

STATM = Path("/proc/self/statm")

Account = Mapping[str, Any]
"""The allocator's own, nested as torch gives it."""


class StepMemory(Protocol):
    """Follows the memory of steps that come one after another."""

    def start(self) -> None:
        """The first step begins now; again after a pause."""

    def end_phase(self, name: str) -> None:
        """A phase of the running step is over."""

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """The memory at the end of the running step and its peaks; the next begins.

        is_last: whether a pause follows, after which `start` is called again.
        """


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

    Asking takes time of the host, so that only as many steps are asked as `ASKED_SHARE` of the time of all allows: each
    step of 200 ms, about one of ten of 5 ms. The first after a start is asked always. Of the steps between, the last
    tells what is held, and the largest peak of them all: no moment is in no peak. The others tell nothing.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Account],
        reset_peak: Callable[[], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._read = read
        self._reset_peak = reset_peak
        self._now_ns = now_ns
        self._peaks_bytes: dict[str, int] = {}
        self._is_asked = False
        self._begun_ns = 0
        self._left_ns = 0.0  # What asking may take by now, less what it took.
        self._step_cost_ns = 0  # Of the running step.
        self._expected_ns = 0  # Of the next that is asked.

    def start(self) -> None:
        """See `StepMemory.start`."""
        self._peaks_bytes = {}
        self._reset_peak()
        self._is_asked = True
        self._step_cost_ns = 0
        self._begun_ns = self._now_ns()

    def end_phase(self, name: str) -> None:
        """See `StepMemory.end_phase`; a phase that is entered several times has the largest of its peaks."""
        if not self._is_asked:
            return
        begun_ns = self._now_ns()
        peak_bytes = self._read()["allocated_bytes"]["all"]["peak"]
        self._reset_peak()
        self._peaks_bytes[name] = max(self._peaks_bytes.get(name, 0), peak_bytes)
        self._pay(self._now_ns() - begun_ns)

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """See `StepMemory.end_step`; nothing of most steps that are too short to be asked each."""
        ended_ns = self._now_ns()
        self._left_ns += ASKED_SHARE * (ended_ns - self._begun_ns)
        self._begun_ns = ended_ns
        samples: list[Sample] = []
        if self._is_asked:
            samples = self._samples()
            account_ns = self._now_ns() - ended_ns
            self._pay(account_ns)
            # What the next step that is asked will cost, and the account of those before it.
            self._expected_ns = self._step_cost_ns + account_ns
            self._left_ns = min(self._left_ns, self._expected_ns)  # Long steps save nothing up for short ones.
            self._is_asked = self._left_ns >= self._expected_ns and not is_last
        elif is_last or self._left_ns >= self._expected_ns:
            samples = self._samples()
            self._pay(self._now_ns() - ended_ns)
            self._is_asked = not is_last
        self._step_cost_ns = 0
        return samples

    def _pay(self, cost_ns: int) -> None:
        self._left_ns -= cost_ns
        self._step_cost_ns += cost_ns

    def _samples(self) -> list[Sample]:
        """The whole account; its peak is that since it was read last."""
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

    def end_step(self, *, is_last: bool = False) -> list[Sample]:
        """Resident memory; nothing where the system has no /proc.

        getrusage knows the largest value since the start only, which is another figure: there is no fallback to it.
        """
        try:
            pages = int(self._statm.read_text().split()[1])
        except FileNotFoundError:
            return []
        return [RESIDENT_BYTES.at(pages * os.sysconf("SC_PAGE_SIZE"))]
