"""The plainest zigzag ring attention on gloo, in the reference model: what `ring_attention` is measured against."""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape

attention_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def pass_on(tensor: Tensor) -> tuple[list[dist.Work], Tensor]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    operations = [
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        dist.P2POp(dist.isend, tensor, (rank + 1) % ranks),
    ]
    return dist.batch_isend_irecv(operations), received


def wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def parts_of(source: int, length: int) -> tuple[slice, slice, bool]:
    rank, half, everything = dist.get_rank(), length // 2, slice(None)
    if source == rank:
        return everything, everything, True
    return (everything, slice(0, half), False) if source < rank else (slice(half, length), everything, False)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        own = kv = torch.stack((k, v))
        out: Tensor
        for step in range(ranks):
            if step + 1 < ranks:
                works, following = pass_on(kv)
            queries, keys, is_causal = parts_of((rank - step) % ranks, q.shape[2])
            part, part_lse = attention_forward(
                q[:, :, queries], kv[0][:, :, keys], kv[1][:, :, keys], is_causal=is_causal
            )
            if step == 0:
                out, lse = part, part_lse
            else:
                both = torch.logaddexp(lse[:, :, queries], part_lse)
                out[:, :, queries] *= torch.exp(lse[:, :, queries] - both).unsqueeze(-1)
                out[:, :, queries] += torch.exp(part_lse - both).unsqueeze(-1) * part
                lse[:, :, queries] = both
            if step + 1 < ranks:
                wait(works)
                kv = following
        ctx.save_for_backward(q, own, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        q, kv, out, lse = ctx.saved_tensors
        d_q, d_kv = torch.zeros_like(q), torch.zeros_like(kv)
        for step in range(ranks):
            if step + 1 < ranks:
                works, following = pass_on(kv)
            if step > 0:
                d_works, d_following = pass_on(d_kv)
            queries, keys, is_causal = parts_of((rank - step) % ranks, q.shape[2])
            part_q, part_k, part_v = attention_backward(
                d_out[:, :, queries],
                q[:, :, queries],
                kv[0][:, :, keys],
                kv[1][:, :, keys],
                out[:, :, queries],
                lse[:, :, queries],
                0.0,
                is_causal,
            )
            d_q[:, :, queries] += part_q
            if step > 0:
                wait(d_works)
                d_kv = d_following
            d_kv[0][:, :, keys] += part_k
            d_kv[1][:, :, keys] += part_v
            if step + 1 < ranks:
                wait(works)
                kv = following
        works, d_own = pass_on(d_kv)
        wait(works)
        return d_q, d_own[0], d_own[1]


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    chunks = torch.arange(shape.sequence).chunk(2 * dist.get_world_size())
    positions = torch.cat((chunks[dist.get_rank()], chunks[-1 - dist.get_rank()]))
    torch.manual_seed(0)
    plain = Transformer(shape)
    plain.cos_sr, plain.sin_sr = plain.cos_sr[positions], plain.sin_sr[positions]
    for block in plain.blocks:
        block.attention.attend = RingAttention.apply  # type: ignore[union-attr]
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    loader = DataLoader(data, batch_size=shape.batch, num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        logits = model(tokens[:, positions])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, positions + 1].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
