"""Ranks in a network in a box: how a test starts them, and how they meet and leave."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import msgspec
import torch
import torch.distributed as dist

from tests.support.netbox import INTERFACE, NetBox

ROOT = Path(__file__).parents[3]
PORT = 29500
PEERS_LIMIT_S = 60
LIMIT_S = 200.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What every rank is told. store_address: of node 0; answer: the file that the rank writes its answer into."""

    rank: int
    ranks: int
    store_address: str
    answer: str


def run_ranks(
    box: NetBox,
    module: str,
    folder: Path,
    make_order: Callable[[Order], Order],
    *,
    ranks_per_node: int = 1,
    limit_s: float = LIMIT_S,
) -> list[bytes]:
    """Run the module on each node of the box, and bring home each rank's answer.

    make_order: adds to the order what the module wants besides.
    limit_s: for each rank, once those before it are done.

    Raises:
        RuntimeError: a rank failed; with the last lines of what it wrote.
        subprocess.TimeoutExpired: a rank is not done at the limit.
    """
    ranks = ranks_per_node * len(box.nodes)
    orders = [
        make_order(
            Order(
                rank=rank,
                ranks=ranks,
                store_address=box.nodes[0].address,
                answer=str(folder / f"rank{rank}.json"),
            )
        )
        for rank in range(ranks)
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE}
    processes = []
    for order in orders:
        command = [sys.executable, "-m", module, msgspec.json.encode(order).decode()]
        with log_of(order).open("wb") as log:
            node = order.rank // ranks_per_node
            processes.append(box.run_in(node, command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT))
    _wait(orders, processes, limit_s)
    return [Path(order.answer).read_bytes() for order in orders]


def log_of(order: Order) -> Path:
    """Where the rank's standard streams go."""
    return Path(order.answer).with_suffix(".log")


def serve_rank(order: Order, measure: Callable[[], object]) -> NoReturn:
    """Meet the other ranks on gloo, measure, answer in JSON, and leave.

    Without the interpreter's farewell, in which a process group that lives may abort.
    """
    torch.set_num_threads(1)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        order.store_address, PORT, order.ranks, is_master=order.rank == 0
    )
    limit = timedelta(seconds=PEERS_LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=order.rank, world_size=order.ranks, timeout=limit)
    Path(order.answer).write_bytes(msgspec.json.encode(measure()))
    dist.barrier()  # The store lives in rank 0.
    os._exit(0)


def _wait(orders: Sequence[Order], processes: Sequence[subprocess.Popen[bytes]], limit_s: float) -> None:
    codes = [process.wait(timeout=limit_s) for process in processes]
    failed = [
        f"rank {order.rank} ended with code {code}: {log_of(order).read_text()[-3000:]}"
        for order, code in zip(orders, codes, strict=True)
        if code
    ]
    if failed:
        raise RuntimeError("\n".join(failed))
