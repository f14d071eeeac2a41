"""torch's collectives as calls without arguments, on buffers allocated beforehand.

A call returns when the current stream waits for the collective (NCCL), or when the collective is finished (gloo).
`gather_named` gathers tensors that only other ranks know, without sending Python objects: a pickle can run code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from workloads.cost_models.communication import IN_PLACE, ROOT, Counts
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


class _Heading(msgspec.Struct, frozen=True, array_like=True):
    """What a rank must know about a tensor to receive it."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["float64", "float32", "bfloat16", "float16"]


def gather_named(own: Mapping[str, Tensor], group: dist.ProcessGroup, device: torch.device) -> dict[str, Tensor]:
    """Return the named tensors of all ranks of the group, on `device`; all of them call it.

    own: this rank's floating-point tensors, on `device`. If ranks share a name, the last rank's tensor is returned.
    """
    headings = _gather_headings(
        [_Heading(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in own.items()],  # type: ignore[arg-type]
        group,
        device,
    )
    gathered: dict[str, Tensor] = {}
    for rank, of_rank in enumerate(headings):
        for heading in of_rank:
            if rank == group.rank():
                tensor = own[heading.name].detach().contiguous()
            else:
                tensor = torch.empty(heading.shape, dtype=getattr(torch, heading.dtype), device=device)
            dist.broadcast(tensor, group=group, group_src=rank)
            gathered[heading.name] = tensor
    return gathered


def _gather_headings(own: list[_Heading], group: dist.ProcessGroup, device: torch.device) -> list[list[_Heading]]:
    """Return each rank's headings: their lengths are gathered first, then the texts, padded to the longest."""
    text = torch.frombuffer(bytearray(msgspec.json.encode(own)), dtype=torch.uint8).to(device)
    lengths = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([text.numel()], device=device), group=group)
    longest = max(int(length) for length in lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(group.size())]
    dist.all_gather(texts, torch.nn.functional.pad(text, (0, longest - text.numel())), group=group)
    return [
        msgspec.json.decode(padded[: int(length)].cpu().numpy().tobytes(), type=list[_Heading])
        for padded, length in zip(texts, lengths, strict=True)
    ]
