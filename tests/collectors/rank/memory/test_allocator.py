"""The memory of steps: an allocator's account, its peaks by phase, and what the system says of the process."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch

from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import (
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
from collectors.rank.memory import READING_SHARE, Account, AllocatorMemory, ProcessMemory, make_memory


class FakeAllocator:
    """Gives and takes back bytes, and accounts for them as CUDA's caching allocator does, which takes some time.

    now_ns: a clock that goes on when told, and while the account is made.
    """

    def __init__(self, *, account_ns: int = 0) -> None:
        self.now_ns = 0
        self.asked = 0
        self._account_ns = account_ns
        self._held_bytes = 0
        self._peak_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """From now on tensors hold so much, negative where they let go."""
        self._held_bytes += size_bytes
        self._peak_bytes = max(self._peak_bytes, self._held_bytes)

    def read(self) -> Account:
        """What `memory_stats_as_nested_dict` would give."""
        self.now_ns += self._account_ns
        self.asked += 1
        return {
            "allocated_bytes": {"all": {"current": self._held_bytes, "peak": self._peak_bytes}},
            "reserved_bytes": {"all": {"current": 4096, "peak": 4096}},
            "active_bytes": {"all": {"current": self._held_bytes + 7, "peak": 9999}},
            "inactive_split_bytes": {"all": {"current": 33, "peak": 9999}},
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }

    def reset_peak(self) -> None:
        """From now on the peak is that since now."""
        self._peak_bytes = self._held_bytes


@pytest.fixture
def allocator() -> FakeAllocator:
    return FakeAllocator()


@pytest.fixture
def memory(allocator: FakeAllocator) -> AllocatorMemory:
    return make_account(allocator)


def make_account(allocator: FakeAllocator) -> AllocatorMemory:
    return AllocatorMemory(read=allocator.read, reset_peak=allocator.reset_peak, now_ns=lambda: allocator.now_ns)


def _value(samples: list[Sample], metric: Metric) -> float:
    (found,) = [sample.value for sample in samples if sample.metric == metric.name]
    return found


def _by_phase(samples: list[Sample]) -> dict[str, float]:
    return {sample.labels["phase"]: sample.value for sample in samples if sample.metric == PHASE_PEAK_BYTES.name}


def test_the_end_of_a_step_tells_the_whole_account(allocator: FakeAllocator, memory: AllocatorMemory) -> None:
    memory.start()
    allocator.hold(100)
    samples = memory.end_step()
    expected = {
        ALLOCATED_BYTES: 100,
        RESERVED_BYTES: 4096,
        ACTIVE_BYTES: 107,
        INACTIVE_SPLIT_BYTES: 33,
        PEAK_BYTES: 100,
        ALLOCATION_RETRIES: 2,
        OUT_OF_MEMORY: 1,
    }
    assert {metric: _value(samples, metric) for metric in expected} == expected
    assert len(samples) == len(expected)


def test_each_phase_has_its_own_peak_and_the_step_the_largest(
    allocator: FakeAllocator, memory: AllocatorMemory
) -> None:
    memory.start()
    for phase, held_bytes in (("forward", 300), ("backward", 500), ("optimizer", 40)):
        allocator.hold(held_bytes)
        allocator.hold(-held_bytes)
        memory.end_phase(phase)
    samples = memory.end_step()
    assert _by_phase(samples) == {"forward": 300, "backward": 500, "optimizer": 40}
    assert _value(samples, PEAK_BYTES) == 500


def test_what_lies_between_two_phases_counts_with_the_second(allocator: FakeAllocator, memory: AllocatorMemory) -> None:
    memory.start()
    memory.end_phase("forward")
    allocator.hold(800)
    allocator.hold(-700)
    memory.end_phase("backward")
    assert _by_phase(memory.end_step()) == {"forward": 0, "backward": 800}


def test_what_comes_after_the_last_phase_is_in_the_steps_peak(
    allocator: FakeAllocator, memory: AllocatorMemory
) -> None:
    memory.start()
    memory.end_phase("optimizer")
    allocator.hold(600)
    samples = memory.end_step()
    assert _by_phase(samples) == {"optimizer": 0}
    assert _value(samples, PEAK_BYTES) == 600


def test_a_phase_that_is_entered_again_keeps_the_largest_peak(
    allocator: FakeAllocator, memory: AllocatorMemory
) -> None:
    memory.start()
    for held_bytes in (10, 50, 20):
        allocator.hold(held_bytes)
        allocator.hold(-held_bytes)
        memory.end_phase("forward")
    assert _by_phase(memory.end_step()) == {"forward": 50}


def test_no_peak_of_a_step_is_seen_in_the_next(allocator: FakeAllocator, memory: AllocatorMemory) -> None:
    memory.start()
    memory.end_phase("forward")
    allocator.hold(900)
    allocator.hold(-890)
    memory.end_step()
    assert _value(memory.end_step(), PEAK_BYTES) == 10


def test_what_was_held_before_the_start_is_in_no_peak(allocator: FakeAllocator, memory: AllocatorMemory) -> None:
    allocator.hold(900)
    allocator.hold(-900)
    memory.end_phase("forward")
    memory.start()
    samples = memory.end_step()
    assert _value(samples, PEAK_BYTES) == 0
    assert _by_phase(samples) == {}


PHASES = ("data", "forward", "backward", "optimizer")
ACCOUNT_NS = 35_000


def run_steps(allocator: FakeAllocator, memory: AllocatorMemory, step_ns: int, count: int) -> list[list[Sample]]:
    """What is told of so many steps in a row; each holds 100 bytes in forward and its own number in backward."""
    told = []
    memory.start()
    for number in range(count):
        for phase in PHASES:
            held_bytes = {"forward": 100, "backward": number}.get(phase, 0)
            allocator.hold(held_bytes)
            allocator.hold(-held_bytes)
            allocator.now_ns += step_ns // len(PHASES)
            memory.end_phase(phase)
        told.append(memory.end_step(is_last=number == count - 1))
    return told


def test_asking_takes_at_most_its_share_of_short_steps() -> None:
    allocator = FakeAllocator(account_ns=ACCOUNT_NS)
    told = run_steps(allocator, make_account(allocator), 5_000_000, 400)
    assert allocator.asked * ACCOUNT_NS <= READING_SHARE * allocator.now_ns
    assert 20 < sum(_by_phase(samples) != {} for samples in told) < 100


def test_long_steps_are_asked_each() -> None:
    allocator = FakeAllocator(account_ns=ACCOUNT_NS)
    told = run_steps(allocator, make_account(allocator), 200_000_000, 20)
    assert [set(_by_phase(samples)) for samples in told] == [set(PHASES)] * 20
    assert allocator.asked * ACCOUNT_NS <= READING_SHARE * allocator.now_ns


def test_long_steps_pay_for_no_short_ones() -> None:
    allocator = FakeAllocator(account_ns=ACCOUNT_NS)
    memory = make_account(allocator)
    run_steps(allocator, memory, 10_000_000_000, 3)
    begun_ns, asked = allocator.now_ns, allocator.asked
    run_steps(allocator, memory, 5_000_000, 400)
    assert (allocator.asked - asked) * ACCOUNT_NS <= READING_SHARE * (allocator.now_ns - begun_ns) + 12 * ACCOUNT_NS


def test_a_step_that_is_not_asked_tells_nothing_and_one_that_is_its_own_peaks() -> None:
    allocator = FakeAllocator(account_ns=ACCOUNT_NS)
    told = run_steps(allocator, make_account(allocator), 5_000_000, 400)
    asked = {number: samples for number, samples in enumerate(told) if _by_phase(samples)}
    assert 0 in asked
    for number, samples in asked.items():
        assert _by_phase(samples) == {"data": 0, "forward": 100, "backward": number, "optimizer": 0}
        assert _value(samples, PEAK_BYTES) == max(100, number)
    assert sum(not samples for samples in told) > len(told) / 2


def test_the_peaks_of_steps_that_are_not_asked_are_in_the_next_account() -> None:
    allocator = FakeAllocator(account_ns=ACCOUNT_NS)
    told = run_steps(allocator, make_account(allocator), 5_000_000, 400)
    between = [(number, samples) for number, samples in enumerate(told) if samples and not _by_phase(samples)]
    assert between[-1][0] == len(told) - 1
    assert [_value(samples, PEAK_BYTES) for _, samples in between] == [max(100, number) for number, _ in between]


def test_resident_memory_is_the_pages_that_the_system_counts(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("900 123 45 6 0 7 0\n")
    assert ProcessMemory(statm).end_step() == [RESIDENT_BYTES.at(123 * os.sysconf("SC_PAGE_SIZE"))]


def test_resident_memory_is_absent_without_proc(tmp_path: Path) -> None:
    assert ProcessMemory(tmp_path / "statm").end_step() == []


def test_a_step_on_the_cpu_has_resident_memory_and_no_peak() -> None:
    memory = make_memory(torch.device("cpu"))
    memory.start()
    memory.end_phase("forward")
    assert [sample.metric for sample in memory.end_step()] == [RESIDENT_BYTES.name]


@pytest.mark.gpu
def test_the_peaks_on_cuda_are_those_of_their_phases() -> None:
    device = torch.device("cuda")
    torch.zeros(1, device=device)
    gc.collect()
    memory = make_memory(device)
    memory.start()
    memory.end_phase("data")
    large = torch.empty(2**28, dtype=torch.uint8, device=device)
    del large
    memory.end_phase("forward")
    memory.end_phase("backward")
    samples = memory.end_step()
    peaks_bytes = _by_phase(samples)
    assert peaks_bytes["forward"] - peaks_bytes["data"] == peaks_bytes["forward"] - peaks_bytes["backward"] == 2**28
    assert _value(samples, PEAK_BYTES) == peaks_bytes["forward"]
    assert _value(samples, ACTIVE_BYTES) >= _value(samples, ALLOCATED_BYTES)
