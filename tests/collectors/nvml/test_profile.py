"""What a GPU's monitors saw between two samples, and when there is nothing to see."""

from __future__ import annotations

from collections import Counter

import pynvml
import pytest

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.library import NVMLError
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, opened, replayed, values

SM = gpu_health_metrics.GPU_SM_ACTIVITY.name
SEEN = {
    "gpm(2)": 91.5,
    "gpm(3)": 31.4,
    "gpm(5)": 61.8,
    "gpm(7)": 61.8,
    "gpm(10)": 44.6,
    "gpm(21)": 2.0,
    "gpm(60)": 1024.0,
}


def _asked(answers: dict[str, object], times: tuple[float, ...]) -> tuple[list[list[Sample]], Counter[str]]:
    clock, asked = FakeClock(), Counter[str]()
    nvml = FakeFault(replayed(a_node(a_gpu(answers)), clock), spoil=lambda name, _: asked.update([name])).spoilt
    read = []
    with opened(nvml, clock) as collector:
        for clock.now_s in times:
            read.append(collector.read())
    return read, asked


@pytest.mark.parametrize(
    "sample",
    [
        gpu_health_metrics.GPU_SM_ACTIVITY.at(0.915, gpu="0"),
        gpu_health_metrics.GPU_SM_OCCUPANCY.at(0.314, gpu="0"),
        gpu_health_metrics.GPU_TENSOR_ACTIVITY.at(0.618, gpu="0", kind="hmma"),
        gpu_health_metrics.GPU_DRAM_ACTIVITY.at(0.446, gpu="0"),
        gpu_health_metrics.GPU_PCIE_RATE.at(2 << 20, gpu="0", direction="received"),
        gpu_health_metrics.GPU_NVLINK_RATE.at(1 << 30, gpu="0", direction="received"),
    ],
    ids=lambda sample: sample.metric,
)
def test_what_was_seen_is_given_in_base_units(sample: Sample) -> None:
    (_, samples), _ = _asked(dict(SEEN), (0.0, 1.0))
    (found,) = [one.value for one in samples if (one.metric, one.labels) == (sample.metric, sample.labels)]
    assert found == pytest.approx(sample.value)


def test_the_first_reading_has_nothing_to_compare_with() -> None:
    (first, second), _ = _asked(dict(SEEN), (0.0, 1.0))
    assert (SM in values(first), SM in values(second)) == (False, True)


def test_each_beat_takes_one_sample_and_asks_once_for_all_metrics() -> None:
    _, asked = _asked(dict(SEEN), (0.0, 1.0, 2.0, 3.0))
    assert (asked["nvmlGpmSampleAlloc"], asked["nvmlGpmSampleGet"], asked["nvmlGpmMetricsGet"]) == (2, 4, 3)
    assert asked["nvmlGpmQueryDeviceSupport"] == 1


def test_samples_that_would_be_too_close_are_not_taken_and_the_last_answer_is_shown() -> None:
    read, asked = _asked(dict(SEEN), (0.0, 0.2, 0.3, 0.4))
    assert asked["nvmlGpmSampleGet"] == 3
    assert all(SM in values(samples) for samples in read[1:])


def test_samples_are_given_back() -> None:
    _, asked = _asked(dict(SEEN), (0.0,))
    assert asked["nvmlGpmSampleFree"] == 2


def test_a_gpu_without_monitors_is_asked_once() -> None:
    read, asked = _asked({"nvmlGpmQueryDeviceSupport": {"isSupportedDevice": 0}}, (0.0, 1.0, 2.0))
    assert (asked["nvmlGpmQueryDeviceSupport"], asked["nvmlGpmSampleAlloc"]) == (1, 0)
    assert SM not in values(read[-1])


def test_a_metric_that_is_not_a_number_yet_is_absent() -> None:
    clock = FakeClock()
    gpu = a_gpu({"gpm(2)": float("nan")})
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        collector.read()
        clock.now_s = 1.0
        found = values(collector.read())
    assert SM not in found
    assert gpu_health_metrics.GPU_SM_OCCUPANCY.name in found


def test_monitors_that_something_else_holds_are_a_gap_and_no_end() -> None:
    clock = FakeClock()

    def held(name: str, arguments: tuple[object, ...]) -> None:
        if name == "nvmlGpmSampleGet" and clock.now_s == 2.0:
            raise NVMLError(pynvml.NVML_ERROR_IN_USE)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=held).spoilt, clock) as collector:
        seen = []
        for clock.now_s in (0.0, 1.0, 2.0, 3.0, 4.0):
            seen.append(SM in values(collector.read()))
    assert seen == [False, True, False, False, True]
