"""The plainest DeepSpeed training of the reference model on gloo: what `deepspeed` is measured against."""

import json
import os
import sys
import time
import warnings

import deepspeed  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    warnings.simplefilter("ignore", FutureWarning)  # Of torch's old names, in each step.
    torch.set_num_threads(settings["threads"])
    deepspeed.ops.__compatible_ops__ = {}  # It would compile an operator that training does not use.
    deepspeed.init_distributed("gloo")
    local_batch = shape.batch // dist.get_world_size()
    torch.manual_seed(0)
    model = Transformer(shape)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True),
        config={
            "train_micro_batch_size_per_gpu": local_batch,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000_000},
        },
    )
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    loader = DataLoader(data, batch_size=local_batch, sampler=DistributedSampler(data), num_workers=1)
    dist.barrier()
    ends = [time.perf_counter()]
    for tokens in loader:
        logits = engine(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        ends.append(time.perf_counter())
    if dist.get_rank() == 0:
        print(json.dumps(ends), flush=True)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
