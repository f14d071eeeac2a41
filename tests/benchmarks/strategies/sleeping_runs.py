"""One rank of many runs in a row, on a machine whose matrix products sleep: it takes the time, not the core.

Started as `python -m tests.benchmarks.strategies.sleeping_runs ORDER RANK` inside a node of a box. Each run is the
product's own, `bench.session.torchrun` in a fork of this process, which has loaded torch. Blocks of a model sleep as
long as their products would take, and the probe `matmul` finds the rate of such products.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.profiler import record_function

from bench.rank.worker import leave
from bench.session import torchrun
from collectors.rank import profiler
from tests.slow.ranks.priority import go_first
from tests.slow.ranks.sleeping_rank import Sleep
from workloads.core.transformer import Block


class SleepingRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run. case: its file. forward_s, backward_s: sleeps of a block for one microbatch; 0 for a probe."""

    case: str
    folder: str
    ranks: int
    port: int
    forward_s: float
    backward_s: float


class SleepingOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told. address: of node 0. products: FLOP/s of a rank's products. limit_s: of a run's wait."""

    address: str
    interface: str
    ranks_per_node: int
    products: float
    limit_s: float
    runs: list[SleepingRun]


def sleepy_product(
    multiply: Callable[..., Tensor],
    flops_per_second: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[..., Tensor]:
    """Return the product, which then sleeps until its time is over."""

    def multiply_slowly(a_mk: Tensor, b_kn: Tensor, *, out: Tensor) -> Tensor:
        until_s = clock() + 2.0 * a_mk.shape[0] * b_kn.numel() / flops_per_second
        product_mn = multiply(a_mk, b_kn, out=out)
        sleep(max(0.0, until_s - clock()))
        return product_mn

    return multiply_slowly


def put_blocks_to_sleep(forward_s: float, backward_s: float) -> None:
    """Have each block of any model sleep after its forward, and before its backward."""

    def then_sleep(part: nn.Module, inputs: object, out: Tensor) -> Any:
        if not isinstance(part, Block):
            return None
        with record_function("aten::sleep"):
            time.sleep(forward_s)
        return Sleep.apply(out, backward_s)  # type: ignore[no-untyped-call]

    register_module_forward_hook(then_sleep)


def measure(order: SleepingOrder, run: SleepingRun, rank: int) -> NoReturn:
    """Be this rank of the run."""
    local_ranks = min(order.ranks_per_node, run.ranks)
    variables = {
        "WORLD_SIZE": run.ranks,
        "RANK": rank,
        "LOCAL_RANK": rank % local_ranks,
        "LOCAL_WORLD_SIZE": local_ranks,
        "MASTER_ADDR": order.address,
        "MASTER_PORT": run.port,
        "GLOO_SOCKET_IFNAME": order.interface,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    if run.forward_s:
        put_blocks_to_sleep(run.forward_s, run.backward_s)
    else:
        torch.mm = sleepy_product(torch.mm, order.products)  # The only one that probes call.
    leave(torchrun.main([run.case, "--folder", run.folder, "--limit", str(order.limit_s)]))


def main() -> int:
    """Take part in each run that has this rank; return how many runs failed here."""
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=SleepingOrder)
    rank = int(sys.argv[2])
    torch.set_num_threads(1)
    if profiler.may_start_before_fork():
        profiler.warm(torch.device("cpu"))
    go_first()
    failed = 0
    for run in order.runs:
        if rank >= run.ranks:
            continue
        process = os.fork()
        if process == 0:
            measure(order, run, rank)
        _, status = os.waitpid(process, 0)
        failed += status != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
