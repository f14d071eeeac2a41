"""The GPUs of this node and their MIG instances: index, handle, UUID, PCI address.

All other code that queries NVML gets its GPUs from here, so an index means the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pynvml import NVML_ERROR_NOT_FOUND

from collectors.nvml.library import Nvml, NVMLError, code_of, says_unsupported
from collectors.nvml.plausible import ImplausibleAnswer, lenient

NO_INSTANCE = 0xFFFFFFFF
"""Instance number of an event without an instance. Source: nvml.h, nvmlEventData_t."""
CPU_WORDS = 64
"""Words of 64 CPUs each that NVML may fill: 4096 CPUs, more than a node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlDevice:
    """A GPU, or a compute instance of a GPU that MIG splits.

    index: NVML's index of the whole GPU, in PCI bus order; CUDA numbers only visible devices (`bench.machine.gpus`).
    instance: GPU instance and compute instance, for example "1/0"; "" for a whole GPU. name: of an instance; None for a
    whole GPU, whose name is a separate question because the driver may refuse it.
    """

    index: int
    handle: Any
    uuid: str
    instance: str = ""
    name: str | None = None


def gpus_of_node(nvml: Nvml) -> tuple[tuple[NvmlDevice, ...], dict[int, Exception]]:
    """Return the node's GPUs that answer, by ascending index, and NVML's refusals of the others, by index.

    NVML also counts GPUs whose device files a container or a scheduler's control group withholds, and refuses access
    to them. CUDA does not show them.

    Raises:
        NVMLError: NVML refuses to count the GPUs.
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
        NVMLError: the GPU does not exist, or is gone.
    """
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return NvmlDevice(index=index, handle=handle, uuid=nvml.nvmlDeviceGetUUID(handle))


def instances_of(nvml: Nvml, gpu: NvmlDevice) -> tuple[NvmlDevice, ...] | None:
    """Return the current MIG instances of a GPU, which may change at any time; None if MIG is off.

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
                continue  # There is no instance at this place.
            raise
        instances.append(_instance(nvml, gpu.index, handle))
    return tuple(instances)


def instance_with(nvml: Nvml, uuid: str) -> NvmlDevice:
    """Return the instance with this UUID.

    Raises:
        NVMLError: the instance does not exist.
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
    """Return the CPUs of the NUMA node of the GPU (of an instance's GPU), whether or not this process may use them.

    Raises:
        NVMLError: the driver does not report them, or reports none.
    """
    handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu.handle) if gpu.instance else gpu.handle
    words = nvml.nvmlDeviceGetCpuAffinity(handle, CPU_WORDS)
    cpus = tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)
    if not cpus:
        raise ImplausibleAnswer("a GPU that is near no CPU is implausible")
    return cpus


def pci_address(nvml: Nvml, handle: Any) -> str:
    """Return the GPU's address on the PCI bus, for example "00000000:1B:00.0"."""
    info = nvml.nvmlDeviceGetPciInfo_v3(handle)
    return str(lenient(lambda: info.busId))


def cuda_version(nvml: Nvml) -> str:
    """Return the newest CUDA version that the driver supports, for example "13.1".

    Raises:
        NVMLError: the driver does not report it.
    """
    number = nvml.nvmlSystemGetCudaDriverVersion()  # 12040 means 12.4.
    return f"{number // 1000}.{number % 1000 // 10}"


# MIG's numbers in events and lists of processes.


def instance_of(number: int) -> int | None:
    """Return the instance that an event's number stands for; None if it stands for no instance."""
    return None if number == NO_INSTANCE else number


def number_of(instance: int | None) -> int:
    """Return an event's number for an instance, the inverse of `instance_of`."""
    return NO_INSTANCE if instance is None else instance


def label_of_ids(gpu_instance: int, compute_instance: int) -> str:
    """Return the label for these ids, see `NvmlDevice.instance`: "1" for a GPU instance alone, "" for a whole GPU."""
    ids = (instance_of(gpu_instance), instance_of(compute_instance))
    return "/".join(str(number) for number in ids if number is not None)
