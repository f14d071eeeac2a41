"""The state of a node is read as far as its driver and kernel tell it, and the rest is absent with its reason."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from bench.machine import node_now
from bench.machine.gpus import read_gpus
from bench.machine.node_now import GpuNow, read_now
from tests.bench.made.recorded_nvml import RecordedError, RecordedNvml


@dataclass
class RecordedHealth(RecordedNvml):
    """GPUs with ECC, but where they have none."""

    is_without_ecc: bool = False
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED: int = 1
    NVML_VOLATILE_ECC: int = 0
    NVML_CLOCK_SM: int = 1

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802  # NVML's names.
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        if self.is_without_ecc:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 3 * handle

    def nvmlDeviceGetRemappedRows(self, handle: int) -> list[int]:  # noqa: N802
        if self.is_without_ecc:
            raise RecordedError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [5, 6, handle, 1 - handle]

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        assert clock == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 700_000


def test_what_the_driver_tells_of_each_gpu_is_read(tmp_path: Path) -> None:
    nvml = RecordedHealth(names=("A", "B"), free_bytes={1: 1 << 20})
    now = read_now(read_gpus(nvml, {}).gpus, tmp_path, nvml=nvml)
    assert now.gpus == (
        GpuNow(
            index=0,
            uuid="GPU-0abc-0000",
            free_bytes=1 << 30,
            uncorrected_errors=0,
            pending_rows=0,
            has_failed_rows=True,
            clock_limit_hertz=1_980_000_000,
            power_limit_watts=700.0,
        ),
        GpuNow(
            index=1,
            uuid="GPU-1abc-0000",
            free_bytes=1 << 20,
            uncorrected_errors=3,
            pending_rows=1,
            has_failed_rows=False,
            clock_limit_hertz=1_980_000_000,
            power_limit_watts=700.0,
        ),
    )
    assert now.absent == {}
    assert now.memory_bytes > 0
    assert now.disk_bytes is not None
    assert nvml.open_count == 0


def test_what_a_gpu_does_not_tell_is_absent_with_its_reason(tmp_path: Path) -> None:
    nvml = RecordedHealth(names=("A",), is_without_ecc=True)
    now = read_now(read_gpus(nvml, {}).gpus, tmp_path, nvml=nvml)
    gpu = now.gpus[0]
    assert (gpu.uncorrected_errors, gpu.pending_rows, gpu.has_failed_rows) == (None, None, None)
    assert now.absent == {
        "gpus[0].uncorrected_errors": "NVML: Not Supported",
        "gpus[0].pending_rows": "NVML: Not Supported",
    }


def test_a_driver_that_hangs_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_now, "ANSWER_S", 0.05)
    nvml = RecordedHealth(names=("A",))
    gpus = read_gpus(nvml, {}).gpus
    released = threading.Event()

    class FakeHang(RecordedHealth):
        def nvmlInit(self) -> None:  # noqa: N802
            released.wait(60)

    now = read_now(gpus, tmp_path, nvml=FakeHang(names=("A",)))
    released.set()
    assert now.gpus == (GpuNow(index=0, uuid="GPU-0abc-0000"),)
    assert now.absent == {"gpus": "NVML: no answer within 0.05 s"}


def test_a_driver_that_does_not_start_is_a_reason(tmp_path: Path) -> None:
    gpus = read_gpus(RecordedHealth(names=("A",)), {}).gpus
    now = read_now(gpus, tmp_path, nvml=RecordedHealth(names=("A",), is_without_library=True))
    assert now.absent == {"gpus": "NVML: NVML Shared Library Not Found"}


def test_the_governors_of_all_cpus_are_named_and_none_where_the_host_sets_clocks(tmp_path: Path) -> None:
    assert read_now((), tmp_path, root=tmp_path).cpu_governor is None
    for cpu, governor in enumerate(("powersave", "performance", "powersave")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    assert read_now((), tmp_path, root=tmp_path).cpu_governor == "performance, powersave"


def test_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert read_now((), tmp_path / "not" / "yet").disk_bytes is not None
