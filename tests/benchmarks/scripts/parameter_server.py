"""The plainest synchronous parameter server on torch RPC: what `parameter_server` is measured against."""

import json
import os
import sys
import time
from datetime import timedelta
from threading import Lock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc
from torch.futures import Future
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from workloads.core.data import Progressions
from workloads.core.transformer import Transformer
from workloads.cost_models.shape import Shape


class Server:
    def __init__(self, shape: Shape, workers: int) -> None:
        torch.manual_seed(0)
        self.model = Transformer(shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, fused=True)
        self.workers = workers
        self.pushes = 0
        self.updated: Future[list[Tensor]] = Future()
        self.lock = Lock()

    def push(self, gradients: list[Tensor]) -> Future[list[Tensor]]:
        with self.lock:
            updated = self.updated
            for weight, gradient in zip(self.model.parameters(), gradients, strict=True):
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
            self.pushes += 1
            if self.pushes == self.workers:
                self.update()
        return updated

    def update(self) -> None:
        for weight in self.model.parameters():
            assert weight.grad is not None
            weight.grad /= self.workers
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pushes, updated, self.updated = 0, self.updated, Future()
        updated.set_result([weight.detach() for weight in self.model.parameters()])


servers: list[Server] = []


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(gradients: list[Tensor]) -> Future[list[Tensor]]:
    return servers[0].push(gradients)


def train(shape: Shape, steps: int, worker: int, workers: int) -> None:
    torch.manual_seed(0)
    model = Transformer(shape)
    data = Progressions(shape, seed=0, sequences=steps * shape.batch)
    sampler: DistributedSampler[object] = DistributedSampler(data, num_replicas=workers, rank=worker)
    loader = DataLoader(data, batch_size=shape.batch // workers, sampler=sampler, num_workers=1)
    ends = [time.perf_counter()]
    for tokens in loader:
        model.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        weights = rpc.rpc_sync("server", push, args=([weight.grad for weight in model.parameters()],))
        with torch.no_grad():
            for weight, new in zip(model.parameters(), weights, strict=True):
                weight.copy_(new)
        ends.append(time.perf_counter())
    if worker == 0:
        print(json.dumps(ends), flush=True)


def main() -> None:
    settings = json.loads(sys.argv[1])
    shape = Shape(**settings["shape"])
    steps = settings["warm_up"] + settings["steps"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, workers = dist.get_rank(), dist.get_world_size() - 1
    if rank == 0:
        servers.append(Server(shape, workers))
    name = f"worker{rank}" if rank else "server"
    rpc.init_rpc(name, rank=rank, world_size=1 + workers)  # type: ignore[no-untyped-call]
    if rank:
        train(shape, steps, rank - 1, workers)
    dist.barrier()
    os._exit(0)  # gloo may abort in the interpreter's farewell.


main()
