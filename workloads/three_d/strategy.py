"""Strategy `three_d`: pipeline stages that other axes of the device mesh divide and replicate, and their trainer.

Each stage's products are divided over the axis `tensor`. Over the axis `data`, replicas average their gradients when
the schedule is done, or FSDP2 divides what the stage holds: weights are gathered in the first forward of a step and
kept until its last backward, because otherwise each microbatch would gather them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from workloads.core.buckets import bucket_bytes
from workloads.core.precision import sharding_policy
from workloads.core.sharded_gradients import AgreeingScaler, add_up, clip_gradients, local_gradient
from workloads.pipeline_parallel.stages import StageModel
from workloads.pipeline_parallel.strategy import make_trainer
from workloads.protocols import Phase, Workload
from workloads.spec import Setup
from workloads.tensor_parallel.strategy import norm_weights, parallelize
from workloads.three_d.cost_model import fill_buckets
from workloads.three_d.spec import ThreeDSpec, replica_ranks


@torch.no_grad()
def average_gradients(weights: Iterable[nn.Parameter], group: dist.ProcessGroup, *, bucket_bytes: int) -> None:
    """Replace each gradient by its mean over the group's ranks, in buckets; a rank averages the part that it holds.

    While one bucket is being sent, the next is filled.

    Raises:
        RuntimeError: a weight has no gradient.
    """
    gradients = [local_gradient(weight) for weight in weights]
    sizes = [gradient.numel() * gradient.element_size() for gradient in gradients]
    sent = []
    for bucket in fill_buckets(sizes, bucket_bytes):
        parts = [gradients[place] for place in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        work = dist.all_reduce(flat, group=group, async_op=True)
        assert work is not None, "this rank belongs to the group"
        sent.append((parts, flat, work))
    for parts, flat, work in sent:
        work.wait()
        flat /= group.size()
        means = torch.split(flat, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [mean.view_as(part) for mean, part in zip(means, parts, strict=True)])


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build this rank's stages, divided over `tensor` and, with FSDP2, `data`; torch's schedule runs on `stage`."""
    tensor_ranks, is_stream_sharded = mesh["tensor"].size(), bool(setup.options["sequence_parallel"])
    is_sharded = setup.options["data_axis"] == "fsdp" and mesh["data"].size() > 1
    # Groups of the axes whose ranks hold different gradients at the end of the step.
    is_held_apart = {"stage": True, "tensor": tensor_ranks > 1, "data": is_sharded}
    holders = [mesh.get_group(axis) for axis, is_apart in is_held_apart.items() if is_apart]

    def prepare(stage: StageModel) -> None:
        parallelize(setup, stage, mesh)
        if is_sharded:
            shard(stage, mesh["data"], policy=sharding_policy(setup))

    def complete(stages: list[StageModel]) -> None:
        if is_stream_sharded and tensor_ranks > 1:
            # Each rank has seen only its own positions.
            add_up([weight for stage in stages for weight in norm_weights(stage)], mesh.get_group("tensor"))
        if not is_sharded and mesh["data"].size() > 1:
            weights = (weight for stage in stages for weight in stage.parameters())
            average_gradients(
                weights, mesh.get_group("data"), bucket_bytes=bucket_bytes(setup, parts=replica_ranks(setup))
            )

    return make_trainer(
        setup,
        ThreeDSpec(),
        mesh,
        phase,
        prepare=prepare,
        positions=setup.shape.sequence // (tensor_ranks if is_stream_sharded else 1),
        after_backward=complete,
        clip=partial(clip_gradients, groups=holders, tensor_ranks=tensor_ranks),
        scaler=AgreeingScaler(setup.device, groups=holders, enabled=setup.precision == "fp16"),
    )


def shard(
    stage: StageModel,
    mesh: DeviceMesh,
    *,
    is_kept_gathered: bool = True,
    policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),  # noqa: B008  # It is frozen.
) -> None:
    """Divide a stage, block by block, over a mesh of one axis; torch's schedules gather weights and reduce gradients.

    is_kept_gathered: keep weights gathered from the first forward of a step to its last backward.
    policy: in what precision weights are gathered, and gradients reduced.
    """
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_kept_gathered)
    fully_shard(stage, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_kept_gathered)
