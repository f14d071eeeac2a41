"""The parts of a GPU that MIG split: who they are, what memory they use, which processes they run.

NVML tells no utilization of an instance, and none of a GPU that is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pynvml import NVML_ERROR_NOT_FOUND, nvmlMemory_v2

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.library import Nvml, NVMLError, Standings, code_of, says_unsupported
from collectors.nvml.queries import GpuProcess, processes_on

NO_INSTANCE = 0xFFFFFFFF
"""In an event, of what no instance did. Source: nvml.h, nvmlEventData_t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One compute instance. label: GPU instance and compute instance, as "1/0"."""

    label: str
    handle: Any
    uuid: str
    name: str


def find_instances(nvml: Nvml, handle: Any) -> tuple[Instance, ...]:
    """The instances there are now; they come and go while the GPU stays. None where MIG is off.

    Raises:
        NVMLError: the GPU has no MIG, does not tell, or is gone.
    """
    if not nvml.nvmlDeviceGetMigMode(handle)[0]:
        return ()
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    return tuple(found for place in places if (found := _find(nvml, handle, place)) is not None)


def read_instance(
    nvml: Nvml, instance: Instance, standings: Standings, *, gpu: str
) -> tuple[list[Sample], tuple[GpuProcess, ...] | None]:
    """Samples and processes of one instance; processes are None where they are not told.

    Memory and processes are questions of their own: a process that is not root may be told the one and not the other.

    Raises:
        GpuLost: the GPU is gone.
    """
    labels = {"gpu": gpu, "slice": instance.label}
    samples = [gpu_metrics.GPU_INSTANCE.at(1, **labels, uuid=instance.uuid, name=instance.name)]
    memory = standings.ask(
        f"memory of slice {instance.label}",
        lambda: nvml.nvmlDeviceGetMemoryInfo(instance.handle, version=nvmlMemory_v2),
    )
    if memory is not None:
        samples += [
            gpu_metrics.GPU_INSTANCE_MEMORY_USED_BYTES.at(memory.total - memory.free - memory.reserved, **labels),
            gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.at(memory.total, **labels),
        ]
    processes = standings.ask(
        f"processes of slice {instance.label}",
        lambda: processes_on(nvml, instance.handle, gpu=gpu, uuid=instance.uuid, instance=instance.label),
    )
    if processes is not None:
        samples.append(gpu_metrics.GPU_INSTANCE_TASKS.at(len({process.pid for process in processes}), **labels))
    return samples, processes


def instance_of(number: int) -> int | None:
    """The instance that an event names by its number; None where it names none."""
    return None if number == NO_INSTANCE else number


def number_of(instance: int | None) -> int:
    """What `instance_of` reads."""
    return NO_INSTANCE if instance is None else instance


def label_of_ids(gpu_instance: int, compute_instance: int) -> str:
    """What `Instance.label` says of these numbers; of a GPU instance alone "1", and nothing of a whole GPU."""
    ids = (instance_of(gpu_instance), instance_of(compute_instance))
    return "/".join(str(number) for number in ids if number is not None)


def _find(nvml: Nvml, handle: Any, place: int) -> Instance | None:
    try:
        found = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    except NVMLError as error:
        if code_of(error) == NVML_ERROR_NOT_FOUND or says_unsupported(error):
            return None  # A place that no instance fills.
        raise
    gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(found)
    compute_instance = nvml.nvmlDeviceGetComputeInstanceId(found)
    return Instance(
        label=label_of_ids(gpu_instance, compute_instance),
        handle=found,
        uuid=nvml.nvmlDeviceGetUUID(found),
        name=nvml.nvmlDeviceGetName(found),
    )
