"""How far a GPU has joined the fabric of its NVLink switches."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from collectors.catalogue import gpu_identity
from collectors.metric import Sample
from collectors.nvml.library import Nvml

_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
"""Source: nvml.h, nvmlGpuFabricState_t; 0 is a GPU without a fabric."""


def fabric(nvml: Nvml, handle: Any, gpu: str) -> list[Sample]:
    """The GPU's state and clique; nothing where it has no fabric.

    The second version of NVML's structure, which drivers have known since 535.
    """
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    state = _STATES.get(info.state)
    if state is None:
        return []
    return [gpu_identity.GPU_FABRIC.at(1, gpu=gpu, state=state, clique=str(info.cliqueId))]
