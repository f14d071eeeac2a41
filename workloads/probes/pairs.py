"""Probe `pairs`: the bandwidth of each pair of neighbours on a ring, many pairs at a time and no rank in two at once.

Each pair sends both ways at the same time. A slow link shows in one pair, a slow node in both of its pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.core.collectives import exchange
from workloads.core.mesh import DTYPES
from workloads.probes.spec import pair_bytes, rounds
from workloads.protocols import ProbeSetup, Record, Stopwatch
from workloads.spec import ELEMENT_BYTES

_VALUES = 251
"""The values sent repeat after so many, a prime, so that a block that was put elsewhere shows."""


def probe_pairs(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time an exchange of each pair, check what came, and record it on both of its ranks.

    Raises:
        RuntimeError: what came is not what the peer sent.
    """
    group = mesh.get_group("data")
    rank, size = group.rank(), pair_bytes(setup)
    give = _sent_by(rank, size // ELEMENT_BYTES[setup.precision], setup)
    take = torch.full_like(give, -1)
    for pairs in rounds(setup.ranks, int(setup.options["stride"])):
        pair = next((pair for pair in pairs if rank in pair), None)
        call: Callable[[], object] = _nothing
        if pair is not None:
            peer = sum(pair) - rank
            call = exchange(give, take, group, to=peer, source=peer)
        elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
        if pair is None:
            continue
        if not torch.equal(take, _sent_by(peer, len(give), setup)):
            raise RuntimeError(
                f"rank {rank} did not get what rank {peer} sent in {size} bytes;"
                " trust no result of these two before the cause is found"
            )
        take.fill_(-1)
        record({"pair_s": elapsed}, pair=f"{pair[0]}-{pair[1]}", size=str(size))


def _sent_by(rank: int, elements: int, setup: ProbeSetup) -> Tensor:
    """Return what a rank sends: whole numbers that every precision holds."""
    numbers = torch.arange(elements, device=setup.device).add_(rank).remainder_(_VALUES)
    return numbers.to(DTYPES[setup.precision])


def _nothing() -> None:
    """A rank without a peer in this round waits."""
