"""Who a GPU is and how it is set up, as the labels of one series."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pynvml

from collectors.catalogue.gpu_identity import GPU_INFO
from collectors.metric import Sample
from collectors.nvml.library import Nvml, NVMLError, says_unsupported
from collectors.nvml.standing import Standings

UNKNOWN = "unknown"
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""Source: nvml.h, nvmlNvlinkVersion_t."""


class Identity:
    """What a GPU tells of itself, each fact a question of its own; what it does not tell is unknown.

    A fact that cannot change is asked for until it is told. One that can keeps what was told last where it is refused
    for a moment, so that the series does not become another.
    """

    def __init__(
        self, nvml: Nvml, handle: Any, standings: Standings, *, gpu: str, uuid: str, driver: str, cuda: str
    ) -> None:
        self._nvml, self._handle = nvml, handle
        self._standings = standings
        self._labels = {"gpu": gpu, "uuid": uuid, "driver": driver, "cuda": cuda}
        self._labels |= {fact.label: UNKNOWN for fact in _FACTS}

    def read(self) -> Sample:
        """The GPU's info series.

        Raises:
            GpuLost: the GPU is gone.
        """
        for fact in _FACTS:
            if fact.can_change or self._labels[fact.label] == UNKNOWN:
                told = self._standings.ask(fact.question, partial(fact.read, self._nvml, self._handle))
                self._labels[fact.label] = told or self._labels[fact.label]
        return GPU_INFO.at(1, **self._labels)


def cuda_version(nvml: Nvml) -> str:
    """The newest CUDA that the driver can run, as "13.1"."""
    try:
        number = nvml.nvmlSystemGetCudaDriverVersion()
    except NVMLError:
        return UNKNOWN
    return f"{number // 1000}.{number % 1000 // 10}"


def nvlinks(nvml: Nvml, handle: Any) -> list[bool]:
    """Of each NVLink that the GPU has, whether it is up; empty where it has none.

    Raises:
        NVMLError: the GPU is gone, or does not tell.
    """
    states: list[bool] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except NVMLError as error:
            if not says_unsupported(error):
                raise
            break  # There are no more.
    return states


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fact:
    """One label of the series. question: what a driver that has no answer lacks."""

    label: str
    question: str
    read: Callable[[Nvml, Any], str]
    can_change: bool = False


def _name(nvml: Nvml, handle: Any) -> str:
    return nvml.nvmlDeviceGetName(handle)


def _serial(nvml: Nvml, handle: Any) -> str:
    return nvml.nvmlDeviceGetSerial(handle)


def _pci_address(nvml: Nvml, handle: Any) -> str:
    address = nvml.nvmlDeviceGetPciInfo_v3(handle).busId
    return address.decode() if isinstance(address, bytes) else str(address)


def _most_pcie(nvml: Nvml, handle: Any) -> str:
    return f"{nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"


def _vbios(nvml: Nvml, handle: Any) -> str:
    return nvml.nvmlDeviceGetVbiosVersion(handle)


def _numa(nvml: Nvml, handle: Any) -> str:
    return str(nvml.nvmlDeviceGetNumaNodeId(handle))


def _persistence(nvml: Nvml, handle: Any) -> str:
    return _switch(nvml.nvmlDeviceGetPersistenceMode(handle))


def _mig(nvml: Nvml, handle: Any) -> str:
    return _switch(nvml.nvmlDeviceGetMigMode(handle)[0])


def _nvlink(nvml: Nvml, handle: Any) -> str:
    states = nvlinks(nvml, handle)
    if not any(states):
        return "none"
    version = _NVLINK_VERSIONS.get(nvml.nvmlDeviceGetNvLinkVersion(handle, states.index(True)), UNKNOWN)
    return f"{version} x{sum(states)}"


def _switch(state: int) -> str:
    return "on" if state else "off"


_FACTS = (
    _Fact(label="name", question="name", read=_name),
    _Fact(label="serial", question="serial number", read=_serial),
    _Fact(label="pci_address", question="PCI address", read=_pci_address),
    _Fact(label="pcie", question="PCIe capability", read=_most_pcie),
    _Fact(label="vbios", question="VBIOS version", read=_vbios),
    _Fact(label="numa", question="NUMA node", read=_numa),
    _Fact(label="persistence", question="persistence mode", read=_persistence, can_change=True),
    _Fact(label="mig", question="MIG mode", read=_mig, can_change=True),
    _Fact(label="nvlink", question="NVLink states", read=_nvlink, can_change=True),
)
