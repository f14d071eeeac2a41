"""Which GPUs this process may use, and how they reach each other, by a recorded NVML."""

from __future__ import annotations

import pytest

from bench.gpus import Gpu, GpuLink, read_gpus
from tests.bench.recorded_nvml import RecordedNvml

FOUR = RecordedNvml(names=("A", "B", "C", "D"))


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        (None, ("A", "B", "C", "D")),
        ("", ()),
        ("-1", ()),
        ("2", ("C",)),
        ("3,1", ("D", "B")),
        (" 0 , 2 ", ("A", "C")),
        ("1,-1,2", ("B",)),
        ("0,9,1", ("A",)),
        ("1,1", ()),
        ("GPU-2abc-0000,GPU-0abc-0000", ("C", "A")),
        ("GPU-3", ("D",)),
        ("GPU-", ()),
        ("GPU-9", ()),
        ("MIG-1234", ()),
        ("NoDevFiles", ()),
    ],
)
def test_visible_devices_are_read_as_cuda_does(variable: str | None, names: tuple[str, ...]) -> None:
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert tuple(gpu.name for gpu in read_gpus(FOUR, environment).gpus) == names


def test_a_machine_without_a_driver_has_no_gpu_and_a_reason() -> None:
    found = read_gpus(RecordedNvml(is_without_library=True), {})
    assert (found.gpus, found.links, found.driver_version) == ((), (), None)
    assert found.absent["gpus"] == "NVML: NVML Shared Library Not Found"


def test_nvml_is_closed_again() -> None:
    nvml = RecordedNvml(names=("A",))
    read_gpus(nvml, {})
    assert (nvml.init_count, nvml.open_count) == (1, 0)


def test_a_gpu_has_its_index_name_identity_and_memory() -> None:
    found = read_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "1"})
    assert found.gpus == (Gpu(index=1, name="B", uuid="GPU-1abc-0000", memory_bytes=2 << 30),)
    assert found.driver_version == "580.82.07"


def test_memory_shared_with_the_cpu_is_absent_with_a_reason() -> None:
    found = read_gpus(RecordedNvml(names=("A",), is_without_memory=True), {})
    assert found.gpus[0].memory_bytes is None
    assert found.absent == {"gpus[0].memory_bytes": "NVML: Not Supported"}


def test_links_are_nvlink_or_the_pcie_ancestor() -> None:
    nvml = RecordedNvml(names=("A", "B", "C"), nvlinks=frozenset({(0, 1)}), levels={(0, 2): 20, (1, 2): 40})
    assert read_gpus(nvml, {}).links == (
        GpuLink(first=0, second=1, kind="nvlink"),
        GpuLink(first=0, second=2, kind="multiple"),
        GpuLink(first=1, second=2, kind="node"),
    )


def test_unknown_links_leave_the_gpus_known() -> None:
    found = read_gpus(RecordedNvml(names=("A", "B"), is_without_topology=True), {})
    assert len(found.gpus) == 2
    assert found.links == ()
    assert found.absent == {"links": "NVML: Not Supported"}
