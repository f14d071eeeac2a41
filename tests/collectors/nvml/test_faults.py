"""What goes wrong with drivers and GPUs, and what is still known then."""

from __future__ import annotations

import threading
from typing import Any

import pynvml
import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.collector import HOLD_S
from collectors.nvml.library import NVMLError
from tests.collectors.nvml.nodes import (
    FakeClock,
    FakeFault,
    FakeHang,
    a_gpu,
    a_node,
    eight_gpus,
    of,
    opened,
    replayed,
    values,
)

POWER, STATE, AGE = (
    gpu_metrics.GPU_POWER_WATTS.name,
    gpu_metrics.GPU_STATE.name,
    gpu_health_metrics.GPU_AGE_SECONDS.name,
)
SOON_S = 0.02
ANSWERED_S = 2.0
"""Deadline of tests in which one GPU hangs until it and the others answer: on a busy machine that takes a while."""


class FakeRefusal:
    """A function that is refused with a code at times."""

    def __init__(self, function: str, code: int, *, clock: FakeClock | None = None, at_s: float = 0.0) -> None:
        self.asked = 0
        self._function, self._code = function, code
        self._clock, self._at_s = clock, at_s

    def __call__(self, name: str, arguments: tuple[object, ...]) -> None:
        if name == self._function:
            self.asked += 1
            if self._clock is None or self._clock.now_s == self._at_s:
                raise NVMLError(self._code)


def _states(samples: list[Sample]) -> list[str]:
    return [sample.labels["state"] for sample in samples if sample.metric == STATE]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver: NVML library not found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "no NVIDIA driver: its kernel module is not loaded"),
        (
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "NVML does not start: RM has detected an NVML/RM version mismatch.;"
            " samples of GPUs are left out of this run",
        ),
    ],
)
def test_a_node_without_a_driver_gives_nothing_and_one_reason(code: int, reason: str) -> None:
    clock = FakeClock()
    nvml = FakeFault(replayed(a_node(), clock), spoil=FakeRefusal("nvmlInit", code)).spoilt
    with opened(nvml, clock) as collector:
        assert (collector.read(), collector.read()) == ([], [])
        assert collector.absent == (reason,)


def test_a_driver_without_gpus_is_said() -> None:
    clock = FakeClock()
    with opened(replayed(a_node(), clock), clock) as collector:
        assert collector.read() == []
        assert collector.absent == ("NVML: driver 590.48.01 shows no GPU; samples of GPUs are left out of this run",)


def test_a_question_that_is_not_supported_is_asked_once_and_said_once() -> None:
    clock = FakeClock()
    refusal = FakeRefusal("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_NOT_SUPPORTED)
    nvml = FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=refusal).spoilt
    with opened(nvml, clock) as collector:
        for clock.now_s in range(3):
            assert POWER not in values(collector.read())
        assert collector.absent == (
            "GPUs 0, 1: driver 590.48.01 does not report power sensor; they are left out of this run",
        )
    assert refusal.asked == 2


def test_a_function_that_the_driver_is_too_old_for_is_one_that_is_not_supported() -> None:
    clock = FakeClock()
    missing = frozenset({"nvmlDeviceGetMarginTemperature", "nvmlDeviceGetFieldValues", "nvmlEventSetCreate"})
    with opened(FakeFault(replayed(a_node(a_gpu()), clock), missing=missing).spoilt, clock) as collector:
        found = values(collector.read())
        assert gpu_metrics.GPU_TEMPERATURE_MARGIN_CELSIUS.name not in found
        assert POWER in found
        (events, refused) = collector.absent
    assert events == "GPU 0: the driver reports no events (Function Not Found); XIDs are not counted"
    assert refused.startswith("GPU 0: driver 590.48.01 does not report temperature margin, fields in one call;")


def test_a_field_that_the_driver_does_not_know_is_left_out_alone() -> None:
    clock = FakeClock()
    gpu = a_gpu(without=("field(83)",), refusals={"field(83)": pynvml.NVML_ERROR_INVALID_ARGUMENT})
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        found = values(collector.read())
        assert gpu_metrics.GPU_ENERGY_JOULES.name not in found
        assert gpu_metrics.GPU_POWER_INSTANT_WATTS.name in found
        assert collector.absent == (
            "GPU 0: driver 590.48.01 does not report energy counter; they are left out of this run",
        )


def test_a_field_that_was_refused_is_not_among_those_that_are_asked_for_next() -> None:
    clock, asked = FakeClock(), list[list[int]]()

    def note(name: str, arguments: tuple[Any, ...]) -> None:
        if name == "nvmlDeviceGetFieldValues":
            asked.append([number for number, _ in arguments[1]])

    nvml = FakeFault(replayed(a_node(a_gpu(without=("field(83)",))), clock), spoil=note).spoilt
    with opened(nvml, clock) as collector:
        for clock.now_s in (0.0, 1.0):
            collector.read()
    assert [83 in numbers for numbers in asked] == [True, False]


def test_what_this_process_may_not_ask_is_told_apart_from_what_is_not_there() -> None:
    clock = FakeClock()
    refusal = FakeRefusal("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION)
    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refusal).spoilt, clock) as collector:
        assert gpu_metrics.GPU_TASKS.name not in values(collector.read())
        assert collector.absent == (
            "GPU 0: this process is not permitted to read list of processes; they are left out of this run",
        )
        (standing,) = [one for one in collector.support() if one.question == "list of processes"]
    assert (standing.answer, standing.reason) == ("not permitted", "Insufficient Permissions")


def test_a_question_that_times_out_is_missing_at_that_beat_only() -> None:
    clock = FakeClock()
    refusal = FakeRefusal("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_TIMEOUT, clock=clock, at_s=1.0)
    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refusal).spoilt, clock) as collector:
        has_power = []
        for clock.now_s in (0.0, 1.0, 2.0):
            has_power.append(POWER in values(collector.read()))
        assert has_power == [True, False, True]
        assert collector.absent == ("GPU 0: sometimes no answer for power sensor (Timeout); they are left out then",)


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues", "nvmlGpmSampleGet"])
def test_a_gpu_that_is_lost_between_two_questions_gives_no_half_of_its_samples(function: str, code: int) -> None:
    clock = FakeClock()
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=FakeRefusal(function, code)).spoilt
    with opened(nvml, clock) as collector:
        samples = collector.read()
    assert {sample.metric for sample in of(samples, "0")} - {"observatory_gpu_events_total"} == {
        STATE,
        gpu_health_metrics.GPU_MISSED.name,
    }
    assert _states(samples) == ["lost"]


def test_a_gpu_that_is_lost_ends_and_the_others_go_on() -> None:
    clock = FakeClock()
    node = a_node(a_gpu(), a_gpu(lost_from_s=2.0), a_gpu())
    with opened(replayed(node, clock), clock) as collector:
        shown = []
        for clock.now_s in (0.0, 1.0, 2.0, 3.0):
            samples = collector.read()
            shown.append([POWER in values(of(samples, gpu)) for gpu in "012"])
        assert shown == [[True] * 3, [True] * 3, [True, False, True], [True, False, True]]
        assert collector.absent == ("GPU 1: GPU is lost; its samples are left out until it is found again",)
        assert _states(samples) == ["answering", "lost", "answering"]


def test_a_gpu_that_is_lost_from_the_start_is_shown_to_be_and_the_others_are_read() -> None:
    clock = FakeClock()
    with opened(replayed(a_node(a_gpu(lost_from_s=0.0), a_gpu()), clock), clock) as collector:
        samples = collector.read()
        assert {sample.labels["gpu"] for sample in samples if sample.metric == POWER} == {"1"}
        assert _states(samples) == ["lost", "answering"]
        assert "GPU 0: GPU is lost; its samples are left out until it is found again" in collector.absent


def test_a_gpu_that_this_process_may_not_look_for_is_left_out_with_the_reason() -> None:
    clock = FakeClock()

    def forbid(name: str, arguments: tuple[object, ...]) -> None:
        if name == "nvmlDeviceGetHandleByIndex" and arguments == (0,):
            raise NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    with opened(FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=forbid).spoilt, clock) as collector:
        samples = collector.read()
        assert {sample.labels["gpu"] for sample in samples if "gpu" in sample.labels} == {"1"}
        reason = "GPU 0: Insufficient Permissions; its samples are left out until it is found again"
        assert reason in collector.absent


def test_a_mistake_of_ours_about_one_gpu_ends_that_one_alone_and_is_no_loss() -> None:
    clock = FakeClock()
    node = a_node(a_gpu({"nvmlDeviceGetPowerUsage": "much"}), a_gpu())
    with opened(replayed(node, clock), clock) as collector:
        samples = collector.read()
        assert _states(samples) == ["failed", "answering"]
        assert collector.absent[0].startswith("GPU 0: a bug of ours, TypeError: ")


def test_a_gpu_that_hangs_is_late_alone_and_what_is_shown_of_it_has_its_age() -> None:
    clock, hang = FakeClock(), FakeHang(index=1, is_hanging=False)
    nvml = FakeFault(replayed(a_node(a_gpu(), a_gpu()), clock), spoil=hang).spoilt
    with opened(nvml, clock, deadline_s=ANSWERED_S) as collector:
        try:
            collector.read()
            hang.is_hanging = True
            ages, missed = [], []
            for clock.now_s in (1.0, 2.0, 3.0):
                samples = collector.read()
                assert _states(samples) == ["answering", "late"]
                ages.append([values(of(samples, gpu))[AGE] for gpu in "01"])
                missed.append([values(of(samples, gpu))[gpu_health_metrics.GPU_MISSED.name] for gpu in "01"])
                assert POWER in values(of(samples, "1"))
            assert ages == [[0, 1], [0, 2], [0, 3]]
            assert missed == [[0, 1], [0, 2], [0, 3]]
            assert collector.absent == (
                "GPU 1: sometimes no answer by the deadline; its last answer is shown meanwhile",
            )
        finally:
            hang.let_go.set()


def test_a_gpu_that_hangs_for_long_shows_its_age_and_nothing_else() -> None:
    clock, hang = FakeClock(), FakeHang(index=0, is_hanging=False)
    with opened(
        FakeFault(replayed(a_node(a_gpu()), clock), spoil=hang).spoilt, clock, deadline_s=ANSWERED_S
    ) as collector:
        try:
            collector.read()
            hang.is_hanging = True
            clock.now_s = HOLD_S + 1
            found = values(of(collector.read(), "0"))
            assert found[AGE] == HOLD_S + 1
            assert POWER not in found
        finally:
            hang.let_go.set()


def test_a_gpu_that_hung_is_read_again_when_its_driver_returns() -> None:
    clock, hang = FakeClock(), FakeHang(index=0)
    with opened(
        FakeFault(replayed(a_node(a_gpu()), clock), spoil=hang).spoilt, clock, deadline_s=ANSWERED_S
    ) as collector:
        assert _states(collector.read()) == ["late"]
        hang.is_hanging = False
        hang.let_go.set()
        while _states(samples := collector.read()) == ["late"]:
            pass
        assert POWER in values(of(samples, "0"))


def test_a_gpu_that_was_late_once_is_in_time_at_the_next_slow_beat() -> None:
    clock, hang = FakeClock(), FakeHang(index=0)
    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=hang).spoilt, clock, deadline_s=1.0) as collector:
        assert _states(collector.read()) == ["late"]
        hang.is_hanging = False
        hang.let_go.set()
        (watched,) = collector._watched()
        watched.await_found(10.0)
        assert _states(collector.read()) == ["answering"]


def test_nvml_that_hangs_as_it_starts_holds_nobody_up_and_is_taken_in_when_it_has_started() -> None:
    clock, let_go = FakeClock(), threading.Event()

    def hang(name: str, arguments: tuple[object, ...]) -> None:
        if name == "nvmlInit":
            let_go.wait()

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=hang).spoilt, clock, open_s=SOON_S) as collector:
        try:
            assert collector.read() == []
            (reason,) = collector.absent
            assert reason.startswith("NVML does not start: no answer within 0.02 s;")
        finally:
            let_go.set()
        while POWER not in values(collector.read()):
            pass
        assert reason not in collector.absent


def test_a_gpu_split_by_mig_tells_its_instances_apart_and_no_utilization() -> None:
    clock = FakeClock()
    with opened(replayed(a_node(eight_gpus().gpus[7]), clock), clock) as collector:
        collector.read()
        clock.now_s = 60.0
        samples = collector.read()
        used = {
            sample.labels["slice"]: sample.value
            for sample in samples
            if sample.metric == gpu_metrics.GPU_INSTANCE_MEMORY_USED_BYTES.name
        }
        assert used == {"1/0": 40e9, "2/0": 40e9}
        assert gpu_metrics.GPU_UTILIZATION.name not in values(samples)
        assert values(samples)[gpu_metrics.GPU_TASKS.name] == 2
        assert {one.instance for each in collector.processes().values() for one in each} == {"1/0", "2/0"}
        reason = "GPU 0: split by MIG; NVML reports no utilization of the GPU, an instance or a process"
        assert reason in collector.absent
        assert POWER in values(samples)


def test_instances_that_mig_makes_later_are_found() -> None:
    clock = FakeClock()
    nvml = replayed(a_node(eight_gpus().gpus[7]), clock)
    hidden = FakeRefusal("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_NOT_FOUND, clock=clock, at_s=0.0)
    with opened(FakeFault(nvml, spoil=hidden).spoilt, clock) as collector:
        assert gpu_metrics.GPU_INSTANCE.name not in values(collector.read())
        clock.now_s = 10.0
        assert gpu_metrics.GPU_INSTANCE.name in values(collector.read())


def test_all_threads_end_with_the_collector() -> None:
    before = threading.active_count()
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock) as collector:
        collector.read()
        assert threading.active_count() > before
    assert threading.active_count() == before
