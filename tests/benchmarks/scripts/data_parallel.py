"""The plainest data-parallel and sharded training of the reference model on gloo, as each library documents its use.

`ddp`, `zero1`, `zero2`, `fsdp` and `hsdp` are measured against it; the settings name the strategy.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape


def replicated(model: Transformer) -> torch.nn.Module:
    return DistributedDataParallel(model)


def sharded(model: Transformer, *, shard_ranks: int | None = None, reshard: bool = True) -> torch.nn.Module:
    """Shard over `shard_ranks` ranks and replicate over the rest; over all ranks by default."""
    ranks = dist.get_world_size()
    if shard_ranks is None:
        mesh = init_device_mesh("cpu", (ranks,))
    else:
        mesh = init_device_mesh("cpu", (ranks // shard_ranks, shard_ranks), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return model


ADAMW = partial(AdamW, lr=3e-4, fused=True)
SHARDED_ADAMW = partial(ZeroRedundancyOptimizer, optimizer_class=AdamW, lr=3e-4, fused=True)
STRATEGIES: dict[str, tuple[Callable[..., torch.nn.Module], Callable[..., torch.optim.Optimizer]]] = {
    "ddp": (replicated, ADAMW),
    "zero1": (replicated, SHARDED_ADAMW),
    "zero2": (partial(sharded, reshard=False), ADAMW),
    "fsdp": (sharded, ADAMW),
    "hsdp": (partial(sharded, shard_ranks=2), ADAMW),
}


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo")
    wrap, make_optimizer = STRATEGIES[settings["strategy"]]
    torch.manual_seed(0)
    model = wrap(Transformer(shape))
    optimizer = make_optimizer(model.parameters())
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    local_batch = shape.batch // dist.get_world_size()
    loader = DataLoader(data, batch_size=local_batch, sampler=DistributedSampler(data), num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort when the interpreter exits.


main()
