"""Monitors that something else holds are a gap with its reason, and come back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

from collectors.dcgm import gpus_by_monitors, gpus_with_held_monitors
from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.nvml.library import NVMLError
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, of, opened, replayed, values

SM, UTILIZATION = gpu_health_metrics.GPU_SM_ACTIVITY.name, gpu_metrics.GPU_UTILIZATION.name


@dataclass(slots=True)
class FakeHolder:
    """Holds the monitors of one GPU from one time to another."""

    clock: FakeClock
    index: int
    times_s: tuple[float, float]
    asked: list[float] = field(default_factory=list)

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlGpmSampleGet" and arguments[0].index == self.index:
            self.asked.append(self.clock.now_s)
            if self.times_s[0] <= self.clock.now_s < self.times_s[1]:
                raise NVMLError(pynvml.NVML_ERROR_IN_USE)


def test_a_gap_lasts_as_long_as_they_are_held_and_costs_nothing_else() -> None:
    clock = FakeClock()
    holder = FakeHolder(clock, index=0, times_s=(3.0, 5.0))
    nvml = FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=holder).spoilt
    seen: dict[str, list[bool]] = {"0": [], "1": []}
    with opened(nvml, clock) as collector:
        for clock.now_s in map(float, range(8)):
            samples = collector.read()
            for gpu, has_activity in seen.items():
                has_activity.append(SM in values(of(samples, gpu)))
                assert UTILIZATION in values(of(samples, gpu))
        assert gpus_with_held_monitors(collector.support()) == ("0",)
        assert collector.absent == (
            f"GPU 0: sometimes no answer for GPM ({NVMLError(pynvml.NVML_ERROR_IN_USE)}); they are left out then",
        )
    assert seen["0"] == [False, True, True, False, False, False, True, True]
    assert seen["1"] == [False, *(True,) * 7]


def test_monitors_that_fail_otherwise_are_not_held() -> None:
    clock = FakeClock()

    def fail(name: str, _: tuple[Any, ...]) -> None:
        if name == "nvmlGpmSampleGet":
            raise NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=fail).spoilt, clock) as collector:
        collector.read()
        assert gpus_with_held_monitors(collector.support()) == ()


def test_gpus_are_told_apart_by_how_their_monitors_answer() -> None:
    clock = FakeClock()
    older = a_gpu({"nvmlGpmQueryDeviceSupport": {"isSupportedDevice": 0}})
    with opened(replayed(a_node(older, a_gpu(), a_gpu()), clock), clock) as collector:
        for clock.now_s in (0.0, 1.0):
            collector.read()
        assert gpus_by_monitors(collector.support()) == {"not supported": ("0",), "answers": ("1", "2")}
