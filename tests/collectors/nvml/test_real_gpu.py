"""A real GPU: everything that it is asked answers or says no, and what it answers agrees with what was done to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.recorder import load, record, save
from tests.collectors.nvml.nodes import of, values
from tests.support.markers import why_numbered_otherwise

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
BEAT_S = 0.25


@pytest.fixture
def collector() -> Iterator[NvmlCollector]:
    collector = NvmlCollector()
    yield collector
    collector.close()


def _load_for(seconds: float, at_each_beat: Callable[[], None]) -> None:
    """Products of half-precision matrices, which keep the tensor cores busy, and a call at each beat."""
    first = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        beat = time.monotonic() + BEAT_S
        while time.monotonic() < beat:
            for _ in range(4):
                torch.mm(first, first)
            torch.cuda.synchronize()
        at_each_beat()


def test_every_question_answers_or_is_refused_for_good(collector: NvmlCollector) -> None:
    for _ in range(3):
        collector.read()
        time.sleep(BEAT_S)
    support = [one for one in collector.support() if one.gpu == "0"]
    for one in support:
        cost = "" if one.cost_s is None else f"{one.cost_s * 1e6:.1f} us"
        print(f"{one.question:40} {one.answer:14} {cost:>12} {one.reason or ''}")
    assert [one for one in support if one.answer == "not always"] == []
    assert {one.question for one in support if one.answer == "answers"} >= {
        "power sensor",
        "account of device memory",
    }


def test_power_times_time_is_what_the_energy_counter_grew_by(collector: NvmlCollector) -> None:
    readings: list[tuple[float, float, float]] = []

    def note() -> None:
        found = values(of(collector.read(), "0"))
        watts, joules = found[gpu_metrics.GPU_POWER_INSTANT_WATTS.name], found[gpu_metrics.GPU_ENERGY_JOULES.name]
        readings.append((time.monotonic(), watts, joules))

    _load_for(2.0, lambda: None)  # Warm.
    _load_for(10.0, note)
    drawn_j = sum((then - now) * (watts + before) / 2 for (now, before, _), (then, watts, _) in pairwise(readings))
    assert readings[-1][2] - readings[0][2] == pytest.approx(drawn_j, rel=0.1)


def test_memory_in_use_grows_by_what_torch_takes(collector: NvmlCollector) -> None:
    torch.zeros(1, device="cuda")
    before = values(of(collector.read(), "0"))[gpu_metrics.GPU_MEMORY_USED_BYTES.name]
    taken = torch.empty(4 << 30, device="cuda", dtype=torch.uint8)
    after = values(of(collector.read(), "0"))[gpu_metrics.GPU_MEMORY_USED_BYTES.name]
    assert after - before == pytest.approx(taken.numel(), rel=0.05)


def test_monitors_see_multiprocessors_and_tensor_cores_at_work(collector: NvmlCollector) -> None:
    for _ in range(2):
        collector.read()
        time.sleep(BEAT_S)
    if not any(one.question == "GPM" and one.answer == "answers" for one in collector.support()):
        pytest.skip("this GPU has no monitors (GPM)")
    busy: list[list[Sample]] = []
    _load_for(2.0, lambda: busy.append(collector.read()))
    assert values(of(busy[-1], "0"))[gpu_health_metrics.GPU_SM_ACTIVITY.name] > 0.5
    assert values(busy[-1], gpu="0", kind="any")[gpu_health_metrics.GPU_TENSOR_ACTIVITY.name] > 0.2


def test_bytes_over_pcie_are_what_was_copied(collector: NvmlCollector) -> None:
    """Also settles the unit of the counter: bytes, as nvml.h has it, and not KB."""
    host = torch.empty(1 << 30, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    received = {"gpu": "0", "direction": "received"}

    def counted() -> float | None:
        """As of now: the monitors' rate, which tells of the counter's wraps, takes two readings some time apart."""
        for _ in range(2):
            samples = collector.read()
            time.sleep(2 * BEAT_S)
        return values(samples, **received).get(gpu_health_metrics.GPU_PCIE_BYTES.name)

    before = counted()
    if before is None:
        pytest.skip("this GPU has no counter of PCIe bytes")
    device.copy_(host)
    torch.cuda.synchronize()
    after = counted()
    assert after is not None
    assert after - before == pytest.approx(host.numel(), rel=0.25)


def test_this_process_is_found_on_its_gpu(collector: NvmlCollector) -> None:
    torch.zeros(1, device="cuda")
    collector.read()
    if (reason := why_numbered_otherwise()) is not None:
        pytest.skip(reason)
    assert os.getpid() in collector.processes()


def test_a_real_machine_can_be_recorded(tmp_path: Path) -> None:
    recording = record(seconds=2, beat_s=BEAT_S, note="a test")
    save(recording, tmp_path / "node.json")
    assert load(tmp_path / "node.json").gpus[0].tracks["nvmlDeviceGetPowerUsage"].values
