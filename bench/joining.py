"""How a rank finds its device, and the others."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # Public, but in no __all__.

from bench.engines.messages import RankOrder


def take_device(order: RankOrder) -> torch.device:
    """The device of the rank, made the current one."""
    torch.set_num_threads(order.case.threads)
    if order.case.device == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", order.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def gpu_uuid(order: RankOrder) -> str | None:
    """The GPU that the rank will take, as CUDA names it; None without one, and where CUDA fails, as it will again."""
    if order.case.device == "cpu":
        return None
    with suppress(RuntimeError, AssertionError):
        return str(torch.cuda.get_device_properties(order.local_rank % torch.cuda.device_count()).uuid)
    return None


def join(order: RankOrder, device: torch.device) -> None:
    """Meet the other ranks in the supervisor's store."""
    timeout = timedelta(seconds=order.collective_timeout_s)
    store = TCPStore(order.store_host, order.store_port, is_master=False, timeout=timeout)
    dist.init_process_group(
        order.case.backend,
        store=PrefixStore(order.prefix, store),
        rank=order.rank,
        world_size=order.case.ranks,
        timeout=timeout,
        device_id=device if order.case.backend == "nccl" else None,
    )


def wait_for_all(device: torch.device) -> None:
    """Begin a window together, so that the first of its steps does not wait for a late rank."""
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
