"""MIG instances of a GPU: their identity, memory and processes.

NVML reports no utilization of an instance, and none of a GPU that is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pynvml import NVML_ERROR_NOT_FOUND, nvmlMemory_v2

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics.metric import Sample
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError, code_of, says_unsupported
from collectors.nvml.queries import GpuProcess, processes_on

NO_INSTANCE = 0xFFFFFFFF
"""The instance number in an event that belongs to no instance. Source: nvml.h, nvmlEventData_t."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One compute instance. label: GPU instance and compute instance, as "1/0"."""

    label: str
    handle: Any
    uuid: str
    name: str


def find_instances(nvml: Nvml, handle: Any) -> tuple[Instance, ...]:
    """Return the instances that exist now; they come and go while the GPU stays. Empty where MIG is off.

    Raises:
        NVMLError: the GPU has no MIG, refuses, or is gone.
    """
    if not nvml.nvmlDeviceGetMigMode(handle)[0]:
        return ()
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    return tuple(instance for place in places if (instance := _find(nvml, handle, place)) is not None)


def read_instance(
    nvml: Nvml, instance: Instance, support: FieldSupportTable, *, gpu: str
) -> tuple[list[Sample], tuple[GpuProcess, ...] | None]:
    """Return the samples and processes of one instance; processes are None where the driver refuses to list them.

    Memory and processes are separate questions: a process that is not root may get one and not the other.

    Raises:
        GpuLost: the GPU is gone.
    """
    labels = {"gpu": gpu, "slice": instance.label}
    samples = [gpu_metrics.GPU_INSTANCE.at(1, **labels, uuid=instance.uuid, name=instance.name)]
    memory = support.ask(
        f"memory of slice {instance.label}",
        lambda: nvml.nvmlDeviceGetMemoryInfo(instance.handle, version=nvmlMemory_v2),
    )
    if memory is not None:
        samples += [
            gpu_metrics.GPU_INSTANCE_MEMORY_USED_BYTES.at(memory.total - memory.free - memory.reserved, **labels),
            gpu_metrics.GPU_INSTANCE_MEMORY_BYTES.at(memory.total, **labels),
        ]
    processes = support.ask(
        f"processes of slice {instance.label}",
        lambda: processes_on(nvml, instance.handle, gpu=gpu, uuid=instance.uuid, instance=instance.label),
    )
    if processes is not None:
        samples.append(gpu_metrics.GPU_INSTANCE_TASKS.at(len({process.pid for process in processes}), **labels))
    return samples, processes


def instance_of(number: int) -> int | None:
    """Return the instance with an event's number; None if there is none."""
    return None if number == NO_INSTANCE else number


def number_of(instance: int | None) -> int:
    """Return an event's number for an instance, the inverse of `instance_of`."""
    return NO_INSTANCE if instance is None else instance


def label_of_ids(gpu_instance: int, compute_instance: int) -> str:
    """Return the label of these ids, as in `Instance.label`: "1" for a GPU instance alone, "" for a whole GPU."""
    ids = (instance_of(gpu_instance), instance_of(compute_instance))
    return "/".join(str(number) for number in ids if number is not None)


def _find(nvml: Nvml, handle: Any, place: int) -> Instance | None:
    try:
        instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
    except NVMLError as error:
        if code_of(error) == NVML_ERROR_NOT_FOUND or says_unsupported(error):
            return None  # No instance has this place.
        raise
    gpu_instance = nvml.nvmlDeviceGetGpuInstanceId(instance)
    compute_instance = nvml.nvmlDeviceGetComputeInstanceId(instance)
    return Instance(
        label=label_of_ids(gpu_instance, compute_instance),
        handle=instance,
        uuid=nvml.nvmlDeviceGetUUID(instance),
        name=nvml.nvmlDeviceGetName(instance),
    )
