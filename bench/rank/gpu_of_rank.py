"""Decides which GPU a rank takes of those that its process sees, and the cores that the rank is bound to.

CUDA and NVML number GPUs differently. CUDA numbers the GPUs that it shows to a process from 0: if a scheduler gave a
task the node's GPU 3, the task sees it as 0. NVML counts all GPUs of the node. A rank takes its GPU by CUDA's number,
and finds NVML's data about this GPU by the UUID.

A rank is bound to the CPUs of its GPU's NUMA node, as far as this process may use them, before it starts CUDA or a
thread. Memory needs no policy of its own: Linux places a page on the NUMA node of the thread that first writes it,
which is then the GPU's, or on another node if that one is full.
Not covered: the threads of a library that the user binds, for example by OMP_PROC_BIND. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.case import Case
from bench.machine.cpu_list import parse, written
from bench.machine.gpus import Gpu

CUDA_ORDER = "CUDA_DEVICE_ORDER"
"""Variable that determines CUDA's order of GPUs: by speed, or as in NVML. They differ if a node's GPUs differ."""


def cuda_number(local_rank: int, count: int) -> int:
    """Return CUDA's number of a rank's GPU. count: how many GPUs CUDA shows to the rank's process.

    A rank that sees all GPUs of its node takes the GPU with its own local number. A rank that sees fewer, for example
    only its own GPU, takes one of those.
    """
    return local_rank % count


class RankGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's GPU or MIG instance, as NVML describes it.

    uuid: with NVML's "GPU-" or "MIG-". near_cpus: see `Gpu`. reason: why near_cpus is unknown.
    """

    uuid: str
    near_cpus: str | None = None
    reason: str | None = None

    @property
    def cuda_uuid(self) -> str:
        """The UUID as CUDA writes it, without "GPU-" or "MIG-"."""
        return self.uuid.partition("-")[2]

    @property
    def is_instance(self) -> bool:
        """Whether it is an instance of a GPU that MIG splits."""
        return self.uuid.startswith("MIG-")


def gpu_of_rank(case: Case, local_rank: int, gpus: Sequence[Gpu], absent: Mapping[str, str]) -> RankGpu | None:
    """Return the GPU of a rank; None on a CPU, and if NVML shows none.

    gpus: those that CUDA shows to the rank's process, in its order. absent: what NVML does not report, and why.
    """
    if case.device == "cpu" or not gpus:
        return None
    gpu = gpus[cuda_number(local_rank, len(gpus))]
    return RankGpu(uuid=gpu.uuid, near_cpus=gpu.near_cpus, reason=absent.get(f"gpus[{gpu.index}].near_cpus"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The CPUs that a rank is bound to, for example "0-31".

    unbound: the CPUs that it had before. reason: why it is not bound, although its case asks for it.
    """

    cpus: str | None = None
    unbound: Set[int] = frozenset()
    reason: str | None = None


def prepare(case: Case, gpu: RankGpu | None) -> Binding:
    """Prepare this process for the rank's GPU: order CUDA's numbers as NVML's, and bind all threads to its cores.

    Call it before the process starts CUDA, and before it starts threads of its own. If the process cannot be bound, it
    stays as it was.
    """
    if case.device == "cpu":
        return Binding()
    os.environ.setdefault(CUDA_ORDER, "PCI_BUS_ID")
    if not case.bind:
        return Binding()
    if gpu is None:
        return Binding(reason=_unbound("NVML shows no GPU to this process"))
    if gpu.near_cpus is None:
        return Binding(reason=_unbound(gpu.reason or "NVML does not name them"))
    usable = os.sched_getaffinity(0)
    cpus = parse(gpu.near_cpus) & usable
    if not cpus:
        near, own = gpu.near_cpus, written(usable)
        return Binding(reason=_unbound(f"they are {near}, and this process may use {own} only"))
    try:
        _set_affinity(cpus)
    except OSError as error:
        return Binding(reason=_unbound(f"the kernel refuses: {error.strerror}"))
    return Binding(cpus=written(os.sched_getaffinity(0)), unbound=usable)


def confirmed(binding: Binding, gpu: RankGpu | None, cuda_uuid: str | None) -> Binding:
    """Return the binding, or undo it if CUDA computes on a GPU other than the one that NVML has for the rank.

    cuda_uuid: the UUID of the GPU that CUDA took; None if CUDA does not start.
    """
    if binding.cpus is None or gpu is None or gpu.is_instance or cuda_uuid in (None, gpu.cuda_uuid):
        return binding
    _set_affinity(binding.unbound)
    order = os.environ.get(CUDA_ORDER)
    return Binding(
        reason=_unbound(
            f"CUDA computes on GPU-{cuda_uuid} where NVML has {gpu.uuid} ({CUDA_ORDER} is {order}; PCI_BUS_ID is"
            " NVML's order)"
        )
    )


def _unbound(reason: str) -> str:
    return f"a rank is not bound to the cores of its GPU: {reason}"


def _set_affinity(cpus: Set[int]) -> None:
    """Let every thread of this process, and all that they start later, run on these CPUs only.

    Raises:
        OSError: the kernel refuses.
    """
    os.sched_setaffinity(0, cpus)
    # Each thread has an affinity of its own. A library may have started some when it was imported.
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cpus)
