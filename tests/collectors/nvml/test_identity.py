"""What a GPU tells of itself, how often it is asked, and what is shown while it does not tell."""

from __future__ import annotations

from collections import Counter

import pynvml
import pytest

from collectors.metrics.gpu import GPU_INFO
from collectors.metrics.metric import Sample
from collectors.nvml.library import NVMLError
from collectors.nvml.recorder import AnswerTrack
from tests.collectors.nvml.nodes import FakeClock, FakeFault, a_gpu, a_node, opened, replayed

FACTS = {
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetSerial": "serial number",
    "nvmlDeviceGetPciInfo_v3": "PCI address",
    "nvmlDeviceGetVbiosVersion": "VBIOS version",
    "nvmlDeviceGetNumaNodeId": "NUMA node",
    "nvmlDeviceGetPersistenceMode": "persistence mode",
    "nvmlDeviceGetMigMode": "MIG mode",
}


def _info(samples: list[Sample]) -> dict[str, str]:
    (info,) = [sample for sample in samples if sample.metric == GPU_INFO.name]
    return info.labels


@pytest.mark.parametrize("function", FACTS)
def test_each_fact_is_a_question_of_its_own_that_is_not_asked_again_once_it_is_not_supported(function: str) -> None:
    clock, asked = FakeClock(), Counter[str]()
    nvml = FakeFault(replayed(a_node(a_gpu(without=(function,))), clock), spoil=lambda name, _: asked.update([name]))
    with opened(nvml.spoilt, clock) as collector:
        collector.read()
        at_first = asked[function]
        clock.now_s = 10.0
        collector.read()
        assert asked[function] == at_first > 0
        support = {one.question: one.answer for one in collector.support()}
    assert support[FACTS[function]] == "not supported"
    assert {support[name] for name in FACTS.values() if name != FACTS[function]} == {"answers"}


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetVbiosVersion"])
def test_what_cannot_change_is_asked_once(function: str) -> None:
    clock, asked = FakeClock(), Counter[str]()
    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=lambda name, _: asked.update([name]))
    with opened(nvml.spoilt, clock) as collector:
        for clock.now_s in (0.0, 10.0, 20.0):
            _info(collector.read())
    assert asked[function] == 1


def test_what_can_change_is_asked_again() -> None:
    clock = FakeClock()
    gpu = a_gpu()
    gpu.tracks["nvmlDeviceGetPersistenceMode"] = AnswerTrack(at_s=[0.0, 5.0], values=[1, 0])
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        told = [_info(collector.read())["persistence"]]
        clock.now_s = 10.0
        told.append(_info(collector.read())["persistence"])
    assert told == ["on", "off"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetNvLinkState"])
def test_a_refusal_of_a_moment_neither_ends_the_gpu_nor_makes_it_another_series(function: str) -> None:
    clock = FakeClock()

    def refuse(name: str, _: tuple[object, ...]) -> None:
        if name == function and clock.now_s == 10.0:
            raise NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    told = []
    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refuse).spoilt, clock) as collector:
        for clock.now_s in (0.0, 10.0, 20.0):
            told.append(_info(collector.read()))
    assert told == [told[0]] * 3


def test_a_name_that_is_refused_at_first_is_unknown_until_it_is_told() -> None:
    clock = FakeClock()

    def refuse(name: str, _: tuple[object, ...]) -> None:
        if name == "nvmlDeviceGetName" and clock.now_s == 0.0:
            raise NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    with opened(FakeFault(replayed(a_node(a_gpu()), clock), spoil=refuse).spoilt, clock) as collector:
        names = [_info(collector.read())["name"]]
        clock.now_s = 10.0
        names.append(_info(collector.read())["name"])
    assert names == ["unknown", "NVIDIA H200"]


def test_links_that_may_not_be_asked_for_are_unknown_and_not_none() -> None:
    clock = FakeClock()

    def refuse(name: str, _: tuple[object, ...]) -> None:
        if name == "nvmlDeviceGetNvLinkState":
            raise NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    nvml = FakeFault(replayed(a_node(a_gpu()), clock), spoil=refuse).spoilt
    with opened(nvml, clock, per_link=True) as collector:
        assert _info(collector.read())["nvlink"] == "unknown"
        assert collector.absent == (
            "GPU 0: this process is not permitted to read NVLinks, NVLink states; they are left out of this run",
        )


def test_a_gpu_without_links_has_none() -> None:
    clock = FakeClock()
    gpu = a_gpu(without=tuple(f"nvmlDeviceGetNvLinkState({link})" for link in range(18)))
    with opened(replayed(a_node(gpu), clock), clock) as collector:
        assert _info(collector.read())["nvlink"] == "none"
