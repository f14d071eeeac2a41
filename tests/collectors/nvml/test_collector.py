"""What the node's GPUs give, in base units, and how their readings follow each other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.metrics.registry import METRICS
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, eight_gpus, of, opened, replayed, values

TOTAL, RESERVED, FREE = 150_754_820_096, 643_825_664, 116_178_026_496
LOADED = {
    "nvmlDeviceGetUtilizationRates": {"gpu": 100, "memory": 7},
    "nvmlDeviceGetMemoryInfo": {"total": TOTAL, "free": FREE, "reserved": RESERVED, "used": TOTAL - FREE},
    "nvmlDeviceGetPowerUsage": 627_400,
    "field(186)": 626_260,
    "field(83)": 5_000_000_000_125,
    "nvmlDeviceGetTemperature(0)": 52,
    "nvmlDeviceGetMarginTemperature": 35,
    "field(82)": 40,
    "nvmlDeviceGetClockInfo(1)": 1980,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x80,
    "field(74)": 2_500_000_000,
    "field(269)": 0,
    "field(138, 4294967295)": 3,
    "field(190)": 700_000,
    "nvmlDeviceGetCurrPcieLinkGeneration": 1,
    "field(4)": 2,
    "field(6)": 9,
    "field(208, 4294967295)": 7,
    "field(230)": 4,
    "nvmlDeviceGetNvLinkState(17)": 0,
}
"""An H200 under load (nvidia-smi under gpu_burn), in NVML's own units; what its link and its errors say is made up."""


def _read(answers: dict[str, object]) -> list[Sample]:
    clock = FakeClock()
    with opened(replayed(a_node(a_gpu(answers)), clock), clock) as collector:
        return collector.read()


@pytest.mark.parametrize(
    "sample",
    [
        gpu_metrics.GPU_UTILIZATION.at(1.0, gpu="0"),
        gpu_metrics.GPU_MEMORY_UTILIZATION.at(0.07, gpu="0"),
        gpu_metrics.GPU_MEMORY_USED_BYTES.at(33_932_967_936, gpu="0"),
        gpu_metrics.GPU_MEMORY_RESERVED_BYTES.at(RESERVED, gpu="0"),
        gpu_metrics.GPU_MEMORY_FREE_BYTES.at(FREE, gpu="0"),
        gpu_metrics.GPU_MEMORY_BYTES.at(TOTAL, gpu="0"),
        gpu_metrics.GPU_POWER_WATTS.at(627.4, gpu="0"),
        gpu_metrics.GPU_POWER_INSTANT_WATTS.at(626.26, gpu="0"),
        gpu_metrics.GPU_ENERGY_JOULES.at(5_000_000_000.125, gpu="0"),
        gpu_metrics.GPU_TEMPERATURE_CELSIUS.at(52, gpu="0"),
        gpu_metrics.GPU_TEMPERATURE_MARGIN_CELSIUS.at(35, gpu="0"),
        gpu_metrics.GPU_MEMORY_TEMPERATURE_CELSIUS.at(40, gpu="0"),
        gpu_metrics.GPU_CLOCK_HERTZ.at(1.98e9, gpu="0", clock="sm"),
        gpu_metrics.GPU_CLOCK_HELD_RATIO.at(1, gpu="0", reason="software_power_cap"),
        gpu_metrics.GPU_CLOCK_HELD_RATIO.at(1, gpu="0", reason="hardware_power_brake"),
        gpu_metrics.GPU_CLOCK_HELD_RATIO.at(0, gpu="0", reason="idle"),
        gpu_metrics.GPU_CLOCK_HELD_SECONDS.at(2.5, gpu="0", reason="software_power_cap"),
        gpu_metrics.GPU_POWER_LIMIT_WATTS.at(700, gpu="0", limit="current"),
        gpu_metrics.GPU_PCIE_LINK.at(16 * 250e6, gpu="0", link="now"),
        gpu_health_metrics.GPU_NVLINK_BYTES.at(3072, gpu="0", direction="sent"),
        gpu_metrics.GPU_PCIE_GENERATION.at(1, gpu="0", link="now"),
        gpu_metrics.GPU_PCIE_GENERATION.at(5, gpu="0", link="maximum"),
        gpu_metrics.GPU_PCIE_LANES.at(16, gpu="0", link="now"),
        gpu_metrics.GPU_PCIE_LANES.at(16, gpu="0", link="maximum"),
        gpu_health_metrics.GPU_NVLINK_ERRORS.at(7, gpu="0", kind="received"),
        gpu_health_metrics.GPU_ECC_VOLATILE_ERRORS.at(2, gpu="0", kind="uncorrected"),
        gpu_health_metrics.GPU_ECC_AGGREGATE_ERRORS.at(9, gpu="0", kind="uncorrected"),
        gpu_health_metrics.GPU_RECOVERY.at(1, gpu="0", action="drain_and_reset"),
        gpu_metrics.GPU_FABRIC.at(1, gpu="0", state="completed", clique="0"),
        gpu_metrics.GPU_STATE.at(1, gpu="0", state="answering"),
    ],
    ids=lambda sample: f"{sample.metric} {' '.join(sample.labels.values())}",
)
def test_a_gpu_under_load_is_read_in_base_units(sample: Sample) -> None:
    (found,) = [one for one in _read(LOADED) if (one.metric, one.labels) == (sample.metric, sample.labels)]
    assert found.value == pytest.approx(sample.value, rel=1e-12)


def test_who_a_gpu_is_stands_on_one_series() -> None:
    (info,) = [sample for sample in _read(LOADED) if sample.metric == gpu_metrics.GPU_INFO.name]
    assert info.labels == {
        "gpu": "0",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "NVIDIA H200",
        "serial": "0000000000000",
        "pci_address": "00000000:10:00.0",
        "pcie": "5 x16",
        "vbios": "96.00.BC.00.02",
        "driver": "590.48.01",
        "cuda": "13.1",
        "persistence": "on",
        "mig": "off",
        "numa": "0",
        "nvlink": "4.0 x17",
    }


def test_what_a_gpu_does_not_tell_of_itself_is_unknown() -> None:
    clock = FakeClock()
    gpu = a_gpu(without=("nvmlDeviceGetSerial", "nvmlDeviceGetNumaNodeId"))
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        (info,) = [sample for sample in collector.read() if sample.metric == gpu_metrics.GPU_INFO.name]
    assert (info.labels["serial"], info.labels["numa"]) == ("unknown", "unknown")


def test_every_sample_is_of_the_catalogue_with_its_labels() -> None:
    known = {metric.name: set(metric.labels) for metric in METRICS}
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock, deadline_s=0.5) as collector:
        for clock.now_s in (0.0, 1.0, 430.0):
            for sample in collector.read():
                assert known[sample.metric] == set(sample.labels)


def test_no_series_is_given_twice() -> None:
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock, deadline_s=0.5) as collector:
        for clock.now_s in (0.0, 1.0, 310.0):
            series = [(sample.metric, *sorted(sample.labels.items())) for sample in collector.read()]
            assert len(series) == len(set(series))


def test_energy_grows_by_what_was_drawn() -> None:
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock) as collector:
        begun = values(of(collector.read(), "0"))
        clock.now_s = 20.0  # Idle all the while.
        ended = values(of(collector.read(), "0"))
    name = gpu_metrics.GPU_ENERGY_JOULES.name
    assert ended[name] - begun[name] == pytest.approx(20 * begun[gpu_metrics.GPU_POWER_WATTS.name], rel=1e-4)


def test_what_rarely_changes_is_asked_for_seldom_and_shown_always() -> None:
    clock, asked = FakeClock(), Counter[str]()
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=lambda name, _: asked.update([name])).spoilt
    with opened(nvml, clock) as collector:
        counts = []
        for clock.now_s in (0.0, 1.0, 2.0, 11.0):
            assert gpu_metrics.GPU_BAR1_BYTES.name in values(collector.read())
            counts.append(asked["nvmlDeviceGetBAR1MemoryInfo"])
    assert counts == [1, 1, 1, 2]


def test_bytes_of_each_nvlink_are_given_where_they_are_asked_for() -> None:
    clock = FakeClock()
    nvml = replayed(a_node(a_gpu({"field(138, 1)": 5})), clock)
    with opened(nvml, clock) as collector:
        assert gpu_health_metrics.GPU_NVLINK_LINK_BYTES.name not in values(collector.read())
    with opened(nvml, clock, per_link=True) as collector:
        assert (
            gpu_health_metrics.GPU_NVLINK_LINK_BYTES.at(5120, gpu="0", link="1", direction="sent") in collector.read()
        )


def test_processes_are_counted_and_told_by_their_pids() -> None:
    answer = [{"pid": 71, "usedGpuMemory": 5}, {"pid": 72, "usedGpuMemory": None}]
    clock = FakeClock()
    gpus = [a_gpu({"nvmlDeviceGetComputeRunningProcesses_v3": answer[: place + 1]}) for place in range(2)]
    with opened(replayed(a_node(*gpus), clock), clock) as collector:
        samples = collector.read()
        assert [values(of(samples, gpu))[gpu_metrics.GPU_TASKS.name] for gpu in "01"] == [1, 2]
        found = collector.processes()
    assert {pid: [(one.gpu, one.memory_bytes) for one in each] for pid, each in found.items()} == {
        71: [("0", 5), ("1", 5)],
        72: [("1", None)],
    }


def test_what_reading_costs_is_told_where_it_is_asked_for_alone() -> None:
    clock, costs = FakeClock(), {gpu_health_metrics.GPU_FIELD_SECONDS.name, gpu_health_metrics.GPU_CALLS.name}
    for reads_costs in (False, True):
        with opened(replayed(eight_gpus(), clock), clock, reads_costs=reads_costs) as collector:
            assert costs & {one.metric for one in collector.read()} == (costs if reads_costs else set())


def test_what_reading_costs_is_told_by_field_and_by_function() -> None:
    clock = FakeClock()
    with opened(replayed(eight_gpus(), clock), clock, reads_costs=True) as collector:
        samples = collector.read()
    assert gpu_health_metrics.GPU_FIELD_SECONDS.at(0.0024, field="energy counter") in samples
    functions = {one.labels["function"] for one in samples if one.metric == gpu_health_metrics.GPU_CALL_SECONDS.name}
    assert {"nvmlInit", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage", "nvmlDeviceRegisterEvents"} <= functions
    calls = {one.labels["function"]: one.value for one in samples if one.metric == gpu_health_metrics.GPU_CALLS.name}
    assert calls.keys() == functions
    assert (calls["nvmlInit"], calls["nvmlDeviceGetPowerUsage"]) == (1, 8)


def test_what_is_asked_of_gpus_is_counted_and_what_is_repeated_is_not() -> None:
    clock, asked = FakeClock(), list[int]()
    own = Counter[str]()

    def count(name: str, arguments: tuple[Any, ...]) -> None:
        own[name] += len(arguments[1]) if name == "nvmlDeviceGetFieldValues" else 1

    gpu = a_gpu(without=("nvmlGpmQueryDeviceSupport",))
    with opened(FakeFault(replayed(a_node(gpu), clock), spoil=count).spoilt, clock) as collector:
        for clock.now_s in (0.0, 1.0, 2.0, 10.0):
            collector.read()
            asked.append(collector.fields_requested)
        not_of_gpus = {name for name in own if name.startswith(("nvmlInit", "nvmlSystem", "nvmlEvent"))}
        not_of_gpus |= {
            "nvmlDeviceGetCount",
            "nvmlDeviceRegisterEvents",
            "nvmlDeviceGetSupportedEventTypes",
            "nvmlShutdown",
        }
        by_hand = sum(count for name, count in own.items() if name not in not_of_gpus)
    quick, slow = asked[1] - asked[0], asked[3] - asked[2]
    assert asked[2] - asked[1] == quick < slow
    # The handle that the thread of events asks for is not told by the GPU's.
    assert asked[3] == by_hand - 1


def test_all_fields_of_a_gpu_are_one_call() -> None:
    clock, asked = FakeClock(), Counter[str]()
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=lambda name, _: asked.update([name])).spoilt
    with opened(nvml, clock) as collector:
        collector.read()
    assert asked["nvmlDeviceGetFieldValues"] == 1
    assert asked["nvmlDeviceGetPcieThroughput"] == 0
