"""The GPUs of this node and the MIG instances that split them: index, handle, UUID, PCI address.

All else that asks NVML about GPUs gets them from here, so that an index means the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pynvml import NVML_ERROR_NOT_FOUND

from collectors.nvml.library import Nvml, NVMLError, code_of, says_unsupported
from collectors.nvml.plausible import ImplausibleAnswer, lenient

NO_INSTANCE = 0xFFFFFFFF
"""The instance number in an event that belongs to no instance. Source: nvml.h, nvmlEventData_t."""
CPU_WORDS = 64
"""Words of 64 CPUs each that NVML may fill: 4096 CPUs, more than a node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """A GPU, or one compute instance of a GPU that MIG splits.

    index: NVML's index of the whole GPU, in PCI bus order; CUDA counts what it shows from 0 (`bench.machine.gpus`).
    instance: GPU instance and compute instance, as "1/0"; "" for a whole GPU. name: of an instance; None for a whole
    GPU, which may refuse it and is asked separately.
    """

    index: int
    handle: Any
    uuid: str
    instance: str = ""
    name: str | None = None


def gpus_of_node(nvml: Nvml) -> tuple[tuple[NvmlDevice, ...], dict[int, Exception]]:
    """Return the GPUs of the node that answer, in the order of their indices, and by index why NVML refuses others.

    NVML also counts GPUs whose device files a container or a scheduler's control group withholds, and refuses each of
    them as forbidden. CUDA shows no such GPU.

    Raises:
        NVMLError: NVML refuses to count them.
    """
    gpus: list[NvmlDevice] = []
    refused: dict[int, Exception] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(gpu_at(nvml, index))
        except NVMLError as error:
            refused[index] = error
    return tuple(gpus), refused


def gpu_at(nvml: Nvml, index: int) -> NvmlDevice:
    """Return the GPU with this index.

    Raises:
        NVMLError: there is none, or it is gone.
    """
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return NvmlDevice(index=index, handle=handle, uuid=nvml.nvmlDeviceGetUUID(handle))


def instances_of(nvml: Nvml, gpu: NvmlDevice) -> tuple[NvmlDevice, ...] | None:
    """Return the instances of a GPU that exist now; they come and go while the GPU stays. None if MIG is off.

    Raises:
        NVMLError: the GPU has no MIG, refuses, or is gone.
    """
    if not nvml.nvmlDeviceGetMigMode(gpu.handle)[0]:
        return None
    instances = []
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
        except NVMLError as error:
            if code_of(error) == NVML_ERROR_NOT_FOUND or says_unsupported(error):
                continue  # No instance has this place.
            raise
        instances.append(_instance(nvml, gpu.index, handle))
    return tuple(instances)


def instance_with(nvml: Nvml, uuid: str) -> NvmlDevice:
    """Return the instance with this UUID.

    Raises:
        NVMLError: there is none.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    gpu = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return _instance(nvml, nvml.nvmlDeviceGetIndex(gpu), handle)


def _instance(nvml: Nvml, index: int, handle: Any) -> NvmlDevice:
    return NvmlDevice(
        index=index,
        handle=handle,
        instance=label_of_ids(
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        ),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
    )


def near_cpus(nvml: Nvml, gpu: NvmlDevice) -> tuple[int, ...]:
    """Return the CPUs of the GPU's NUMA node, whether or not this process may use them; of an instance, its GPU's.

    Raises:
        NVMLError: the driver does not say, or names none.
    """
    handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu.handle) if gpu.instance else gpu.handle
    words = nvml.nvmlDeviceGetCpuAffinity(handle, CPU_WORDS)
    cpus = tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    if not cpus:
        raise ImplausibleAnswer("a GPU that is near no CPU is implausible")
    return cpus


def pci_address(nvml: Nvml, handle: Any) -> str:
    """Return the GPU's address on the PCI bus, as "00000000:1B:00.0"."""
    info = nvml.nvmlDeviceGetPciInfo_v3(handle)
    return str(lenient(lambda: info.busId))


def cuda_version(nvml: Nvml) -> str:
    """Return the newest CUDA version that the driver can run, as "13.1".

    Raises:
        NVMLError: the driver does not say.
    """
    number = nvml.nvmlSystemGetCudaDriverVersion()  # 12040 means 12.4.
    return f"{number // 1000}.{number % 1000 // 10}"


# MIG's numbers, as events and lists of processes have them.


def instance_of(number: int) -> int | None:
    """Return the instance with an event's number; None if there is none."""
    return None if number == NO_INSTANCE else number


def number_of(instance: int | None) -> int:
    """Return an event's number for an instance, the inverse of `instance_of`."""
    return NO_INSTANCE if instance is None else instance


def label_of_ids(gpu_instance: int, compute_instance: int) -> str:
    """Return the label of these ids, as in `NvmlDevice.instance`: "1" for a GPU instance alone, "" for a whole GPU."""
    ids = (instance_of(gpu_instance), instance_of(compute_instance))
    return "/".join(str(number) for number in ids if number is not None)
