"""The parts of a GPU that MIG split: who they are, what memory they use, which processes they run.

NVML tells no utilization of an instance, and none of a GPU that is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pynvml import nvmlMemory_v2

from collectors.catalogue import gpu as use
from collectors.catalogue import gpu_identity as identity
from collectors.metric import Sample
from collectors.nvml.library import Nvml, NVMLError, says_lost
from collectors.nvml.processes import GpuProcess, processes_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One compute instance. label: GPU instance and compute instance, as "1/0"."""

    label: str
    handle: Any
    uuid: str
    name: str


def find_instances(nvml: Nvml, handle: Any) -> tuple[Instance, ...]:
    """The instances there are now; they come and go while the GPU stays. None where MIG is off or unknown.

    Raises:
        NVMLError: the GPU is gone.
    """
    try:
        if not nvml.nvmlDeviceGetMigMode(handle)[0]:
            return ()
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except NVMLError as error:
        _unless_lost(error)
        return ()
    return tuple(found for place in places if (found := _find(nvml, handle, place)) is not None)


def read_instance(nvml: Nvml, instance: Instance, *, gpu: str) -> tuple[list[Sample], tuple[GpuProcess, ...]]:
    """Samples and processes of one instance; nothing where it is gone.

    Raises:
        NVMLError: the GPU is gone.
    """
    labels = {"gpu": gpu, "instance": instance.label}
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(instance.handle, version=nvmlMemory_v2)
        processes = processes_on(nvml, instance.handle, gpu=gpu, uuid=instance.uuid, instance=instance.label)
    except NVMLError as error:
        _unless_lost(error)
        return [], ()
    return [
        identity.GPU_INSTANCE.at(1, **labels, uuid=instance.uuid, name=instance.name),
        use.GPU_INSTANCE_MEMORY_USED_BYTES.at(memory.total - memory.free - memory.reserved, **labels),
        use.GPU_INSTANCE_MEMORY_BYTES.at(memory.total, **labels),
        use.GPU_INSTANCE_TASKS.at(len({process.pid for process in processes}), **labels),
    ], processes


def _find(nvml: Nvml, handle: Any, place: int) -> Instance | None:
    try:
        found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(found)
        compute_instance = nvml.nvmlDeviceGetComputeInstanceId(found)
        return Instance(
            label=f"{gpu_instance}/{compute_instance}",
            handle=found,
            uuid=nvml.nvmlDeviceGetUUID(found),
            name=nvml.nvmlDeviceGetName(found),
        )
    except NVMLError as error:
        _unless_lost(error)
        return None  # A place that no instance fills.


def _unless_lost(error: Exception) -> None:
    if says_lost(error):
        raise error
