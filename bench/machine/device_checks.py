"""Checks, before ranks start, whether they can use the GPUs of this machine; if not, one sentence says why."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass
from pathlib import Path

from pynvml import (
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    NVML_ERROR_LIBRARY_NOT_FOUND,
)

from bench.case import Case
from bench.errors import InfrastructureFailed, Misuse, plural
from bench.machine.gpus import Gpus
from bench.machine.machine import SHOWN_GPUS, Machine

_DRIVERS = {12: "525", 13: "580"}
"""The first driver that runs a major version of CUDA. Source: NVIDIA's CUDA toolkit release notes, table 2."""
_CPU = "use --device cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """torch's build. cuda, hip: their versions, None if built without. version: torch's own, None if unknown."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None


def torch_build(package: Path | None = None) -> TorchBuild:
    """Return the build of the torch that ranks would import, without importing it.

    package: torch's folder; by default the one that an import would find. Its version.py is written when torch is built
    and imports nothing else of torch.
    """
    if package is None:
        module_spec = importlib.util.find_spec("torch")
        if module_spec is None or module_spec.origin is None:
            return TorchBuild()
        package = Path(module_spec.origin).parent
    spec = importlib.util.spec_from_file_location("torch_version", package / "version.py")
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    version = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(version)
    except OSError:  # An unbuilt source tree of torch has no version.
        return TorchBuild()
    return TorchBuild(
        version=getattr(version, "__version__", None),
        cuda=getattr(version, "cuda", None),
        hip=getattr(version, "hip", None),
    )


def _refuse_rocm(torch_version: str | None, hip: str) -> Misuse:
    """Return the error for a torch that is built for AMD's ROCm."""
    return Misuse(
        f"torch {torch_version} is built for ROCm {hip}, but `run` measures only NVIDIA GPUs;"
        f" {_CPU} (`observatory analyse` reads ROCm traces)"
    )


def refuse_build(torch_version: str | None, hip: str | None, gpus: int) -> Misuse | InfrastructureFailed:
    """Return the error for a case on GPUs whose torch is built without CUDA. gpus: how many NVML shows."""
    if hip is not None:
        return _refuse_rocm(torch_version, hip)
    return InfrastructureFailed(f"{without_cuda(torch_version, gpus)}; install a CUDA build, or {_CPU}")


def without_cuda(torch_version: str | None, gpus: int) -> str:
    """Return what is wrong if torch is built without CUDA on a machine whose NVML shows this many GPUs."""
    shown = f"NVML shows {plural(gpus, 'GPU')}, but " if gpus else ""
    return f"{shown}torch {torch_version} is built without CUDA"


def refuse_no_gpu(gpus: Gpus, build: TorchBuild, root: Path = Path("/")) -> Misuse | InfrastructureFailed:
    """Return the error for a case on GPUs when no GPU can be used; its type decides the exit code.

    root: where /dev and /proc are.
    """
    if build.hip is not None:
        return _refuse_rocm(build.version, build.hip)
    if gpus.hidden is not None:
        return Misuse(f"device is cuda, but no GPU can be used: {gpus.hidden.text}; correct it, or {_CPU}")
    if gpus.failure == NVML_ERROR_LIBRARY_NOT_FOUND:
        driver = _kernel_driver(root)
        if driver is None:
            return Misuse(
                f"device is cuda, but this machine has no NVIDIA driver; {_CPU}, or check `nvidia-smi`"
                " (a container sees GPUs only if it was started with them)"
            )
        return InfrastructureFailed(
            f"device is cuda, but {driver} is loaded without its library NVML (libnvidia-ml.so.1), which counts the"
            " GPUs: install the library, or start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    if gpus.failure == NVML_ERROR_DRIVER_NOT_LOADED:
        return InfrastructureFailed(
            f"device is cuda, but NVML finds no driver: {_nodes(root)}; start the container with GPUs (docker run"
            " --gpus all), or load the kernel module nvidia"
        )
    if gpus.failure == NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return InfrastructureFailed(
            "device is cuda, but the kernel driver and its library NVML have different versions, for example after an"
            " upgrade: reload the kernel module, or restart the machine"
        )
    if gpus.failure is not None:
        return InfrastructureFailed(
            f"device is cuda, but {gpus.absent['gpus'].rstrip('.')}; check `nvidia-smi`, or {_CPU}"
        )
    reason = gpus.absent.get("gpus", f"driver {gpus.driver_version} shows no GPU: {_nodes(root)}")
    return InfrastructureFailed(f"device is cuda, but {reason}; check `nvidia-smi -L`, or {_CPU}")


def why_no_gpu(gpus: Gpus, build: TorchBuild, root: Path = Path("/")) -> str:
    """Return why a run without an explicit device uses the CPU. root: where /dev and /proc are."""
    if build.hip is not None:
        return f"torch is built for ROCm {build.hip}, but `run` measures only NVIDIA GPUs"
    if gpus.hidden is not None:
        return gpus.hidden.text
    if gpus.failure == NVML_ERROR_LIBRARY_NOT_FOUND:
        driver = _kernel_driver(root)
        return "no NVIDIA GPU found" if driver is None else f"{driver} is loaded without its library NVML"
    return gpus.absent.get("gpus", f"driver {gpus.driver_version} shows no GPU")


def check_torch(case: Case, machine: Machine) -> None:
    """Refuse a case on GPUs that its ranks' torch cannot use, or of which the machine has too few.

    Raises:
        Misuse: torch is built for ROCm, CUDA shows other GPUs than intended, or NCCL lacks a GPU for each rank.
        InfrastructureFailed: torch is built without CUDA, or for a newer CUDA than the driver runs.
    """
    if case.device == "cuda":
        if machine.torch_cuda_version is None:
            raise refuse_build(machine.torch_version, machine.torch_hip_version, len(machine.gpus))
        if (old := too_old(machine)) is not None:
            raise InfrastructureFailed(f"{old}, or {_CPU}")
        if (mistake := machine.absent.get(SHOWN_GPUS)) is not None:  # Of a cluster's node, which the plan did not see.
            raise Misuse(f"{machine.hostname}: {mistake}; correct it, or {_CPU}")
    most = math.ceil(case.ranks / case.nodes)
    if case.backend == "nccl" and most > len(machine.gpus):  # The first check if the cluster does not report GPUs.
        broken = [f"{name}: {why}" for name, why in machine.absent.items() if re.fullmatch(r"gpus(\[\d+\])?", name)]
        why = f" ({', '.join(broken)})" if broken else ""
        raise Misuse(
            f"{case.title} has {plural(most, 'rank')} per node and NCCL needs a GPU for each; {machine.hostname} has"
            f" {len(machine.gpus)}{why}"
        )


def too_old(machine: Machine) -> str | None:
    """Return what is wrong if the driver is too old for torch's CUDA; None if they match or are unknown.

    Minor versions are compatible within a major version.
    Source: NVIDIA's CUDA compatibility guide, minor version compatibility.
    """
    if machine.torch_cuda_version is None or machine.cuda_driver_version is None:
        return None
    needed, supported = (
        int(version.split(".")[0]) for version in (machine.torch_cuda_version, machine.cuda_driver_version)
    )
    if supported >= needed:
        return None
    newer = f" ({_DRIVERS[needed]} or newer)" if needed in _DRIVERS else ""
    return (
        f"driver {machine.driver_version} supports CUDA up to {machine.cuda_driver_version}, but torch"
        f" {machine.torch_version} is built for CUDA {machine.torch_cuda_version}: install a newer driver{newer}, or"
        f" a torch for CUDA {supported}"
    )


def _kernel_driver(root: Path) -> str | None:
    """Return a description of the kernel's NVIDIA driver; None if neither its version nor a device file is found."""
    try:
        line = (root / "proc/driver/nvidia/version").read_text().splitlines()[0]
        return " ".join(line.removeprefix("NVRM version:").split())
    except (OSError, IndexError):
        return "an NVIDIA driver" if list((root / "dev").glob("nvidia[0-9]*")) else None


def _nodes(root: Path) -> str:
    names = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    return f"/dev has {', '.join(names)}" if names else "/dev has no nvidia0 or similar"
