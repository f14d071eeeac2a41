"""One rank of a network in a box that counts the bytes that leave and reach its node in each collective.

Started as `python -m tests.slow.ranks.collective_rank ORDER`, an `Order` as JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from tests.slow.ranks.boxed_ranks import Order, serve_rank
from tests.support.netbox import INTERFACE
from workloads.cost_models.terms import Collective

ELEMENTS = 12 * 25_000  # Divisible by 2, 3 and 4 ranks.
PAYLOAD_BYTES = 4 * ELEMENTS
SETTLING_S = 0.1  # The last acknowledgements are on their way when a collective returns.
REPEATS = 5


class Passed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that passed the node's interface."""

    sent_bytes: int
    received_bytes: int


def passed() -> Passed:
    """Since the node stands. The folder shows the links of the namespace that the process came in by."""
    statistics = Path(f"/sys/class/net/{INTERFACE}/statistics")
    return Passed(
        sent_bytes=int((statistics / "tx_bytes").read_text()),
        received_bytes=int((statistics / "rx_bytes").read_text()),
    )


def count_bytes(run: Callable[[], object]) -> list[Passed]:
    """Bytes that pass the interface during each of several calls, once connections stand."""
    run()
    return [_count_once(run) for _ in range(REPEATS)]


def _count_once(run: Callable[[], object]) -> Passed:
    dist.barrier()
    time.sleep(SETTLING_S)
    before = passed()
    run()
    dist.barrier()
    time.sleep(SETTLING_S)
    after = passed()
    return Passed(
        sent_bytes=after.sent_bytes - before.sent_bytes,
        received_bytes=after.received_bytes - before.received_bytes,
    )


def collectives(rank: int, ranks: int) -> dict[Collective, Callable[[], object]]:
    """Each of them on one tensor of the payload's size, as `wire_factor` reads it."""
    whole, other = torch.zeros(ELEMENTS), torch.zeros(ELEMENTS)
    part, parts = torch.zeros(ELEMENTS // ranks), list(other.chunk(ranks))
    roots = parts if rank == 0 else None

    def send() -> None:
        if rank == 0:
            dist.send(whole, 1)
        elif rank == 1:
            dist.recv(whole, 0)

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather(parts, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "gather": lambda: dist.gather(part, roots, 0),
        "scatter": lambda: dist.scatter(part, roots, 0),
        "all_to_all": lambda: dist.all_to_all_single(other, whole),
        "send": send,
    }


def main() -> None:
    """Count for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=Order)
    runs = collectives(order.rank, order.ranks)
    serve_rank(order, lambda: {name: count_bytes(run) for name, run in runs.items()})


if __name__ == "__main__":
    main()
