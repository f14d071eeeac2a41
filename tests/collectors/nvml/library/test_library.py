"""What is asked of the installed library, and how its refusals are told apart."""

from __future__ import annotations

import ctypes
import inspect

import pynvml
import pytest

from collectors.nvml.library import Nvml, NVMLError, Timed, installed_nvml, key_of, says_lost, says_unsupported
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, replayed


def test_the_installed_library_has_every_function_with_the_arguments_that_are_given() -> None:
    for name, ours in inspect.getmembers(Nvml, inspect.isfunction):
        if name.startswith("nvml"):
            arguments = [argument for argument in inspect.signature(ours).parameters if argument != "self"]
            inspect.signature(getattr(pynvml, name)).bind(*arguments)


def test_calls_are_timed_by_function_whether_they_answer_or_refuse() -> None:
    clock = FakeClock()

    def take(name: str, arguments: tuple[object, ...]) -> None:
        clock.now_s += 0.25

    timed = Timed(
        FakeFault(replayed(a_node(a_gpu(without=("nvmlDeviceGetName",))), clock), spoil=take).spoilt, clock_ns=clock.ns
    )
    handle = timed.nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(2):
        timed.nvml.nvmlDeviceGetPowerUsage(handle)
        with pytest.raises(NVMLError):
            timed.nvml.nvmlDeviceGetName(handle)
    assert timed.seconds == {
        "nvmlDeviceGetHandleByIndex": 0.25,
        "nvmlDeviceGetPowerUsage": 0.5,
        "nvmlDeviceGetName": 0.5,
    }
    assert timed.calls == {"nvmlDeviceGetHandleByIndex": 1, "nvmlDeviceGetPowerUsage": 2, "nvmlDeviceGetName": 2}


def test_what_comes_many_to_a_call_is_counted_one_by_one() -> None:
    clock = FakeClock()
    timed = Timed(replayed(a_node(a_gpu()), clock), clock_ns=clock.ns)
    nvml = timed.nvml
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert timed.requested == 2
    nvml.nvmlDeviceGetFieldValues(handle, [(83, 0), (186, 0), (99_999, 0)])
    assert timed.requested == 5
    wanted = pynvml.c_nvmlGpmMetricsGet_t()
    wanted.numMetrics = 2
    wanted.metrics[0].metricId, wanted.metrics[1].metricId = 1, 2
    wanted.sample2 = nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc())
    assert timed.requested == 7
    nvml.nvmlGpmMetricsGet(wanted)
    assert timed.requested == 9


def test_who_is_asked_next_goes_on_from_what_was_counted_before() -> None:
    clock = FakeClock()

    def take(name: str, arguments: tuple[object, ...]) -> None:
        clock.now_s += 0.25

    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=take).spoilt
    before, after = (Timed(nvml, clock_ns=clock.ns) for _ in range(2))
    for timed, times in ((before, 3), (after, 1)):
        for _ in range(times):
            timed.nvml.nvmlSystemGetDriverVersion()
    after.go_on_from(before)
    assert after.calls == {"nvmlSystemGetDriverVersion": 4}
    assert after.seconds == {"nvmlSystemGetDriverVersion": 1.0}
    assert after.requested == 4


def test_a_function_that_the_installed_module_has_not_refuses_like_an_old_driver() -> None:
    timed = Timed(installed_nvml())
    with pytest.raises(NVMLError) as refusal:
        timed.nvmlDeviceGetSomethingOfTomorrow()
    assert says_unsupported(refusal.value)


def test_handles_of_one_gpu_share_a_key_though_they_are_two_objects() -> None:
    first, second = (ctypes.cast(place, pynvml.c_nvmlDevice_t) for place in (64, 64))
    other = ctypes.cast(128, pynvml.c_nvmlDevice_t)
    assert key_of(first) == key_of(second) != key_of(other)


@pytest.mark.parametrize(
    "code",
    [
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_UNINITIALIZED,
    ],
)
def test_a_gpu_that_needs_a_reset_or_its_driver_is_as_lost_as_one_that_is_gone(code: int) -> None:
    assert says_lost(NVMLError(code))
    assert not says_unsupported(NVMLError(code))
