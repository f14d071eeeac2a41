"""The slices of a GPU that MIG split, and what is still known of them where some of it may not be asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pynvml
import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import NVMLError
from collectors.nvml.recorder import AnswerTrack
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, eight_gpus, opened, replayed, values

SPLIT = eight_gpus().gpus[7]
MEMORY, PROCESSES = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetComputeRunningProcesses_v3"
FIRST, SECOND = {"slice": "1/0"}, {"slice": "2/0"}


class FakeForbidden:
    """A function that may not be asked of some slices, by their place in the recording; None for all."""

    def __init__(self, function: str, *, of: int | None = None, code: int = pynvml.NVML_ERROR_NO_PERMISSION) -> None:
        self.asked = Counter[str]()
        self._function, self._code = function, code
        self._slice = None if of is None else SPLIT.instances[str(of)]

    def __call__(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == self._function and arguments[0].gpu is not arguments[0].physical:
            self.asked.update([name])
            if self._slice is None or arguments[0].gpu is self._slice:
                raise NVMLError(self._code)


def _read_twice(forbidden: FakeForbidden) -> tuple[list[Sample], tuple[str, ...], set[int]]:
    """Samples while both slices work, what is said to be absent, and whose processes are known."""
    clock = FakeClock()
    with opened(FakeFault(replayed(a_node(SPLIT), clock), spoil=forbidden).spoilt, clock) as collector:
        collector.read()
        clock.now_s = 60.0
        return collector.read(), collector.absent, set(collector.processes())


def test_processes_that_may_not_be_asked_for_take_neither_the_slice_nor_its_memory_with_them() -> None:
    samples, absent, pids = _read_twice(FakeForbidden(PROCESSES))
    for labels in (FIRST, SECOND):
        found = values(samples, **labels)
        assert found[gpu_metrics.GPU_INSTANCE.name] == 1
        assert found[gpu_metrics.GPU_INSTANCE_MEMORY_USED_BYTES.name] == 40e9
        assert gpu_metrics.GPU_INSTANCE_TASKS.name not in found
    assert pids == set()
    assert (
        "GPU 0: this process is not permitted to read processes of slice 1/0, processes of slice 2/0; they are left out"
        " of this run" in absent
    )


def test_a_gpu_whose_slices_do_not_tell_their_processes_has_no_count_and_not_a_count_of_none() -> None:
    samples, _, _ = _read_twice(FakeForbidden(PROCESSES))
    assert gpu_metrics.GPU_TASKS.name not in values(samples)


def test_a_slice_that_tells_its_processes_does_so_beside_one_that_does_not() -> None:
    samples, _, pids = _read_twice(FakeForbidden(PROCESSES, of=0))
    assert gpu_metrics.GPU_INSTANCE_TASKS.name not in values(samples, **FIRST)
    assert values(samples, **SECOND)[gpu_metrics.GPU_INSTANCE_TASKS.name] == 1
    assert gpu_metrics.GPU_TASKS.name not in values(samples)
    assert pids == {5001}


def test_memory_that_may_not_be_asked_for_leaves_the_processes() -> None:
    samples, _, pids = _read_twice(FakeForbidden(MEMORY))
    assert gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.name not in values(samples, **FIRST)
    assert values(samples, **FIRST)[gpu_metrics.GPU_INSTANCE_TASKS.name] == 1
    assert values(samples)[gpu_metrics.GPU_TASKS.name] == 2
    assert pids == {5000, 5001}


def test_what_a_slice_may_not_be_asked_for_is_asked_once() -> None:
    forbidden = FakeForbidden(PROCESSES)
    _read_twice(forbidden)
    assert forbidden.asked[PROCESSES] == len(SPLIT.instances)


def test_what_a_slice_refuses_for_a_moment_is_asked_again() -> None:
    forbidden = FakeForbidden(PROCESSES, code=pynvml.NVML_ERROR_TIMEOUT)
    _read_twice(forbidden)
    assert forbidden.asked[PROCESSES] == 2 * len(SPLIT.instances)


def test_slices_that_cannot_be_listed_for_a_moment_are_still_shown() -> None:
    clock = FakeClock()

    def refuse(name: str, _: tuple[object, ...]) -> None:
        if name == "nvmlDeviceGetMaxMigDeviceCount" and clock.now_s == 10.0:
            raise NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    with opened(FakeFault(replayed(a_node(SPLIT), clock), spoil=refuse).spoilt, clock) as collector:
        collector.read()
        clock.now_s = 10.0
        assert values(collector.read(), **FIRST)[gpu_metrics.GPU_INSTANCE.name] == 1


@pytest.mark.parametrize("is_without", [True, False])
def test_a_gpu_without_mig_is_asked_for_slices_once(is_without: bool) -> None:
    clock, asked = FakeClock(), Counter[str]()
    gpu = a_gpu(without=("nvmlDeviceGetMigMode",) if is_without else ())
    nvml = FakeFault(replayed(a_node(gpu), clock), spoil=lambda name, _: asked.update([name])).spoilt
    with opened(nvml, clock) as collector:
        for clock.now_s in (0.0, 10.0, 20.0):
            collector.read()
        (standing,) = [one for one in collector.support() if one.question == "MIG instances"]
    assert standing.answer == ("not supported" if is_without else "answers")
    assert asked["nvmlDeviceGetMigMode"] == (2 if is_without else 6)


def test_what_mig_takes_from_a_gpu_is_there_again_when_mig_is_switched_off() -> None:
    clock = FakeClock()
    modes = AnswerTrack(at_s=[0.0, 60.0, 120.0], values=[[0, 0], [1, 1], [0, 0]])
    whole = a_gpu()
    gpu = msgspec.structs.replace(whole, tracks={**whole.tracks, "nvmlDeviceGetMigMode": modes})

    def refuse(name: str, _: tuple[object, ...]) -> None:
        if name == "nvmlDeviceGetUtilizationRates" and 60 <= clock.now_s < 120:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    seen: dict[float, bool] = {}
    with opened(FakeFault(replayed(a_node(gpu), clock), spoil=refuse).spoilt, clock) as collector:
        for clock.now_s in (0.0, 30.0, 60.0, 61.0, 62.0, 90.0, 120.0, 121.0, 122.0):
            seen[clock.now_s] = gpu_metrics.GPU_UTILIZATION.name in values(collector.read())
            if clock.now_s == 90.0:
                assert _utilization(collector) == "not supported", "it was found anew, and has never answered since"
    assert [at_s for at_s, is_seen in seen.items() if is_seen] == [0.0, 30.0, 122.0]


def test_a_gpu_that_tells_late_whether_mig_is_on_is_not_found_anew_for_it() -> None:
    clock, found = FakeClock(), Counter[str]()

    def watch(name: str, _: tuple[object, ...]) -> None:
        found.update([name])
        if name == "nvmlDeviceGetMigMode" and clock.now_s == 0.0:
            raise NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=watch).spoilt, clock) as collector:
        for clock.now_s in (0.0, 10.0, 20.0, 21.0):
            collector.read()
    assert found["nvmlDeviceGetUUID"] == 1


def _utilization(collector: NvmlCollector) -> str:
    return next(one.answer for one in collector.support() if one.question == "utilization counter")


def test_slices_that_are_made_again_tell_their_memory_again() -> None:
    clock = FakeClock()

    def refuse(name: str, arguments: tuple[Any, ...]) -> None:
        if name == MEMORY and arguments[0].gpu is not arguments[0].physical and clock.now_s == 5.0:
            raise NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    with opened(FakeFault(replayed(a_node(SPLIT), clock), spoil=refuse).spoilt, clock) as collector:
        collector.read()
        clock.now_s = 5.0
        assert gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.name not in values(collector.read(), **FIRST)
        clock.now_s = 6.0
        assert gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.name in values(collector.read(), **FIRST)
