"""What a Machine says of nodes with and without GPUs, driver, git and torch's parts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bench.machine.machine import Machine, read
from tests.bench.made.recorded_nvml import RecordedNvml

CPU_TORCH = SimpleNamespace(__version__="2.13.0+cpu", version=SimpleNamespace(cuda=None), _C=SimpleNamespace())
CUDA_TORCH = SimpleNamespace(
    __version__="2.11.0+cu130",
    version=SimpleNamespace(cuda="13.0"),
    _C=SimpleNamespace(_nccl_version=None),
    cuda=SimpleNamespace(nccl=SimpleNamespace(version=lambda: (2, 28, 9))),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """/proc and /sys of a machine whose logical CPUs are two threads of each core."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\n\nprocessor\t: 1\n")
    for cpu in range(4096):
        topology = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0\n")
        (topology / "core_id").write_text(f"{cpu // 2}\n")
        if cpu > max(os.sched_getaffinity(0)):
            break
    return tmp_path


def _read(nvml: RecordedNvml | None = None, torch: SimpleNamespace = CPU_TORCH, root: Path = Path("/")) -> Machine:
    return read(nvml=nvml or RecordedNvml(is_without_library=True), torch=torch, environment={}, root=root, source=root)


def test_a_machine_without_gpu_git_or_nccl_says_why(root: Path) -> None:
    machine = _read(root=root)
    assert (machine.gpus, machine.driver_version, machine.torch_cuda_version, machine.nccl_version) == (
        (),
        None,
        None,
        None,
    )
    assert machine.absent["torch_cuda_version"] == "torch is built without CUDA"
    assert machine.absent["nccl_version"] == "torch is built without NCCL"
    assert machine.absent["gpus"] == "NVML: NVML Shared Library Not Found"
    assert machine.absent["commit"] == f"{root} is not a git tree, and was not built from one"


def test_every_none_has_its_reason() -> None:
    machine = _read()
    fields = msgspec.to_builtins(machine)
    assert {name for name, value in fields.items() if value is None} <= set(machine.absent)


def test_versions_are_torchs_own(root: Path) -> None:
    machine = _read(torch=CUDA_TORCH, root=root)
    assert (machine.torch_version, machine.torch_cuda_version, machine.nccl_version) == (
        "2.11.0+cu130",
        "13.0",
        "2.28.9",
    )


def test_rocm_is_known_by_torchs_own_word(root: Path) -> None:
    torch = SimpleNamespace(
        __version__="2.11.0+rocm7.1", version=SimpleNamespace(cuda=None, hip="7.1.52802"), _C=SimpleNamespace()
    )
    machine = _read(torch=torch, root=root)
    assert (machine.torch_hip_version, machine.torch_cuda_version) == ("7.1.52802", None)
    assert machine.absent["torch_cuda_version"] == "torch is built for ROCm 7.1.52802"
    assert _read(root=root).absent["torch_hip_version"] == "torch is built without ROCm"


def test_the_driver_tells_its_cuda_or_why_not(root: Path) -> None:
    assert _read(RecordedNvml(names=("A",), cuda_version=12080), root=root).cuda_driver_version == "12.8"
    assert _read(root=root).absent["cuda_driver_version"] == "NVML: NVML Shared Library Not Found"


def test_a_machine_of_before_is_read_without_what_it_was_not_asked_for(root: Path) -> None:
    whole = msgspec.to_builtins(_read(root=root))
    old = {name: value for name, value in whole.items() if name not in ("torch_hip_version", "cuda_driver_version")}
    assert msgspec.convert(old, type=Machine).torch_hip_version is None


def test_a_torch_that_cannot_be_imported_leaves_the_rest_of_the_machine(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = root / "site/torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libcupti.so.13: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(root / "site")
    monkeypatch.delitem(sys.modules, "torch")
    machine = read(nvml=RecordedNvml(is_without_library=True), environment={}, root=root, source=root)
    assert machine.torch_version is None
    assert machine.absent["nccl_version"] == "torch cannot be imported: libcupti.so.13: cannot open shared object file"
    assert machine.hardware("cpu").startswith("Some CPU")


def test_the_real_torch_is_read_without_starting_cuda() -> None:
    import torch

    machine = read(nvml=RecordedNvml(is_without_library=True), environment={})
    assert machine.torch_version == torch.__version__
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own lack.


def test_cores_are_those_that_the_process_may_use(root: Path) -> None:
    machine = _read(root=root)
    usable = os.sched_getaffinity(0)
    assert machine.usable_cores == len(usable)
    assert machine.physical_cores == len({cpu // 2 for cpu in usable})


def test_a_cpu_without_a_name_is_absent_with_a_reason(root: Path) -> None:
    (root / "proc/cpuinfo").write_text("CPU part\t: 0xd4f\n")
    machine = _read(root=root)
    assert machine.cpu is None
    assert machine.absent["cpu"] == "/proc/cpuinfo names no model"
    assert machine.hardware("cpu").startswith("unnamed ")


def test_hardware_counts_gpus_of_a_kind(root: Path) -> None:
    machine = _read(RecordedNvml(names=("NVIDIA H200", "NVIDIA H200")), root=root)
    assert machine.hardware("cuda") == "2 x NVIDIA H200"


def test_hardware_of_a_cpu_case_is_the_cpu_even_beside_gpus(root: Path) -> None:
    machine = _read(RecordedNvml(names=("NVIDIA H200",)), root=root)
    cores = len(os.sched_getaffinity(0))
    assert machine.hardware("cpu") == f"Some CPU @ 2 GHz, {cores} core" + ("s" if cores > 1 else "")


def test_a_source_tree_has_a_commit_and_is_dirty_when_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-m", "first")
    nvml = RecordedNvml(is_without_library=True)
    clean = read(nvml=nvml, torch=CPU_TORCH, environment={}, source=tmp_path)
    (tmp_path / "file").write_text("b")
    dirty = read(nvml=nvml, torch=CPU_TORCH, environment={}, source=tmp_path)
    assert clean.commit == git("rev-parse", "HEAD")
    assert (clean.is_dirty, dirty.is_dirty) == (False, True)


def test_a_machine_survives_json(root: Path) -> None:
    machine = _read(RecordedNvml(names=("A", "B")), root=root)
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine
