"""Who a GPU is and how it is set up, as the labels of one series."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

from collectors.catalogue.gpu_identity import GPU_INFO
from collectors.metric import Sample
from collectors.nvml.library import Nvml, NVMLError, says_lost

UNKNOWN = "unknown"
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""Source: nvml.h, nvmlNvlinkVersion_t."""


def identify(nvml: Nvml, handle: Any, *, gpu: str, driver: str, cuda: str) -> Sample:
    """The GPU's info series. What NVML does not tell is unknown.

    Raises:
        NVMLError: the GPU is gone, or has no name.
    """
    return GPU_INFO.at(
        1,
        gpu=gpu,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        driver=driver,
        cuda=cuda,
        serial=_told(lambda: nvml.nvmlDeviceGetSerial(handle)),
        pci_address=_told(lambda: _text(nvml.nvmlDeviceGetPciInfo_v3(handle).busId)),
        pcie=_told(lambda: _most_pcie(nvml, handle)),
        vbios=_told(lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
        persistence=_told(lambda: _switch(nvml.nvmlDeviceGetPersistenceMode(handle))),
        mig=_told(lambda: _switch(nvml.nvmlDeviceGetMigMode(handle)[0])),
        numa=_told(lambda: str(nvml.nvmlDeviceGetNumaNodeId(handle))),
        nvlink=_told(lambda: _nvlink(nvml, handle)),
    )


def cuda_version(nvml: Nvml) -> str:
    """The newest CUDA that the driver can run, as "13.1"."""

    def told() -> str:
        number = nvml.nvmlSystemGetCudaDriverVersion()
        return f"{number // 1000}.{number % 1000 // 10}"

    return _told(told)


def nvlinks(nvml: Nvml, handle: Any) -> list[bool]:
    """Of each NVLink that the GPU has, whether it is up; empty where it has none.

    Raises:
        NVMLError: the GPU is gone.
    """
    states: list[bool] = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(bool(nvml.nvmlDeviceGetNvLinkState(handle, link)))
        except NVMLError as error:
            if says_lost(error):
                raise
            break  # There are no more.
    return states


def _told(ask: Callable[[], str]) -> str:
    try:
        return ask() or UNKNOWN
    except NVMLError as error:
        if says_lost(error):
            raise
        return UNKNOWN


def _most_pcie(nvml: Nvml, handle: Any) -> str:
    return f"{nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)} x{nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)}"


def _nvlink(nvml: Nvml, handle: Any) -> str:
    states = nvlinks(nvml, handle)
    if not any(states):
        return "none"
    version = _NVLINK_VERSIONS.get(nvml.nvmlDeviceGetNvLinkVersion(handle, states.index(True)), UNKNOWN)
    return f"{version} x{sum(states)}"


def _switch(state: int) -> str:
    return "on" if state else "off"


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
