"""Nodes of known hardware, for tests of what can run there."""

from __future__ import annotations

from dataclasses import replace

from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import Gpu, Gpus
from bench.session.case_args import NodeResources

CPU = NodeResources(cores=2, host_bytes=16 << 30, gpus=Gpus(), torch=TorchBuild(version="2.13.0"))
EIGHT_GPUS = replace(
    CPU,
    cores=96,
    host_bytes=1 << 40,
    gpus=Gpus(gpus=tuple(Gpu(index=i, name="H100", uuid=f"GPU-{i}", memory_bytes=80 << 30) for i in range(8))),
    torch=TorchBuild(version="2.13.0+cu130", cuda="13.0"),
)

GPU_BYTES = {"80 GB": 85_520_809_984, "141 GB": 150_754_820_096, "183 GB": 192_265_846_784}
"""What NVML says of the memory of an H100, an H200 and a B200."""
