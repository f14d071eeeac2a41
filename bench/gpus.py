"""The GPUs that this process may use, as NVML tells of them; starts no CUDA."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal, Protocol

LinkKind = Literal["nvlink", "internal", "single", "multiple", "hostbridge", "node", "system"]
"""How two GPUs reach each other: by NVLink, or over the PCIe ancestor they share, in NVML's words.

internal: one board. single: one PCIe switch. multiple: several. hostbridge: one host bridge. node: several in one NUMA
node. system: the link between sockets.
"""


class Nvml(Protocol):
    """What is asked of the module `pynvml`, so that a recorded one can take its place."""

    NVMLError: type[Exception]
    NVML_P2P_CAPS_INDEX_NVLINK: int
    NVML_P2P_STATUS_OK: int

    def nvmlInit(self) -> None: ...  # noqa: N802  # NVML's own names.
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...  # noqa: N802
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetIndex(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetP2PStatus(self, first: Any, second: Any, index: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetTopologyCommonAncestor(self, first: Any, second: Any) -> int: ...  # noqa: N802


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of it. index: NVML's, in order of the PCI bus."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLink:
    """How two GPUs, by their NVML index, reach each other."""

    first: int
    second: int
    kind: LinkKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """All that NVML says. absent: what it did not say, and why."""

    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)


_LEVELS: dict[int, LinkKind] = {
    0: "internal",
    10: "single",
    20: "multiple",
    30: "hostbridge",
    40: "node",
    50: "system",
}


def read_gpus(nvml: Nvml | None = None, environment: Mapping[str, str] = os.environ) -> Gpus:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order, and their links.

    A machine without a driver is normal: then all is absent, with NVML's reason.
    Numbers in CUDA_VISIBLE_DEVICES are taken in order of the PCI bus; CUDA counts so where all GPUs are alike, or where
    CUDA_DEVICE_ORDER=PCI_BUS_ID. A GPU split by MIG is seen whole unless its instances are named.
    """
    nvml = nvml or _pynvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Gpus(absent=dict.fromkeys(("driver_version", "gpus", "links"), f"NVML: {error}"))
    absent: dict[str, str] = {}
    driver_version: str | None = None
    gpus: tuple[Gpu, ...] = ()
    links: tuple[GpuLink, ...] = ()
    try:
        with _noting(nvml, absent, "driver_version"):
            driver_version = nvml.nvmlSystemGetDriverVersion()
        with _noting(nvml, absent, "gpus"):
            visible = _visible(nvml, environment.get("CUDA_VISIBLE_DEVICES"))
            gpus = tuple(_read_gpu(nvml, index, handle, absent) for index, handle in visible)
            with _noting(nvml, absent, "links"):
                links = tuple(
                    GpuLink(first=first, second=second, kind=_link(nvml, handle, other))
                    for (first, handle), (second, other) in combinations(visible, 2)
                )
    finally:
        nvml.nvmlShutdown()
    return Gpus(driver_version=driver_version, gpus=gpus, links=links, absent=absent)


def _pynvml() -> Nvml:
    import pynvml  # Only here: who hands in another module needs none.

    module: Nvml = pynvml
    return module


@contextlib.contextmanager
def _noting(nvml: Nvml, absent: dict[str, str], name: str) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        absent[name] = f"NVML: {error}"


def _visible(nvml: Nvml, variable: str | None) -> list[tuple[int, Any]]:
    """Index and handle of each GPU that CUDA would show; like CUDA, an unknown entry hides all after it."""
    every = [(index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(nvml.nvmlDeviceGetCount())]
    if variable is None:
        return every
    visible: list[tuple[int, Any]] = []
    names: list[str] = []
    for entry in variable.split(","):
        found = _find(nvml, every, entry.strip())
        if found is None:
            break
        visible.append(found)
        names.append(nvml.nvmlDeviceGetUUID(found[1]))
    return visible if len(set(names)) == len(names) else []  # CUDA shows none when one is named twice.


def _find(nvml: Nvml, every: list[tuple[int, Any]], entry: str) -> tuple[int, Any] | None:
    if entry.startswith("MIG-"):
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(entry)
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            return nvml.nvmlDeviceGetIndex(parent), handle
        except nvml.NVMLError:
            return None
    if entry.startswith("GPU-"):
        fitting = [pair for pair in every if nvml.nvmlDeviceGetUUID(pair[1]).startswith(entry)]
        return fitting[0] if len(fitting) == 1 else None
    number = re.match(r"\+?\d+", entry)
    return every[int(number[0])] if number and int(number[0]) < len(every) else None


def _read_gpu(nvml: Nvml, index: int, handle: Any, absent: dict[str, str]) -> Gpu:
    memory_bytes: int | None = None
    with _noting(nvml, absent, f"gpus[{index}].memory_bytes"):  # Where memory is shared with the CPU.
        memory_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=memory_bytes,
    )


def _link(nvml: Nvml, handle: Any, other: Any) -> LinkKind:
    with contextlib.suppress(nvml.NVMLError):  # A GPU that knows no NVLink may refuse the question.
        status = nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if status == nvml.NVML_P2P_STATUS_OK:
            return "nvlink"
    return _LEVELS[nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)]
