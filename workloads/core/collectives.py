"""torch's collectives as calls without arguments, on buffers allocated beforehand.

A call returns when the current stream waits for the collective (NCCL), or when the collective is finished (gloo).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.cost_models.collective_sizes import IN_PLACE, ROOT, Counts
from workloads.cost_models.terms import Collective

# torch 2.13 deprecates the old names; torch 2.11 has no others.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """A rank's input `give` and output `take`; one tensor where the collective works in place.

    A tensor that only the root has is empty on all other ranks.
    """

    give: Tensor
    take: Tensor

    def first(self, counts: Counts) -> Buffers:
        """Return views of the first elements, as many as the counts say."""
        give = self.give[: counts.give]
        return Buffers(give=give, take=give if self.take is self.give else self.take[: counts.take])


def allocate(
    collective: Collective, counts: Counts, rank: int, *, dtype: torch.dtype, device: torch.device | str
) -> Buffers:
    """Allocate zeros for a call of these counts, large enough for every smaller call."""
    give = torch.zeros(0 if collective == "scatter" and rank != ROOT else counts.give, dtype=dtype, device=device)
    if collective in IN_PLACE:
        return Buffers(give=give, take=give)
    take = torch.zeros(0 if collective == "gather" and rank != ROOT else counts.take, dtype=dtype, device=device)
    return Buffers(give=give, take=take)


def make_call(collective: Collective, buffers: Buffers, group: dist.ProcessGroup) -> Callable[[], object]:
    """Return a call of the collective over all ranks of the group, which may be repeated. Reductions are sums."""
    give, take, ranks = buffers.give, buffers.take, group.size()
    match collective:
        case "all_reduce":
            return partial(dist.all_reduce, give, group=group)
        case "all_gather":
            return partial(all_gather, take, give, group=group)
        case "reduce_scatter":
            return partial(_reduce_scatter, take, give, group=group)
        case "broadcast":
            return partial(dist.broadcast, give, group=group, group_src=ROOT)
        case "reduce":
            return partial(dist.reduce, give, group=group, group_dst=ROOT)
        case "gather":
            shards = list(take.chunk(ranks)) if group.rank() == ROOT else None
            return partial(dist.gather, give, shards, group=group, group_dst=ROOT)
        case "scatter":
            shards = list(give.chunk(ranks)) if group.rank() == ROOT else None
            return partial(dist.scatter, take, shards, group=group, group_src=ROOT)
        case "all_to_all":
            return partial(dist.all_to_all_single, take, give, group=group)
        case "send":
            return exchange(give, take, group, to=(group.rank() + 1) % ranks, source=(group.rank() - 1) % ranks)


def exchange(give: Tensor, take: Tensor, group: dist.ProcessGroup, *, to: int, source: int) -> Callable[[], object]:
    """Return a call that sends to one rank of the group and receives from one, which may be the same."""
    # Receive first: otherwise gloo lets two ranks that send to each other take turns, at half the link's speed.
    receive = dist.P2POp(dist.irecv, take, group=group, group_peer=source)
    send = dist.P2POp(dist.isend, give, group=group, group_peer=to)
    return partial(_run, [receive, send])


def _run(messages: list[dist.P2POp]) -> None:
    for work in dist.batch_isend_irecv(messages):
        work.wait()
