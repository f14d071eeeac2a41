"""Versions of what a run stands on, and how long NVML's first start takes; prints them as JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from bench.machine.gpus import read_gpus
from tests.gpu.scripts.device import cudnn_version, device_of_words


def main() -> None:
    device_of_words()
    begun_s = time.perf_counter()
    gpus = read_gpus()
    nvml_s = time.perf_counter() - begun_s
    nccl: Any = torch.cuda.nccl
    found = {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, nccl.version())) if hasattr(torch._C, "_nccl_version") else None,
        "cudnn": cudnn_version(),
        "driver": gpus.driver_version,
        "gpus": [gpu.name for gpu in gpus.gpus],
        "nvml_s": nvml_s,
        "has_sched_file": Path("/proc/1/sched").exists(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
