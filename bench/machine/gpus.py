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

from collectors.background import BackgroundTask
from collectors.nvml import library
from collectors.nvml.mig import find_instances
from collectors.nvml.plausible import CheckedNvml, ImplausibleAnswer
from collectors.nvml.queries import memory_of

Answer = TypeVar("Answer")
LATE_S = 5.0
"""After this time, a notice says that NVML has not answered yet."""
ANSWER_S = 60.0
"""How long the driver may take to answer. Without persistence mode it initialises each GPU at the first question."""

LinkKind = Literal["nvlink", "internal", "single", "multiple", "hostbridge", "node", "system"]
"""How two GPUs reach each other: by NVLink, or over the PCIe ancestor they share, in NVML's words.

internal: one board. single: one PCIe switch. multiple: several switches. hostbridge: one host bridge. node: several
host bridges in one NUMA node. system: the link between sockets.
"""


Nvml: TypeAlias = Any
"""The module `pynvml`, which has no types, or a recording that takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of it. index: NVML's index, in PCI bus order.

    power_limit_watts: what is enforced. clock_limit_hertz: the highest clock of its multiprocessors. An older version
    has read neither.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    power_limit_watts: float | None = None
    clock_limit_hertz: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs, by their NVML index, reach each other."""

    first: int
    second: int
    kind: LinkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Why CUDA shows this process other GPUs than the node has. text: one sentence.

    is_mistake: CUDA_VISIBLE_DEVICES names a GPU that does not exist, or one GPU twice: CUDA shows less than was meant.
    """

    text: str
    is_mistake: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All that NVML tells. absent: what it does not tell, and why.

    cuda_version: the newest CUDA that the driver runs, such as "13.0".
    gpus: those that CUDA would show to this process. on_node: how many GPUs NVML shows, hidden ones included.
    hidden: why both differ; None if all can be used. failure: NVML's error code, if NVML does not start at all.
    """

    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    on_node: int = 0
    hidden: Hidden | None = None
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
    """Free memory of a GPU at this moment, and the processes that hold the rest. reason: why it is unknown."""

    index: int
    free_bytes: int | None = None
    holders: tuple[Holder, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A GPU as CUDA shows it. index: NVML's index of the whole GPU. is_instance: of MIG."""

    index: int
    handle: Any
    is_instance: bool = False


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
    Numbers in CUDA_VISIBLE_DEVICES are read in PCI bus order; CUDA counts so if all GPUs are alike, or if
    CUDA_DEVICE_ORDER=PCI_BUS_ID. If MIG splits one of the GPUs, CUDA shows a process one MIG instance and nothing else.

    within_s: how long to wait for NVML. on_late: is called with a notice if NVML has not answered after late_s.
    """
    checked = library.installed_nvml() if nvml is None else CheckedNvml(nvml)
    found = answer_within(within_s, lambda: _read_gpus(checked, environment), late_s, on_late)
    return found or _unknown(f"NVML: no answer within {within_s:g} s", NVML_ERROR_TIMEOUT)


def answer_within(
    within_s: float,
    question: Callable[[], Answer],
    late_s: float = LATE_S,
    on_late: Callable[[str], None] = lambda text: None,
) -> Answer | None:
    """Return the answer; None if the driver hangs, and then the asking thread is left behind."""
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
    cuda_version: str | None = None
    every: list[_Shown] = []
    hidden: Hidden | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    try:
        with _noting(nvml, absent, "driver_version"):
            driver_version = nvml.nvmlSystemGetDriverVersion()
        with _noting(nvml, absent, "cuda_version"):
            number = nvml.nvmlSystemGetCudaDriverVersion()  # 12040 means 12.4.
            cuda_version = f"{number // 1000}.{number % 1000 // 10}"
        with _noting(nvml, absent, "gpus"):
            indices = range(nvml.nvmlDeviceGetCount())
            every = [_Shown(index=index, handle=nvml.nvmlDeviceGetHandleByIndex(index)) for index in indices]
            named, hidden = _named(nvml, every, environment.get("CUDA_VISIBLE_DEVICES"))
            shown, by_mig = _as_cuda_shows(nvml, named)
            # A mistake comes first, then what MIG hides, then what CUDA_VISIBLE_DEVICES hides on purpose.
            hidden = hidden if hidden is not None and (hidden.is_mistake or by_mig is None) else by_mig
            gpus = tuple(_read_gpu(nvml, one, absent) for one in shown)
            with _noting(nvml, absent, "links"):
                links = tuple(
                    GpuLink(first=one.index, second=other.index, kind=_link(nvml, one.handle, other.handle))
                    for one, other in combinations(shown, 2)
                )
    finally:
        nvml.nvmlShutdown()
    return Gpus(
        driver_version=driver_version,
        cuda_version=cuda_version,
        gpus=gpus,
        on_node=len(every),
        hidden=hidden,
        links=links,
        absent=absent,
    )


def read_memory(gpus: Sequence[Gpu], nvml: Nvml | None = None, *, within_s: float = ANSWER_S) -> tuple[GpuMemory, ...]:
    """Return the free memory of each of these GPUs at this moment, in their order."""
    if not gpus:
        return ()
    late = f"NVML: no answer within {within_s:g} s"
    checked = library.installed_nvml() if nvml is None else CheckedNvml(nvml)
    found = answer_within(within_s, lambda: _read_memory(gpus, checked))
    return found or tuple(GpuMemory(index=gpu.index, reason=late) for gpu in gpus)


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
            for one in ask(handle):
                holders[one.pid] = Holder(pid=one.pid, memory_bytes=memory_of(one))
    return GpuMemory(index=gpu.index, free_bytes=free_bytes, holders=tuple(holders.values()))


@contextlib.contextmanager
def _noting(nvml: Nvml, absent: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        absent[name] = f"NVML: {error}"


def _named(nvml: Nvml, every: list[_Shown], variable: str | None) -> tuple[list[_Shown], Hidden | None]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, and why others are hidden.

    As in CUDA, an entry that names no GPU hides all GPUs after it: "1,7,0" on a node with 4 GPUs shows GPU 1 only.
    """
    if variable is None:
        return every, None
    setting = f'CUDA_VISIBLE_DEVICES is "{variable}"'
    named: list[_Shown] = []
    uuids: list[str] = []
    entries = [entry.strip() for entry in variable.split(",")]
    for position, entry in enumerate(entries):
        found = _find(nvml, every, entry)
        if isinstance(found, str):
            # -1, or what Slurm writes for a job without GPUs, tells CUDA to show no more; so does an empty last entry.
            is_end = entry == "NoDevFiles" or re.fullmatch(r"-\d+", entry) is not None
            is_end = is_end or (entry == "" and position == len(entries) - 1)
            if every and not is_end:
                kept = f"so CUDA shows {'none' if not named else f'{len(named)}'} of {len(every)} GPU(s)"
                return named, Hidden(text=f'{setting}, and "{entry}" {found}, {kept}', is_mistake=True)
            break
        named.append(found)
        uuids.append(nvml.nvmlDeviceGetUUID(found.handle))
    twice = next((uuid for uuid, count in Counter(uuids).items() if count > 1), None)
    if twice is not None:
        index = named[uuids.index(twice)].index
        return [], Hidden(text=f"{setting} and names GPU {index} twice, so CUDA shows none", is_mistake=True)
    if len(named) == len(every):
        return named, None
    return named, Hidden(text=f"{setting} and {f'shows {len(named)} of' if named else 'hides all'} {len(every)} GPU(s)")


def _find(nvml: Nvml, every: list[_Shown], entry: str) -> _Shown | str:
    """Return the GPU or MIG instance that an entry names, or why it names none."""
    if entry.startswith("MIG-"):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(entry)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return _Shown(index=nvml.nvmlDeviceGetIndex(parent), handle=handle, is_instance=True)
        except nvml.NVMLError:
            return "is no slice of a GPU here (`nvidia-smi -L` names them)"
    if entry.startswith("GPU-"):
        fitting = [one for one in every if nvml.nvmlDeviceGetUUID(one.handle).startswith(entry)]
        if len(fitting) == 1:
            return fitting[0]
        return f"fits {len(fitting) or 'no'} GPU(s) here (`nvidia-smi -L` names them)"
    number = re.match(r"\+?\d+", entry)
    if number is None:
        return "is neither a number nor a UUID of a GPU"
    if int(number[0]) >= len(every):
        return f"is no GPU here (they are 0 to {len(every) - 1})"
    return every[int(number[0])]


def _as_cuda_shows(nvml: Nvml, named: list[_Shown]) -> tuple[list[_Shown], Hidden | None]:
    """Return which of the named GPUs CUDA shows to one process: with MIG, only the first instance and no whole GPU.

    Source: NVIDIA's MIG user guide, CUDA device enumeration.
    """
    unsplit: list[_Shown] = []
    instances: list[_Shown] = []
    empty: list[int] = []
    for one in named:
        found = [one] if one.is_instance else _mig_instances(nvml, one)
        if found is None:
            unsplit.append(one)
        elif found:
            instances += found
        else:
            empty.append(one.index)
    if not instances:
        if not empty:
            return unsplit, None
        bare = ", ".join(map(str, empty))
        return unsplit, Hidden(text=f"GPU {bare} has MIG on but no slice, so CUDA does not show it")
    first = instances[0]
    if len(named) == len(instances) == 1 and first is named[0]:
        return [first], None
    uuid = nvml.nvmlDeviceGetUUID(first.handle)
    return [first], Hidden(
        text=f"MIG splits GPU {first.index}, and CUDA shows a process one slice and no other GPU: here {uuid}, the"
        f" first of {len(instances)}; CUDA_VISIBLE_DEVICES may name another (`nvidia-smi -L`), and NCCL joins no slices"
    )


def _mig_instances(nvml: Nvml, gpu: _Shown) -> list[_Shown] | None:
    """Return the MIG instances of a GPU; None if MIG is off or not supported."""
    try:
        if not nvml.nvmlDeviceGetMigMode(gpu.handle)[0]:
            return None
        found = find_instances(nvml, gpu.handle)
    except nvml.NVMLError:
        return None
    return [_Shown(index=gpu.index, handle=one.handle, is_instance=True) for one in found]


def _read_gpu(nvml: Nvml, gpu: _Shown, absent: dict[str, str]) -> Gpu:
    memory_bytes: int | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].memory_bytes"):  # Unknown if memory is shared with the CPU.
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(gpu.handle).total)
    power_limit_watts: float | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].power_limit_watts"):
        power_limit_watts = nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle) / 1000
    clock_limit_hertz: int | None = None
    with _noting(nvml, absent, f"gpus[{gpu.index}].clock_limit_hertz"):
        clock_limit_hertz = int(nvml.nvmlDeviceGetMaxClockInfo(gpu.handle, nvml.NVML_CLOCK_SM)) * 1_000_000
    return Gpu(
        index=gpu.index,
        name=nvml.nvmlDeviceGetName(gpu.handle),
        uuid=nvml.nvmlDeviceGetUUID(gpu.handle),
        memory_bytes=memory_bytes,
        power_limit_watts=power_limit_watts,
        clock_limit_hertz=clock_limit_hertz,
    )


def _link(nvml: Nvml, handle: Any, other: Any) -> LinkKind:
    with contextlib.suppress(nvml.NVMLError):  # A GPU without NVLink may refuse the question.
        status = nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "nvlink"
    level = nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
    if level not in _LEVELS:
        raise ImplausibleAnswer(f"topology level {level} is implausible: {', '.join(map(str, _LEVELS))}")
    return _LEVELS[level]
