"""The GPUs that this process may use, their links and their free memory, read with NVML; starts no CUDA."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, TypeAlias, TypeVar

from pynvml import NVML_ERROR_TIMEOUT

from bench.errors import plural
from bench.machine.cpu_list import written
from collectors.background import BackgroundTask
from collectors.nvml import library
from collectors.nvml.inventory import (
    NvmlDevice,
    cuda_version,
    gpus_of_node,
    instance_with,
    instances_of,
    near_cpus,
)
from collectors.nvml.plausible import CheckedNvml, ImplausibleAnswer
from collectors.nvml.queries import memory_of

NvmlAnswer = TypeVar("NvmlAnswer")
LATE_S = 5.0
"""After this time, a notice says that NVML has not answered yet."""
ANSWER_S = 60.0
"""How long the driver may take to answer. Without persistence mode it initialises each GPU at the first query."""

LinkKind = Literal["nvlink", "internal", "single", "multiple", "hostbridge", "node", "system"]
"""How two GPUs reach each other: by NVLink, or over the PCIe ancestor they share, in NVML's words.

internal: one board. single: one PCIe switch. multiple: several switches. hostbridge: one host bridge. node: several
host bridges in one NUMA node. system: the link between sockets.
"""


Nvml: TypeAlias = Any
"""The module `pynvml`, which has no types, or a recording in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of it. index: NVML's index, in PCI bus order.

    power_limit_watts: the enforced limit. clock_limit_hertz: the highest clock of its multiprocessors.
    near_cpus: the CPUs of its NUMA node, for example "0-31,64-95", whether or not this process may use them. Older
    versions of this program read none of the three.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    power_limit_watts: float | None = None
    clock_limit_hertz: int | None = None
    near_cpus: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs, by their NVML index, reach each other."""

    first: int
    second: int
    kind: LinkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenGpus:
    """Why CUDA shows this process other GPUs than the node has. text: one sentence.

    is_mistake: CUDA_VISIBLE_DEVICES names a GPU that does not exist, or a GPU twice, so that CUDA shows less than
    intended; or CUDA shows a GPU that Slurm did not give to this process.
    """

    text: str
    is_mistake: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All that NVML reports. absent: what it does not report, and why.

    cuda_version: the newest CUDA that the driver supports, for example "13.0".
    gpus: those that CUDA would show to this process. on_node: the number that NVML counts, hidden ones included.
    hidden: why the two differ; None if all can be used. failure: NVML's error code if NVML does not start.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    on_node: int = 0
    hidden: HiddenGpus | None = None
    links: tuple[GpuLink, ...] = ()
    failure: int | None = None
    absent: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process on a GPU. pid: as the driver numbers it, which is the host's PID. memory_bytes: None if unknown."""

    pid: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The current free memory of a GPU, and the processes that hold the rest. reason: why it is unknown."""

    index: int
    free_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    reason: str | None = None


_LEVELS: dict[int, LinkKind] = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
"""Link kinds by NVML's level of the common PCIe ancestor, nvmlGpuTopologyLevel_t."""


def read_gpus(
    nvml: Nvml | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    within_s: float = ANSWER_S,
    late_s: float = LATE_S,
    on_late: Callable[[str], None] = lambda text: None,
) -> Gpus:
    """Return the GPUs that CUDA shows to this process, in CUDA's order, and their links.

    A machine without a driver is normal: then everything is absent, with NVML's reason.
    Numbers in CUDA_VISIBLE_DEVICES are read in PCI bus order, which CUDA uses in ranks unless the user sets another
    CUDA_DEVICE_ORDER (`bench.rank.gpu_of_rank`). If MIG splits a GPU, CUDA shows a process one MIG instance and nothing
    else.

    within_s: how long to wait for NVML. on_late: called with a notice if NVML has not answered after late_s.
    """
    checked = library.installed_nvml() if nvml is None else CheckedNvml(nvml)
    gpus = answer_within(within_s, lambda: _read_gpus(checked, environment), late_s, on_late)
    return gpus or _unknown(f"NVML: no answer within {within_s:g} s", NVML_ERROR_TIMEOUT)


def answer_within(
    within_s: float,
    question: Callable[[], NvmlAnswer],
    late_s: float = LATE_S,
    on_late: Callable[[str], None] = lambda text: None,
) -> NvmlAnswer | None:
    """Return the answer; None if the driver hangs, in which case the querying thread is left behind."""
    task = BackgroundTask("nvml", question)
    task.ask()
    first_s = min(late_s, within_s)
    if not task.wait(first_s):
        on_late(f"NVML has not answered yet; waiting at most {within_s:g} s")
        if not task.wait(within_s - first_s):
            return None
    task.close(within_s)
    return task.latest


def _unknown(reason: str, failure: int | None) -> Gpus:
    return Gpus(failure=failure, absent=dict.fromkeys(("driver_version", "cuda_version", "gpus", "links"), reason))


def _read_gpus(nvml: Nvml, environment: Mapping[str, str]) -> Gpus:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return _unknown(f"NVML: {error}", library.code_of(error))
    absent: dict[str, str] = {}
    driver_version: str | None = None
    newest_cuda: str | None = None
    node_gpus: Sequence[NvmlDevice] = ()
    refused: Mapping[int, Exception] = {}
    hidden: HiddenGpus | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    try:
        with _noting(nvml, absent, "driver_version"):
            driver_version = nvml.nvmlSystemGetDriverVersion()
        with _noting(nvml, absent, "cuda_version"):
            newest_cuda = cuda_version(nvml)
        with _noting(nvml, absent, "gpus"):
            node_gpus, refused = gpus_of_node(nvml)
            withheld = {index for index, error in refused.items() if library.says_forbidden(error)}
            broken = {index: str(error) for index, error in refused.items() if index not in withheld}
            absent |= {f"gpus[{index}]": f"NVML: {error}" for index, error in refused.items()}
            named, hidden = _named(nvml, node_gpus, environment.get("CUDA_VISIBLE_DEVICES"))
            hidden = _beyond_slurm(environment, named, node_gpus) or hidden
            shown, by_mig = _as_cuda_shows(nvml, named)
            # A mistake comes first, then what MIG hides, then what CUDA_VISIBLE_DEVICES hides on purpose, then GPUs
            # that do not answer.
            hidden = hidden if hidden is not None and (hidden.is_mistake or by_mig is None) else by_mig
            if node_gpus and broken:
                hidden = hidden or HiddenGpus(text=f"{_broken(broken)}; CUDA uses the other {len(node_gpus)}")
            elif node_gpus:
                hidden = hidden or _withheld(len(withheld), len(node_gpus) + len(refused))
            elif refused:
                absent["gpus"] = f"NVML: {_broken({index: str(error) for index, error in refused.items()})}"
            gpus = tuple(_read_gpu(nvml, gpu, absent) for gpu in shown)
            with _noting(nvml, absent, "links"):
                links = tuple(
                    GpuLink(first=gpu.index, second=peer.index, kind=_link(nvml, gpu.handle, peer.handle))
                    for gpu, peer in combinations(shown, 2)
                )
    finally:
        nvml.nvmlShutdown()
    return Gpus(
        driver_version=driver_version,
        cuda_version=newest_cuda,
        gpus=gpus,
        on_node=len(node_gpus) + len(refused),
        hidden=hidden,
        links=links,
        absent=absent,
    )


def why_numbered_otherwise(gpus: Sequence[Gpu], environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why CUDA numbers these GPUs in ranks differently from NVML; None if both agree.

    Ranks number them by PCI bus unless the user sets CUDA_DEVICE_ORDER (`bench.rank.gpu_of_rank`).
    """
    order = environment.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    names = Counter(gpu.name for gpu in gpus)
    if len(names) < 2 or order == "PCI_BUS_ID":
        return None
    kinds = ", ".join(f"{count} x {name}" for name, count in names.items())
    return (
        f"GPUs differ ({kinds}), and with CUDA_DEVICE_ORDER={order} CUDA numbers the fastest first; unset it to number"
        " them as NVML does"
    )


def read_memory(gpus: Sequence[Gpu], nvml: Nvml | None = None, *, within_s: float = ANSWER_S) -> tuple[GpuMemory, ...]:
    """Return the current free memory of each of these GPUs, in their order."""
    if not gpus:
        return ()
    late = f"NVML: no answer within {within_s:g} s"
    checked = library.installed_nvml() if nvml is None else CheckedNvml(nvml)
    memory = answer_within(within_s, lambda: _read_memory(gpus, checked))
    return memory or tuple(GpuMemory(index=gpu.index, reason=late) for gpu in gpus)


def _read_memory(gpus: Sequence[Gpu], nvml: Nvml) -> tuple[GpuMemory, ...]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return tuple(GpuMemory(index=gpu.index, reason=f"NVML: {error}") for gpu in gpus)
    try:
        return tuple(_memory(nvml, gpu) for gpu in gpus)
    finally:
        nvml.nvmlShutdown()


def _memory(nvml: Nvml, gpu: Gpu) -> GpuMemory:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)  # Works for MIG instances too.
        free_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError as error:
        return GpuMemory(index=gpu.index, reason=f"NVML: {error}")
    holders: dict[int, Holder] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v3):
        with contextlib.suppress(nvml.NVMLError):  # May be refused for a MIG instance, or without root.
            for process in ask(handle):
                holders[process.pid] = Holder(pid=process.pid, memory_bytes=memory_of(process))
    return GpuMemory(index=gpu.index, free_bytes=free_bytes, holders=tuple(holders.values()))


@contextlib.contextmanager
def _noting(nvml: Nvml, absent: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        absent[name] = f"NVML: {error}"


def _named(
    nvml: Nvml, node_gpus: Sequence[NvmlDevice], variable: str | None
) -> tuple[Sequence[NvmlDevice], HiddenGpus | None]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, and why others are hidden.

    As in CUDA, an entry that names no GPU hides all GPUs after it: "1,7,0" on a node with 4 GPUs shows only GPU 1.
    """
    if variable is None:
        return node_gpus, None
    setting = f'CUDA_VISIBLE_DEVICES is "{variable}"'
    named: list[NvmlDevice] = []
    entries = [entry.strip() for entry in variable.split(",")]
    for position, entry in enumerate(entries):
        gpu = _find(nvml, node_gpus, entry)
        if isinstance(gpu, str):
            # -1, or what Slurm writes for a job without GPUs, ends CUDA's list; so does an empty last entry.
            is_end = entry == "NoDevFiles" or re.fullmatch(r"-\d+", entry) is not None
            is_end = is_end or (entry == "" and position == len(entries) - 1)
            if node_gpus and not is_end:
                consequence = f"so CUDA shows {len(named) or 'none'} of {plural(len(node_gpus), 'GPU')}"
                return named, HiddenGpus(text=f'{setting}, and "{entry}" {gpu}, {consequence}', is_mistake=True)
            break
        named.append(gpu)
    twice = next((gpu.index for gpu in named if [other.uuid for other in named].count(gpu.uuid) > 1), None)
    if twice is not None:
        return [], HiddenGpus(text=f"{setting} and names GPU {twice} twice, so CUDA shows none", is_mistake=True)
    if len(named) == len(node_gpus):
        return named, None
    return named, HiddenGpus(
        text=f"{setting} and {f'shows {len(named)} of' if named else 'hides all'} {plural(len(node_gpus), 'GPU')}"
    )


def _broken(refused: Mapping[int, str]) -> str:
    """Return which GPUs do not answer and why, for example "GPU 3 does not answer (GPU is lost)"."""
    by_reason: dict[str, list[str]] = {}
    for index, reason in refused.items():
        by_reason.setdefault(reason, []).append(str(index))
    return ", ".join(
        f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(indices)} {'does' if len(indices) == 1 else 'do'} not"
        f" answer ({reason})"
        for reason, indices in by_reason.items()
    )


def _withheld(withheld: int, on_node: int) -> HiddenGpus | None:
    """Return how many GPUs this process may not use; None if it may use all."""
    if not withheld:
        return None
    return HiddenGpus(
        text=f"this process may not open /dev/nvidia* of {withheld} of {plural(on_node, 'GPU')}, which a"
        " container or a scheduler withholds"
    )


def _beyond_slurm(
    environment: Mapping[str, str], named: Sequence[NvmlDevice], node_gpus: Sequence[NvmlDevice]
) -> HiddenGpus | None:
    """Return which of the named GPUs Slurm did not give to this process; None if there is none, or if that is unknown.

    Slurm sets CUDA_VISIBLE_DEVICES in the processes that it starts, but the user may set it again later. If a control
    group withholds all other GPUs, none of them can be named, and numbers count only the remaining GPUs.
    """
    # Elsewhere, for example in the shell of salloc, the variables describe another node.
    if "SLURMD_NODENAME" not in environment:
        return None
    source = "SLURM_STEP_GPUS" if "SLURM_STEP_ID" in environment else "SLURM_JOB_GPUS"
    text = environment.get(source, "")
    if re.fullmatch(r"\d+(,\d+)*", text) is None or any(gpu.instance for gpu in named):
        return None
    allocated = {int(number) for number in text.split(",")}
    foreign = ", ".join(str(gpu.index) for gpu in named if gpu.index not in allocated)
    if len(node_gpus) <= len(allocated) or not foreign:
        return None
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    setting = "is not set" if variable is None else f'is "{variable}"'
    return HiddenGpus(
        text=f"CUDA_VISIBLE_DEVICES {setting} and shows GPU {foreign}, but Slurm gave this process GPU"
        f" {text.replace(',', ', ')} ({source}); leave the variable to Slurm, because others may use the rest",
        is_mistake=True,
    )


def _find(nvml: Nvml, node_gpus: Sequence[NvmlDevice], entry: str) -> NvmlDevice | str:
    """Return the GPU or MIG instance that an entry names, or why it names none."""
    if entry.startswith("MIG-"):
        try:
            return instance_with(nvml, entry)
        except nvml.NVMLError:
            return "is not a MIG instance of a GPU here (`nvidia-smi -L` lists them)"
    if entry.startswith("GPU-"):
        fitting = [gpu for gpu in node_gpus if gpu.uuid.startswith(entry)]
        if len(fitting) == 1:
            return fitting[0]
        return f"matches {plural(len(fitting), 'GPU') if fitting else 'no GPU'} here (`nvidia-smi -L` lists them)"
    number = re.match(r"\+?\d+", entry)
    if number is None:
        return "is neither a number nor a UUID of a GPU"
    if int(number[0]) >= len(node_gpus):
        return f"is not a GPU here (GPUs are 0 to {len(node_gpus) - 1})"
    return node_gpus[int(number[0])]


def _as_cuda_shows(nvml: Nvml, named: Sequence[NvmlDevice]) -> tuple[Sequence[NvmlDevice], HiddenGpus | None]:
    """Return which of the named GPUs CUDA shows to one process: with MIG, only the first instance and no whole GPU.

    Source: NVIDIA's MIG user guide, CUDA device enumeration.
    """
    unsplit: list[NvmlDevice] = []
    instances: list[NvmlDevice] = []
    empty: list[int] = []
    for gpu in named:
        gpu_instances: Sequence[NvmlDevice] | None = (gpu,)
        if not gpu.instance:
            try:
                gpu_instances = instances_of(nvml, gpu)
            except nvml.NVMLError:  # It has no MIG.
                gpu_instances = None
        if gpu_instances is None:
            unsplit.append(gpu)
        elif gpu_instances:
            instances += gpu_instances
        else:
            empty.append(gpu.index)
    if not instances:
        if not empty:
            return unsplit, None
        bare = ", ".join(map(str, empty))
        return unsplit, HiddenGpus(text=f"GPU {bare} has MIG enabled but no MIG instance, so CUDA does not show it")
    first = instances[0]
    if len(named) == len(instances) == 1 and first is named[0]:
        return [first], None
    return [first], HiddenGpus(
        text=f"MIG splits GPU {first.index}, and CUDA shows a process one MIG instance and no other GPU: here"
        f" {first.uuid}, the first of {len(instances)}; CUDA_VISIBLE_DEVICES can name another (`nvidia-smi -L`); NCCL"
        " does not join MIG instances"
    )


def _read_gpu(nvml: Nvml, gpu: NvmlDevice, absent: dict[str, str]) -> Gpu:
    memory_bytes: int | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].memory_bytes"):  # Unknown if memory is shared with the CPU.
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total)
    power_limit_watts: float | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].power_limit_watts"):
        power_limit_watts = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) / 1000
    clock_limit_hertz: int | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].clock_limit_hertz"):
        clock_limit_hertz = int(nvml.nvmlDeviceGetMaxClockInfo(gpu.handle, nvml.NVML_CLOCK_SM)) * 1_000_000
    cpus: str | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].near_cpus"):
        cpus = written(near_cpus(nvml, gpu))
    return Gpu(
        index=gpu.index,
        name=gpu.name or nvml.nvmlDeviceGetName(gpu.handle),
        uuid=gpu.uuid,
        memory_bytes=memory_bytes,
        power_limit_watts=power_limit_watts,
        clock_limit_hertz=clock_limit_hertz,
        near_cpus=cpus,
    )


def _link(nvml: Nvml, handle: Any, peer_handle: Any) -> LinkKind:
    with contextlib.suppress(nvml.NVMLError):  # A GPU without NVLink may refuse the query.
        status = nvml.nvmlDeviceGetP2PStatus(handle, peer_handle, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "nvlink"
    level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, peer_handle)
    if level not in _LEVELS:
        raise ImplausibleAnswer(f"topology level {level} is implausible: {', '.join(map(str, _LEVELS))}")
    return _LEVELS[level]
