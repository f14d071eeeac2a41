"""Each way in which GPUs cannot be used is one sentence with its own exit code, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pynvml import NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIB_RM_VERSION_MISMATCH, NVML_ERROR_UNKNOWN

from bench.errors import InfrastructureFailed, Misuse
from bench.machine.device_checks import TorchBuild, check_torch, refuse_no_gpu, too_old, torch_build, why_no_gpu
from bench.machine.gpus import Gpu, Gpus, read_gpus
from bench.machine.machine import Machine, read
from tests.bench.made.examples import make_case, make_machine
from tests.bench.made.recorded_nvml import RecordedNvml

CUDA = TorchBuild(version="2.13.0+cu130", cuda="13.0")
ROCM = TorchBuild(version="2.13.0+rocm7.1", hip="7.1.5")
NO_LIBRARY = read_gpus(RecordedNvml(is_without_library=True), {})
ON_GPUS = replace(make_case(), device="cuda", backend="nccl")


def _not_started(number: int) -> Gpus:
    return read_gpus(RecordedNvml(failure=number), {})


def _with_driver(root: Path) -> Path:
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module  580.82.07\n")
    return root


def _with_nodes(root: Path) -> Path:
    (root / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl"):
        (root / "dev" / name).touch()
    return root


def test_a_machine_without_a_driver_is_misuse(tmp_path: Path) -> None:
    error = refuse_no_gpu(NO_LIBRARY, CUDA, tmp_path)
    assert isinstance(error, Misuse)
    assert str(error).startswith("device is cuda, but this machine has no NVIDIA driver; use --device cpu")


def test_a_driver_without_nvml_is_named_with_what_the_container_lacks(tmp_path: Path) -> None:
    error = refuse_no_gpu(NO_LIBRARY, CUDA, _with_driver(tmp_path))
    assert isinstance(error, InfrastructureFailed)
    assert "NVIDIA UNIX Open Kernel Module 580.82.07 is loaded without its library NVML" in str(error)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in str(error)


def test_device_files_tell_of_a_driver_where_proc_does_not(tmp_path: Path) -> None:
    error = refuse_no_gpu(NO_LIBRARY, CUDA, _with_nodes(tmp_path))
    assert isinstance(error, InfrastructureFailed)
    assert "an NVIDIA driver is loaded without its library NVML" in str(error)


def test_a_container_without_device_files_is_named(tmp_path: Path) -> None:
    error = refuse_no_gpu(_not_started(NVML_ERROR_DRIVER_NOT_LOADED), CUDA, tmp_path)
    assert isinstance(error, InfrastructureFailed)
    assert "NVML finds no driver: /dev has no nvidia0 or similar; start the container with GPUs" in str(error)


def test_a_driver_that_shows_no_gpu_is_named_with_what_dev_has(tmp_path: Path) -> None:
    error = refuse_no_gpu(read_gpus(RecordedNvml(), {}), CUDA, _with_nodes(tmp_path))
    assert isinstance(error, InfrastructureFailed)
    assert "driver 580.82.07 shows no GPU: /dev has nvidia0" in str(error)


def test_any_other_refusal_of_nvml_is_said_in_its_words(tmp_path: Path) -> None:
    error = refuse_no_gpu(_not_started(NVML_ERROR_UNKNOWN), CUDA, tmp_path)
    assert isinstance(error, InfrastructureFailed)
    assert str(error) == "device is cuda, but NVML: Unknown Error; check `nvidia-smi`, or use --device cpu"


def test_a_driver_of_another_version_than_its_library_is_told_with_what_mends_it(tmp_path: Path) -> None:
    error = refuse_no_gpu(_not_started(NVML_ERROR_LIB_RM_VERSION_MISMATCH), CUDA, tmp_path)
    assert isinstance(error, InfrastructureFailed)
    assert "its library NVML have different versions, for example after an upgrade: reload the kernel module" in str(
        error
    )


def test_gpus_that_a_variable_hides_are_misuse(tmp_path: Path) -> None:
    hidden = read_gpus(RecordedNvml(names=("A", "B")), {"CUDA_VISIBLE_DEVICES": ""})
    error = refuse_no_gpu(hidden, CUDA, tmp_path)
    assert isinstance(error, Misuse)
    assert 'no GPU can be used: CUDA_VISIBLE_DEVICES is "" and hides all 2 GPUs; correct it' in str(error)


@pytest.mark.parametrize("gpus", [NO_LIBRARY, read_gpus(RecordedNvml(names=("A",)), {"CUDA_VISIBLE_DEVICES": ""})])
def test_rocm_is_refused_as_rocm_and_never_as_a_missing_nvidia_gpu(gpus: Gpus, tmp_path: Path) -> None:
    error = refuse_no_gpu(gpus, ROCM, tmp_path)
    assert isinstance(error, Misuse)
    assert str(error) == (
        "torch 2.13.0+rocm7.1 is built for ROCm 7.1.5, but `run` measures only NVIDIA GPUs; use --device cpu"
        " (`observatory analyse` reads ROCm traces)"
    )


def test_a_run_that_names_no_device_says_why_it_takes_the_cpu(tmp_path: Path) -> None:
    hidden = read_gpus(RecordedNvml(names=("A",)), {"CUDA_VISIBLE_DEVICES": "-1"})
    assert why_no_gpu(NO_LIBRARY, CUDA, tmp_path) == "no NVIDIA GPU found"
    assert why_no_gpu(NO_LIBRARY, CUDA, _with_nodes(tmp_path)).endswith("is loaded without its library NVML")
    assert why_no_gpu(read_gpus(RecordedNvml(), {}), CUDA) == "driver 580.82.07 shows no GPU"
    assert why_no_gpu(hidden, CUDA) == 'CUDA_VISIBLE_DEVICES is "-1" and hides all 1 GPU'
    assert why_no_gpu(NO_LIBRARY, ROCM) == "torch is built for ROCm 7.1.5, but `run` measures only NVIDIA GPUs"
    assert why_no_gpu(_not_started(NVML_ERROR_DRIVER_NOT_LOADED), CUDA) == "NVML: Driver Not Loaded"


def _machine(**changes: str | None) -> Machine:
    known = {"torch_version": "2.13.0+cu130", "torch_cuda_version": "13.0", "driver_version": "535.54.03"}
    return replace(make_machine(), **{**known, **changes})  # type: ignore[arg-type]  # All that change are text.


@pytest.mark.parametrize(("driver", "fits"), [("12.2", False), ("13.0", True), ("13.2", True), (None, True)])
def test_a_driver_fits_from_torchs_major_version_of_cuda_on(driver: str | None, fits: bool) -> None:
    assert (too_old(_machine(cuda_driver_version=driver)) is None) == fits


def test_a_minor_version_of_cuda_above_the_drivers_fits() -> None:
    assert too_old(_machine(torch_cuda_version="12.9", cuda_driver_version="12.2")) is None


def test_a_driver_too_old_is_said_in_one_line_with_the_next_moves() -> None:
    with pytest.raises(InfrastructureFailed) as caught:
        check_torch(ON_GPUS, _machine(cuda_driver_version="12.2"))
    assert str(caught.value) == (
        "driver 535.54.03 supports CUDA up to 12.2, but torch 2.13.0+cu130 is built for CUDA 13.0: install a newer"
        " driver (580 or newer), or a torch for CUDA 12, or use --device cpu"
    )


def test_a_torch_without_cuda_cannot_use_the_gpus_that_nvml_shows() -> None:
    with pytest.raises(InfrastructureFailed, match=r"torch 2\.13\.0 is built without CUDA; install a CUDA build"):
        check_torch(ON_GPUS, make_machine())


def test_a_torch_of_rocm_is_refused_beside_nvidias_gpus_too() -> None:
    with pytest.raises(Misuse, match=r"is built for ROCm 7\.1, but `run` measures only NVIDIA GPUs"):
        check_torch(ON_GPUS, _machine(torch_hip_version="7.1", torch_cuda_version=None))


def test_nccl_wants_a_gpu_for_each_rank_of_a_node() -> None:
    machine = replace(_machine(cuda_driver_version="13.0"), gpus=(Gpu(index=0, name="A", uuid="a", memory_bytes=None),))
    check_torch(replace(ON_GPUS, backend="nccl", ranks=2, nodes=2), machine)
    with pytest.raises(Misuse, match=r"has 2 ranks per node and NCCL needs a GPU for each; .* has 1"):
        check_torch(replace(ON_GPUS, backend="nccl", ranks=4, nodes=2), machine)


def test_a_case_on_the_cpu_takes_any_torch() -> None:
    check_torch(make_case(), _machine(torch_hip_version="7.1", torch_cuda_version=None))


def test_the_build_of_torch_is_known_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "version.py").write_text("__version__ = '2.11.0+rocm7.1'\ncuda = None\nhip = '7.1.5'\n")
    (tmp_path / "__init__.py").write_text("raise ImportError('never')\n")
    assert torch_build(tmp_path) == TorchBuild(version="2.11.0+rocm7.1", hip="7.1.5")
    assert torch_build(tmp_path / "none") == TorchBuild()


def test_the_build_is_that_of_the_torch_that_is_installed() -> None:
    import torch

    assert torch_build() == TorchBuild(version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip)


def test_a_node_of_a_cluster_whose_variable_is_a_mistake_is_named_before_anything_runs() -> None:
    """The runner's plan sees no variable of another node; the node's agent reports it."""
    machine = read(
        nvml=RecordedNvml(names=("A", "B")),
        torch=SimpleNamespace(
            __version__="2.13.0", version=SimpleNamespace(cuda="13.0", hip=None), _C=SimpleNamespace()
        ),
        environment={"CUDA_VISIBLE_DEVICES": "0,7"},
    )
    words = r'CUDA_VISIBLE_DEVICES is "0,7", and "7" is not a GPU here \(GPUs are 0 to 1\), .*; correct it'
    with pytest.raises(Misuse, match=words) as error:
        check_torch(replace(ON_GPUS, ranks=1), machine)
    assert str(error.value).startswith(f"{machine.hostname}: ")
    check_torch(make_case(), machine)
