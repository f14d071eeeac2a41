"""What the node's GPUs give, by a recorded NVML, and what is said of what they do not give."""

from __future__ import annotations

import inspect

import pynvml
import pytest

from collectors.catalogue import gpu as catalogue
from collectors.metric import Sample
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.library import Nvml
from tests.collectors.recorded_nvml import RecordedLoad

INFO = {"uuid": "GPU-0abc-0000", "name": "NVIDIA H200", "driver": "580.82.07"}
PER_GPU = 9
"""Samples of a GPU that answers everything."""


def _of(samples: list[Sample], gpu: str) -> list[Sample]:
    return [sample for sample in samples if sample.labels["gpu"] == gpu]


def _names(samples: list[Sample]) -> set[str]:
    return {sample.metric for sample in samples}


def test_a_gpu_under_load_is_read_in_base_units() -> None:
    assert NvmlCollector(RecordedLoad(names=("NVIDIA H200",))).read() == [
        catalogue.GPU_INFO.at(1, gpu="0", **INFO),
        catalogue.GPU_UTILIZATION.at(1.0, gpu="0"),
        catalogue.GPU_MEMORY_USED_BYTES.at(33_932_967_936, gpu="0"),
        catalogue.GPU_MEMORY_BYTES.at(150_754_820_096, gpu="0"),
        catalogue.GPU_POWER_WATTS.at(627.4, gpu="0"),
        catalogue.GPU_ENERGY_JOULES.at(5_000_000_000.125, gpu="0"),
        catalogue.GPU_TEMPERATURE_CELSIUS.at(52, gpu="0"),
        catalogue.GPU_CLOCK_HERTZ.at(1.98e9, gpu="0", clock="sm"),
        catalogue.GPU_CLOCK_HERTZ.at(3.201e9, gpu="0", clock="memory"),
    ]


def test_a_gpu_that_falls_idle_is_read_anew_and_its_energy_grows_by_what_it_drew() -> None:
    nvml = RecordedLoad(names=("NVIDIA H200",))
    collector = NvmlCollector(nvml)
    loaded = {sample.metric: sample.value for sample in collector.read()}
    nvml.beat = 1
    idle = {sample.metric: sample.value for sample in collector.read()}
    assert idle[catalogue.GPU_UTILIZATION.name] == 0
    assert idle[catalogue.GPU_MEMORY_USED_BYTES.name] == 0
    assert idle[catalogue.GPU_POWER_WATTS.name] == 76.25
    energy = catalogue.GPU_ENERGY_JOULES.name
    assert idle[energy] - loaded[energy] == pytest.approx(627.4)


def test_all_gpus_of_the_node_are_read_by_their_index() -> None:
    samples = NvmlCollector(RecordedLoad(names=("A", "B"))).read()
    assert len(samples) == 2 * PER_GPU
    assert _of(samples, "1")[0].labels == {**INFO, "gpu": "1", "uuid": "GPU-1abc-0000", "name": "B"}


def test_a_node_without_a_driver_gives_nothing_and_one_reason() -> None:
    collector = NvmlCollector(RecordedLoad(start_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert (collector.read(), collector.read()) == ([], [])
    assert collector.absent == ("no NVIDIA driver: NVML library not found",)


def test_a_driver_that_does_not_fit_its_library_is_said_in_its_own_words() -> None:
    collector = NvmlCollector(RecordedLoad(start_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH))
    assert collector.read() == []
    (reason,) = collector.absent
    assert reason.startswith("NVML does not start: RM has detected an NVML/RM version mismatch.")


def test_a_driver_without_gpus_is_said() -> None:
    collector = NvmlCollector(RecordedLoad())
    assert collector.read() == []
    assert collector.absent == ("NVML: driver 580.82.07 shows no GPU; samples of GPUs are left out of this run",)


def test_an_energy_counter_that_is_not_there_is_asked_for_once_and_said_once() -> None:
    nvml = RecordedLoad(names=("A", "B"), without_energy=frozenset({0}))
    collector = NvmlCollector(nvml)
    reads = [collector.read() for _ in range(3)]
    for samples in reads:
        assert catalogue.GPU_ENERGY_JOULES.name not in _names(_of(samples, "0"))
        assert len(_of(samples, "0")) == PER_GPU - 1
        assert len(_of(samples, "1")) == PER_GPU
    assert nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 1 + 3
    assert collector.absent == ("GPU 0: driver 580.82.07 has no energy counter; joules are left out of this run",)


def test_a_field_that_times_out_is_missing_at_that_beat_only() -> None:
    function = "nvmlDeviceGetPowerUsage"
    nvml = RecordedLoad(names=("A",), refusals={(0, function, beat): pynvml.NVML_ERROR_TIMEOUT for beat in (1, 2)})
    collector = NvmlCollector(nvml)
    has_power = []
    for nvml.beat in range(4):
        has_power.append(catalogue.GPU_POWER_WATTS.name in _names(collector.read()))
    assert has_power == [True, False, False, True]
    assert collector.absent == ("GPU 0: no answer from its power sensor at times (Timeout); watts are left out then",)


def test_a_gpu_that_is_lost_ends_and_the_others_go_on() -> None:
    nvml = RecordedLoad(names=("A", "B", "C"), lost_from={1: 2})
    collector = NvmlCollector(nvml)
    counts = []
    for nvml.beat in range(4):
        samples = collector.read()
        counts.append([len(_of(samples, gpu)) for gpu in "012"])
    assert counts == [[PER_GPU] * 3, [PER_GPU] * 3, [PER_GPU, 0, PER_GPU], [PER_GPU, 0, PER_GPU]]
    assert collector.absent == ("GPU 1: GPU is lost; its samples end here",)


def test_a_gpu_that_is_lost_between_two_questions_gives_no_half_of_its_samples() -> None:
    lost = {(0, "nvmlDeviceGetTemperature", 0): pynvml.NVML_ERROR_GPU_IS_LOST}
    collector = NvmlCollector(RecordedLoad(names=("A",), refusals=lost))
    assert collector.read() == []


def test_a_gpu_that_was_lost_is_asked_no_more_even_if_it_would_answer() -> None:
    lost = {(0, "nvmlDeviceGetUtilizationRates", 0): pynvml.NVML_ERROR_GPU_IS_LOST}
    nvml = RecordedLoad(names=("A",), refusals=lost)
    collector = NvmlCollector(nvml)
    for nvml.beat in range(3):
        assert collector.read() == []
    assert nvml.calls["nvmlDeviceGetUtilizationRates"] == 1


def test_a_gpu_that_is_lost_from_the_start_is_left_out_and_the_others_are_read() -> None:
    collector = NvmlCollector(RecordedLoad(names=("A", "B"), lost_from={0: 0}))
    assert {sample.labels["gpu"] for sample in collector.read()} == {"1"}
    assert collector.absent == ("GPU 0: GPU is lost; its samples are left out of this run",)


def test_the_installed_library_has_every_function_with_the_arguments_that_are_given() -> None:
    for name, ours in inspect.getmembers(Nvml, inspect.isfunction):
        if name.startswith("nvml"):
            arguments = [argument for argument in inspect.signature(ours).parameters if argument != "self"]
            inspect.signature(getattr(pynvml, name)).bind(*arguments)


@pytest.mark.gpu
def test_a_real_gpu_answers() -> None:
    samples = _of(NvmlCollector().read(), "0")
    values = {sample.metric: sample.value for sample in samples}
    assert 0 < values[catalogue.GPU_POWER_WATTS.name] < 3000
    assert 0 <= values[catalogue.GPU_MEMORY_USED_BYTES.name] <= values[catalogue.GPU_MEMORY_BYTES.name]
    assert 0 <= values[catalogue.GPU_UTILIZATION.name] <= 1
