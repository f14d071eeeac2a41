"""Commits an injected fault in the rank that it names."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from bench.rank.fault_injection import Fault
from workloads.spec import Device

SPARE_BYTES = 1 << 30
"""How much a rank on a CPU may still allocate when its memory is to run out: the node keeps the rest."""


def commit_at(fault: Fault | None, *, rank: int, step: int, device: Device) -> None:
    """Commit the fault in this process, if it is due in this rank at this step."""
    if fault is None or (fault.rank, fault.step) != (rank, step):
        return
    match fault.kind:
        case "raise":
            raise RuntimeError("an injected fault")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "wait":
            dist.recv(torch.empty(1, device=device), src=(dist.get_rank() + 1) % dist.get_world_size(), tag=7)
            if device == "cuda":  # The receive itself does not block the host.
                torch.cuda.synchronize()
        case "memory":  # Allocate until torch raises RuntimeError, on CUDA its torch.OutOfMemoryError.
            if device == "cpu":  # A limit makes that happen soon, so the kernel kills no other process.
                used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used_bytes + SPARE_BYTES, resource.RLIM_INFINITY))
            allocations = []
            while True:
                allocations.append(torch.empty(SPARE_BYTES // 4, dtype=torch.uint8, device=device))
        case "hang":
            while True:
                time.sleep(3600)
        case "exit":
            sys.exit(7)
        case "leave":
            os._exit(0)
