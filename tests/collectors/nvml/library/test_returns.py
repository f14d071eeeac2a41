"""What is gone is looked for again: GPUs that were lost, drivers that are loaded late or anew."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import RETRY_S, NVMLError
from collectors.nvml.recorder import DriverEvent
from tests.collectors.nvml.nodes import FakeClock, FakeFault, FakeHang, a_gpu, a_node, of, opened, replayed, values

POWER, MISSED = gpu_metrics.GPU_POWER_WATTS.name, gpu_health_metrics.GPU_MISSED.name
FIND = "nvmlDeviceGetHandleByIndex"
SOON_S = 0.02


class FakeIll:
    """One GPU, or all where none is named, whose every question is refused while `code` is set."""

    def __init__(self, index: int | None = None, code: int | None = None) -> None:
        self.index, self.code = index, code
        self.found = 0

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == FIND:
            place = arguments[0]
            self.found += place == self.index
        else:
            place = getattr(arguments[0], "index", None) if arguments else None
        if self.code is not None and place is not None and self.index in (None, place):
            raise NVMLError(self.code)


def _states(samples: list[Sample]) -> list[str]:
    return [sample.labels["state"] for sample in samples if sample.metric == gpu_metrics.GPU_STATE.name]


def _read_until(collector: NvmlCollector, is_so: Callable[[list[Sample]], bool]) -> list[Sample]:
    while not is_so(samples := collector.read()):
        time.sleep(0.001)
    return samples


def test_a_gpu_that_was_lost_is_shown_again_once_it_is_found_again() -> None:
    clock, ill = FakeClock(), FakeIll(1)
    nvml = FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=ill).spoilt
    with opened(nvml, clock) as collector:
        assert _states(collector.read()) == ["answering", "answering"]
        ill.code = pynvml.NVML_ERROR_GPU_IS_LOST
        clock.now_s = 1.0
        assert _states(collector.read()) == ["answering", "lost"]
        ill.code, found = None, ill.found
        clock.now_s = RETRY_S
        assert _states(collector.read()) == ["answering", "lost"]
        collector._watched()[1].await_found(10.0)
        assert ill.found == found, "it was not left alone"
        clock.now_s = 1.0 + RETRY_S
        samples = _read_until(collector, lambda samples: _states(samples) == ["answering", "answering"])
        assert POWER in values(of(samples, "1"))
        assert ill.found > found, "its handle is the old one"
        assert not any("lost" in reason for reason in collector.absent)


def test_calls_are_counted_on_when_a_gpu_is_found_again() -> None:
    def calls(samples: list[Sample]) -> float:
        return values(samples, function="nvmlDeviceGetPowerUsage")[gpu_health_metrics.GPU_CALLS.name]

    clock, ill = FakeClock(), FakeIll(1)
    with opened(
        FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=ill).spoilt, clock, reads_costs=True
    ) as collector:
        for _ in range(50):
            before = calls(collector.read())
        ill.code = pynvml.NVML_ERROR_GPU_IS_LOST
        collector.read()
        ill.code = None
        clock.now_s = RETRY_S
        after = _read_until(collector, lambda samples: _states(samples) == ["answering", "answering"])
        assert calls(after) > before


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_a_gpu_that_is_not_found_again_is_lost_at_every_beat_whatever_the_refusal(code: int) -> None:
    clock, ill = FakeClock(), FakeIll(1, pynvml.NVML_ERROR_GPU_IS_LOST)
    with opened(FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=ill).spoilt, clock) as collector:
        for clock.now_s in range(0, 200, 10):
            assert _states(collector.read()) == ["answering", "lost"]
            collector._watched()[1].await_found(10.0)
            ill.code = code


def test_a_refusal_of_a_moment_is_a_missed_reading_and_no_loss() -> None:
    clock, is_refusing = FakeClock(), [True]

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if is_refusing[0] and name == FIND:
            raise NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refuse).spoilt, clock) as collector:
        samples = collector.read()
        assert _states(samples) == ["late"]
        assert values(samples)[MISSED] == 1
        assert (
            "GPU 0: sometimes no complete answer (Unknown Error); its last answer is shown meanwhile"
            in collector.absent
        )
        is_refusing[0] = False
        assert POWER in values(_read_until(collector, lambda samples: _states(samples) == ["answering"]))


def test_a_gpu_that_hangs_while_it_is_looked_for_is_late_alone() -> None:
    clock, let_go = FakeClock(), threading.Event()

    def hang(name: str, arguments: tuple[Any, ...]) -> None:
        if name == FIND and arguments == (1,):
            let_go.wait()

    nvml = FakeFault(replayed(a_node(*(a_gpu() for _ in range(3))), clock), spoil=hang).spoilt
    with opened(nvml, clock, open_s=SOON_S, deadline_s=SOON_S) as collector:
        try:
            samples = _read_until(collector, lambda samples: _states(samples) == ["answering", "late", "answering"])
            assert [POWER in values(of(samples, gpu)) for gpu in "012"] == [True, False, True]
        finally:
            let_go.set()
        _read_until(collector, lambda samples: _states(samples) == ["answering"] * 3)


def test_a_gpu_whose_events_hang_leaves_the_others_theirs() -> None:
    clock, let_go, other_listens = FakeClock(), threading.Event(), threading.Event()

    def hang(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlDeviceRegisterEvents":
            let_go.wait() if arguments[0].index == 0 else other_listens.set()

    node = a_node(a_gpu(), a_gpu(events=[DriverEvent(at_s=5.0, kind=8, data=31)]))
    with opened(FakeFault(replayed(node, clock), spoil=hang).spoilt, clock, open_s=SOON_S) as collector:
        try:
            assert other_listens.wait(60)  # What was before that is not told.
            clock.now_s = 6.0
            samples = _read_until(collector, lambda samples: _states(samples) == ["answering", "answering"])
            while gpu_health_metrics.GPU_XIDS.name not in values(of(samples, "1")):
                samples = collector.read()
        finally:
            let_go.set()


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_a_driver_that_is_loaded_later_is_taken_in(code: int) -> None:
    clock, is_loaded = FakeClock(), threading.Event()

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlInit" and not is_loaded.is_set():
            raise NVMLError(code)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refuse).spoilt, clock) as collector:
        for clock.now_s in (0.0, RETRY_S, 2 * RETRY_S):
            _settle(collector)
            assert collector.read() == []
            assert len(collector.absent) == 1
        is_loaded.set()
        clock.now_s = 3 * RETRY_S + 1
        assert POWER in values(_read_until(collector, lambda samples: _states(samples) == ["answering"]))
        assert not any("driver" in reason for reason in collector.absent)


def test_a_gpu_that_a_driver_shows_later_is_taken_in_by_a_new_start_of_nvml() -> None:
    clock, called = FakeClock(), list[str]()
    nvml = FakeLateGpu(replayed(a_node(a_gpu()), clock), spoil=lambda name, _: called.append(name))
    with opened(nvml.spoilt, clock) as collector:
        assert collector.read() == []
        nvml.count = 1
        clock.now_s = RETRY_S
        _read_until(collector, lambda samples: _states(samples) == ["answering"])
    starts = [name for name in called if name in {"nvmlInit", "nvmlShutdown"}]
    assert starts[:3] == ["nvmlInit", "nvmlShutdown", "nvmlInit"]


class FakeLateGpu(FakeFault):
    """NVML that shows `count` GPUs."""

    count = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802  # NVML's own name.
        return self.count


def test_when_all_gpus_are_lost_nvml_is_started_anew_and_they_are_lost_until_they_answer() -> None:
    clock, ill, called = FakeClock(), FakeIll(), list[str]()

    def spoil(name: str, arguments: tuple[Any, ...]) -> None:
        called.append(name)
        ill(name, arguments)

    with opened(FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=spoil).spoilt, clock) as collector:
        collector.read()
        ill.code = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
        assert _states(collector.read()) == ["lost", "lost"]
        clock.now_s = RETRY_S
        assert _states(collector.read()) == ["lost", "lost"]
        _settle(collector)
        starts = [name for name in called if name in {"nvmlInit", "nvmlShutdown"}]
        assert starts == ["nvmlInit", "nvmlShutdown", "nvmlInit"]
        ill.code = None
        clock.now_s = 3 * RETRY_S
        samples = _read_until(collector, lambda samples: _states(samples) == ["answering", "answering"])
        assert [POWER in values(of(samples, gpu)) for gpu in "01"] == [True, True]


def _settle(collector: NvmlCollector) -> None:
    """Until the start of NVML that is under way is over."""
    assert collector._opening.wait(10.0)


def test_the_last_answer_of_a_late_gpu_is_held_as_long_as_one_wishes() -> None:
    clock, hang = FakeClock(), FakeHang(index=0, is_hanging=False)
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=hang).spoilt
    with opened(nvml, clock, hold_s=180.0, deadline_s=0.5) as collector:
        try:
            _read_until(collector, lambda samples: POWER in values(samples))
            hang.is_hanging = True
            shown = []
            for clock.now_s in (61.0, 180.0, 181.0):
                shown.append(POWER in values(collector.read()))
            assert shown == [True, True, False]
        finally:
            hang.let_go.set()
