"""One rank of a network in a box that trains ddp, its computing replaced by sleeping.

A sleeping rank leaves its core to others, so that two slow links, and nothing else, are what a step waits for.
Started as `python -m tests.slow.ranks.sleeping_rank ORDER`, a `SleepingOrder` as JSON.
No `from __future__ import annotations`: torch reads a hook's annotations as types.
"""

import statistics
import sys
import time
from dataclasses import replace
from typing import Any, Literal

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from collectors.rank.profiler import ProfiledSteps, warm
from collectors.rank.step_clock import HostClock, StepTimes
from collectors.traces.breakdown import breakdowns
from tests.slow.ranks.boxed_ranks import Order, serve_rank
from tests.slow.ranks.priority import go_first
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.core.data import Batches
from workloads.core.mesh import make_mesh
from workloads.cost_models.shape import Shape
from workloads.data_parallel import strategy as data_parallel
from workloads.registry import spec_of

STEPS = 5
WARM_UP = 2  # DistributedDataParallel lays its buckets anew after the first step.

# A block is 1 MiB of matrices and two small norms, so that a bucket of 1 MiB ends where a block ends.
SHAPE = Shape(layers=8, width=256, heads=2, kv_heads=1, mlp_width=86, vocabulary=8, sequence=2, batch=2)
BUCKET_BYTES = 2**20

Variant = Literal["overlap", "large_buckets", "after_backward", "waiting_hook"]
"""overlap: buckets of one block each. large_buckets: of two."""


class SleepingOrder(Order, frozen=True, kw_only=True):
    """What a rank shall do. sleep_s: backward of each block; variants: how gradients are averaged."""

    sleep_s: float
    variants: tuple[Variant, ...]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one variant's steps; traced_overlap_ratio: None where no communication was traced."""

    step_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    traced_overlap_ratio: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's answer. all_reduce_s: all gradients at once; alone: the same work on one rank, without communication."""

    all_reduce_s: float
    alone: Steps
    variants: dict[Variant, Steps]


class Sleep(torch.autograd.Function):
    """The identity, whose backward lasts."""

    @staticmethod
    def forward(ctx: Any, x_bsd: Tensor, sleep_s: float) -> Tensor:
        """The same values as a new tensor."""
        ctx.sleep_s = sleep_s
        return x_bsd.view_as(x_bsd)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The same gradient, later. In a trace it looks like an operator, as the computing that it stands for would."""
        with record_function("aten::sleep"):
            time.sleep(ctx.sleep_s)
        return gradients[0], None


def make_sleepy(model: nn.Module, sleep_s: float) -> None:
    """Have each block's backward begin with a sleep, before any of its gradients is ready."""

    def then_sleep(block: nn.Module, inputs: object, x_bsd: Tensor) -> Any:
        return Sleep.apply(x_bsd, sleep_s)  # type: ignore[no-untyped-call]

    for name, part in model.named_modules():
        if name.removeprefix("module.").rpartition(".")[0] == "blocks":
            part.register_forward_hook(then_sleep)


def waiting_hook(
    group: object,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """What DistributedDataParallel must not do: backward goes on only when the bucket has come back."""
    gradients = bucket.buffer()
    dist.all_reduce(gradients)
    gradients /= dist.get_world_size()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future


def measure_all_reduce(payload_bytes: int) -> float:
    """Median time of an all_reduce of so many bytes, from when all ranks are there."""
    tensor = torch.zeros(payload_bytes // 4)
    elapsed_s = []
    for _ in range(STEPS):
        dist.barrier()
        begun_s = time.perf_counter()
        dist.all_reduce(tensor)
        elapsed_s.append(time.perf_counter() - begun_s)
    return statistics.median(elapsed_s)


def measure_alone(setup: SmallSetup, mesh: DeviceMesh, sleep_s: float) -> Steps:
    """The steps of `single`, which never looks at the mesh of all ranks that it is handed."""
    clock = HostClock()
    batches = Batches(setup, data_rank=0, data_ranks=1)
    return measure_steps(
        Ready(workload=data_parallel.build_single(setup, mesh, clock.phase), batches=batches), clock, sleep_s
    )


def measure_variant(setup: SmallSetup, variant: Variant, sleep_s: float) -> Steps:
    """The steps of `ddp`, built by the product's own code."""
    clock = HostClock()
    ready = make_ready(setup, clock.phase)
    if variant == "waiting_hook":
        assert isinstance(ready.workload.model, DistributedDataParallel)
        ready.workload.model.register_comm_hook(None, waiting_hook)
    return measure_steps(ready, clock, sleep_s)


def measure_steps(ready: Ready, clock: HostClock, sleep_s: float) -> Steps:
    """Put the workload to sleep, and time its steps."""
    make_sleepy(ready.workload.model, sleep_s)
    for _ in range(WARM_UP):
        ready.step()
    dist.barrier()
    clock.start()
    for _ in range(STEPS):
        clock.end_step(ready.step())
    return summarise(clock.drain(), traced_overlap_ratio(ready))


def traced_overlap_ratio(ready: Ready) -> float | None:
    """Median over steps under the profiler, as the product tells it."""
    with ProfiledSteps(torch.device("cpu")) as window:
        for _ in range(3):
            with window.step():
                ready.step()
    ratios = [
        step.overlap_ns / step.communication_ns
        for step in breakdowns(window.timeline(dist.get_rank()))
        if step.communication_ns and step.overlap_ns is not None
    ]
    return statistics.median(ratios) if ratios else None


def summarise(steps: list[StepTimes], overlap_ratio: float | None) -> Steps:
    phases_s = {
        phase: statistics.median(step.phases_s[phase] for step in steps)
        for phase in ("forward", "backward", "optimizer")
    }
    return Steps(
        step_s=statistics.median(step.step_s for step in steps),
        forward_s=phases_s["forward"],
        backward_s=phases_s["backward"],
        optimizer_s=phases_s["optimizer"],
        traced_overlap_ratio=overlap_ratio,
    )


def ddp_setup(ranks: int, variant: Variant = "overlap") -> SmallSetup:
    """The product's ddp."""
    blocks = 2 if variant == "large_buckets" else 1
    options = {"bucket_mb": blocks * BUCKET_BYTES / 2**20, "overlap": variant != "after_backward"}
    return small_setup("ddp", ranks=ranks, shape=SHAPE, options=options)


def measure(order: SleepingOrder) -> Measured:
    """All that the order asks for; the process group exists."""
    [transfer] = spec_of("ddp").transfers(ddp_setup(order.ranks))
    all_reduce_s = measure_all_reduce(transfer.payload_bytes)
    # One rank's share of the batch, so that one rank alone computes what each of them does.
    shape = replace(SHAPE, batch=SHAPE.batch // order.ranks)
    alone = measure_alone(small_setup("single", shape=shape), make_mesh({"data": order.ranks}, "cpu"), order.sleep_s)
    variants = {
        variant: measure_variant(ddp_setup(order.ranks, variant), variant, order.sleep_s) for variant in order.variants
    }
    return Measured(all_reduce_s=all_reduce_s, alone=alone, variants=variants)


def main() -> None:
    """Measure for the order on the command line."""
    order = msgspec.json.decode(sys.argv[1], type=SleepingOrder)
    warm(torch.device("cpu"))
    go_first()
    serve_rank(order, lambda: measure(order))


if __name__ == "__main__":
    main()
