"""Clocks and PCIe links of GPUs, by a recorded NVML."""

from __future__ import annotations

from bench.machine.doctor.node_state import gpu_clocks, pcie_links
from bench.machine.doctor.page import Entry
from bench.machine.gpus import Gpu
from tests.bench.machine.doctor.recorded_state import RecordedState

GPUS = tuple(Gpu(index=index, name="NVIDIA H200", uuid=f"GPU-{index}", memory_bytes=None) for index in (0, 1))


def _nvml(*clocks_mhz: int | None, is_without_library: bool = False, is_without_pcie: bool = False) -> RecordedState:
    return RecordedState(
        names=("NVIDIA H200",) * 2,
        clocks_mhz=clocks_mhz,
        is_without_library=is_without_library,
        is_without_pcie=is_without_pcie,
    )


def test_clocks_are_in_hertz_now_and_at_most() -> None:
    assert gpu_clocks(_nvml(345), GPUS[:1]) == (
        Entry(name="GPU 0, SM clock now", value=345_000_000, unit="hertz"),
        Entry(name="GPU 0, SM clock at most", value=1_980_000_000, unit="hertz"),
        Entry(name="GPU 0, memory clock now", value=690_000_000, unit="hertz"),
        Entry(name="GPU 0, memory clock at most", value=3_960_000_000, unit="hertz"),
    )


def test_a_gpu_that_refuses_one_question_answers_the_others() -> None:
    refused, most = gpu_clocks(_nvml(None, 345), GPUS)[:2]
    assert refused == Entry(name="GPU 0, SM clock now", reason="NVML: Not Supported")
    assert most.value == 1_980_000_000


def test_a_pcie_link_says_what_it_is_and_could_be() -> None:
    assert pcie_links(_nvml(), GPUS[:1]) == (Entry(name="GPU 0, PCIe", value="generation 1 x8 now, 5 x16 at most"),)


def test_a_gpu_without_pcie_says_so() -> None:
    assert pcie_links(_nvml(is_without_pcie=True), GPUS)[1] == Entry(name="GPU 1, PCIe", reason="NVML: Not Supported")


def test_nvml_that_does_not_start_is_the_reason() -> None:
    assert gpu_clocks(_nvml(is_without_library=True), GPUS) == (
        Entry(name="GPUs", reason="NVML: NVML Shared Library Not Found"),
    )


def test_without_gpus_nvml_is_not_asked() -> None:
    nvml = _nvml(is_without_library=True)
    assert gpu_clocks(nvml, ()) == ()
    assert nvml.init_count == 0


def test_nvml_is_closed_again() -> None:
    nvml = _nvml(345, None)
    gpu_clocks(nvml, GPUS)
    pcie_links(nvml, GPUS)
    assert (nvml.init_count, nvml.open_count) == (2, 0)
