"""The plainest DeepSpeed-Ulysses training of the reference model on gloo: what `ulysses` is measured against."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor: Tensor, scatter: int, gather: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.scatter, ctx.gather = scatter, gather
        leaving = torch.stack(tensor.chunk(dist.get_world_size(), dim=scatter))
        arrived = torch.empty_like(leaving)
        dist.all_to_all_single(arrived, leaving)
        return torch.cat(arrived.unbind(), dim=gather)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        return AllToAll.apply(gradient, ctx.gather, ctx.scatter), None, None  # type: ignore[no-untyped-call]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (AllToAll.apply(tensor, 1, 2) for tensor in (q, k, v))  # type: ignore[no-untyped-call]
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    whole: Tensor = AllToAll.apply(out, 2, 1)  # type: ignore[no-untyped-call]
    return whole


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Transformer(shape)
    replica = DistributedDataParallel(model)
    own = shape.sequence // dist.get_world_size()
    start = own * dist.get_rank()
    replica.broadcast_buffers = False
    model.cos_sr, model.sin_sr = model.cos_sr[start : start + own], model.sin_sr[start : start + own]
    for block in model.blocks:
        block.attention.attend = attend  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    loader = DataLoader(data, batch_size=shape.batch, num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        logits = replica(tokens[:, start : start + own])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, start + 1 : start + own + 1].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
