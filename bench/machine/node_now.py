"""The current state of a node, as far as it can spoil a measurement: memory, disk, clocks and errors of GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine.gpus import Gpu, Nvml, answer_within
from bench.machine.limits.demand import demand_of_gpus
from bench.machine.limits.registry import too_small
from bench.machine.preflight import available_bytes
from collectors.nvml.library import installed_nvml
from collectors.nvml.plausible import CheckedNvml

ANSWER_S = 10.0
"""How long the driver may take for all GPUs together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNow:
    """A GPU's state. A value that the driver does not report is None, with the reason in `absent` of the node.

    free_bytes: its free memory. uncorrected_errors: those of its memory (ECC), since the driver was loaded.
    pending_rows: whether rows of its memory wait for a reset to be replaced; 1 or 0. has_failed_rows: whether a row
    could not be replaced because no spare row is left.
    clock_limit_hertz: the highest clock of its multiprocessors. power_limit_watts: the enforced limit.
    """

    index: int
    uuid: str
    free_bytes: int | None = None
    uncorrected_errors: int | None = None
    pending_rows: int | None = None
    has_failed_rows: bool | None = None
    clock_limit_hertz: int | None = None
    power_limit_watts: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """A node's state. memory_bytes: available to new processes. disk_bytes: free space for the folders of runs.

    cpu_governor: the governors of all CPUs; None if the kernel does not set clocks. small_limits: a line for each limit
    that is too small for a rank on each GPU. absent: reasons, by names such as "gpus[1].free_bytes".
    """

    memory_bytes: int
    disk_bytes: int | None
    cpu_governor: str | None = None
    gpus: tuple[GpuNow, ...] = ()
    small_limits: tuple[str, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)


def read_now(gpus: Sequence[Gpu], runs: Path, *, nvml: Nvml | None = None, root: Path = Path("/")) -> NodeNow:
    """Return the node's state. gpus: those that ranks may use. root: where /proc and /sys are.

    A driver that does not answer within `ANSWER_S` gives an absent value with a reason, not an error.
    """
    absent: dict[str, str] = {}
    gpus_now: tuple[GpuNow, ...] = ()
    if gpus:
        checked = installed_nvml() if nvml is None else CheckedNvml(nvml)
        answered = answer_within(ANSWER_S, lambda: _read_gpus(gpus, checked))
        if answered is None:
            gpus_now = tuple(GpuNow(index=gpu.index, uuid=gpu.uuid) for gpu in gpus)
            absent["gpus"] = f"NVML: no answer within {ANSWER_S:g} s"
        else:
            gpus_now, absent = answered
    try:
        disk_bytes: int | None = shutil.disk_usage(_existing(runs)).free
    except OSError as error:
        disk_bytes = None
        absent["disk_bytes"] = f"{runs}: {error.strerror}"
    return NodeNow(
        memory_bytes=available_bytes(root),
        disk_bytes=disk_bytes,
        cpu_governor=_governor(root),
        gpus=gpus_now,
        small_limits=tuple(too_small(demand_of_gpus(len(gpus)), root=root)),
        absent=absent,
    )


def _read_gpus(gpus: Sequence[Gpu], nvml: Nvml) -> tuple[tuple[GpuNow, ...], dict[str, str]]:
    absent: dict[str, str] = {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return tuple(GpuNow(index=gpu.index, uuid=gpu.uuid) for gpu in gpus), {"gpus": f"NVML: {error}"}
    try:
        return tuple(_read_gpu(nvml, gpu, absent) for gpu in gpus), absent
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Nvml, gpu: Gpu, absent: dict[str, str]) -> GpuNow:
    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError as error:
            absent[f"gpus[{gpu.index}].{name}"] = f"NVML: {error}"
            return None

    now = GpuNow(index=gpu.index, uuid=gpu.uuid)
    handle = ask("handle", lambda: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    if handle is None:
        return now
    errors = ask(
        "uncorrected_errors",
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    rows = ask("pending_rows", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    clock_mhz = ask("clock_limit_hertz", lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    milliwatts = ask("power_limit_watts", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    memory = ask("free_bytes", lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return GpuNow(
        index=gpu.index,
        uuid=gpu.uuid,
        free_bytes=None if memory is None else int(memory.free),
        uncorrected_errors=None if errors is None else int(errors),
        pending_rows=None if rows is None else int(rows[2]),  # Corrected, uncorrected, pending, failed.
        has_failed_rows=None if rows is None else bool(rows[3]),
        clock_limit_hertz=None if clock_mhz is None else int(clock_mhz) * 1_000_000,
        power_limit_watts=None if milliwatts is None else milliwatts / 1000,
    )


def _governor(root: Path) -> str | None:
    """Return the governors of all CPUs; None if the host or its firmware sets the clocks."""
    governors = set()
    for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"):
        try:
            governors.add(path.read_text().strip())
        except OSError:  # An offline CPU.
            continue
    return ", ".join(sorted(governors)) or None


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
