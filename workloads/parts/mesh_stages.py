"""Stages of a pipeline that other axes of the device mesh divide and replicate, and their trainer.

Each stage's products are divided over the axis `tensor`. Over the axis `data` its replicas average their gradients when
the schedule is through, or FSDP2 divides what the stage holds: weights are gathered in the first forward of a step and
kept to its last backward, since each microbatch would gather them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from workloads.cards.card import Backend, Device, OptionValue, Precision, Setup
from workloads.parts.averaging import average_gradients
from workloads.parts.divided_gradients import AgreeingScaler, add_up
from workloads.parts.pipeline import PipelineTrainer
from workloads.parts.shape import Shape
from workloads.parts.sharding import NORM_EPSILON
from workloads.parts.staged_model import make_trainer as make_pipeline_trainer
from workloads.parts.stages import StageModel
from workloads.parts.tensor_parallel import norm_weights, parallelize
from workloads.workload import Phase


def make_trainer(setup: Setup, mesh: DeviceMesh, phase: Phase) -> PipelineTrainer:
    """This rank's stages, divided over `tensor` and, where FSDP2 is to do so, over `data`; and their trainer."""
    tensor_ranks, is_stream_divided = mesh["tensor"].size(), bool(setup.options["sequence_parallel"])
    is_sharded = setup.options["data_axis"] == "fsdp" and mesh["data"].size() > 1
    holders = [mesh.get_group(axis) for axis in _axes_of_parts(mesh, is_sharded=is_sharded)]

    def prepare(stage: StageModel) -> None:
        parallelize(_as_tensor_parallel(setup), stage, mesh)
        if is_sharded:
            shard(stage, mesh["data"])

    def complete(stages: list[StageModel]) -> None:
        if is_stream_divided and tensor_ranks > 1:
            # Each rank has seen its own positions only.
            add_up([weight for stage in stages for weight in norm_weights(stage)], mesh.get_group("tensor"))
        if not is_sharded and mesh["data"].size() > 1:
            weights = (weight for stage in stages for weight in stage.parameters())
            bucket_bytes = int(float(setup.options["bucket_mb"]) * 2**20)
            average_gradients(weights, mesh.get_group("data"), bucket_bytes=bucket_bytes)

    return make_pipeline_trainer(
        setup,
        mesh,
        phase,
        prepare=prepare,
        positions=setup.shape.sequence // (tensor_ranks if is_stream_divided else 1),
        after_backward=complete,
        clip=partial(clip_over_axes, groups=holders, tensor_ranks=tensor_ranks),
        scaler=ScalerOverAxes(setup.device, groups=holders, enabled=setup.precision == "fp16"),
    )


def shard(stage: StageModel, mesh: DeviceMesh, *, is_kept_gathered: bool = True) -> None:
    """Divide what a stage holds, block by block, over a mesh of one axis; torch's schedules gather and reduce it.

    is_kept_gathered: from the first forward of a step to its last backward.
    """
    for block in stage.blocks.values():
        fully_shard(block, mesh=mesh, reshard_after_forward=not is_kept_gathered)
    fully_shard(stage, mesh=mesh, reshard_after_forward=not is_kept_gathered)


@torch.no_grad()
def clip_over_axes(
    weights: Iterable[nn.Parameter], largest_norm: float, *, groups: Sequence[dist.ProcessGroup], tensor_ranks: int
) -> None:
    """Scale gradients, of which ranks hold parts, down to a norm; for each group one all_reduce of a number.

    groups: of the axes whose ranks hold different gradients.
    tensor_ranks: those that all hold what is not divided among them.
    """
    divided: list[Tensor] = []
    whole: list[Tensor] = []
    for weight in weights:
        if weight.grad is not None:
            (divided if _is_tensor_divided(weight) else whole).append(_local(weight.grad))
    # What is whole on each tensor rank is there so often, and counts once.
    square = nn.utils.get_total_norm(divided).square() + nn.utils.get_total_norm(whole).square() / tensor_ranks
    for group in groups:
        dist.all_reduce(square, group=group)
    scale = (largest_norm / (square.sqrt() + NORM_EPSILON)).clamp(max=1.0)
    torch._foreach_mul_([*divided, *whole], scale)


class ScalerOverAxes(AgreeingScaler):
    """A GradScaler whose ranks, along several axes, all skip an update where one of them sees an overflow."""

    def __init__(self, device: str, *, groups: Sequence[dist.ProcessGroup], enabled: bool) -> None:
        first, *self._others = groups
        super().__init__(device, group=first, enabled=enabled)

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        for group in self._others:
            dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=group)
        return found


def _axes_of_parts(mesh: DeviceMesh, *, is_sharded: bool) -> Iterator[str]:
    """The axes whose ranks hold different gradients when the step is through."""
    yield "stage"
    if mesh["tensor"].size() > 1:
        yield "tensor"
    if is_sharded:
        yield "data"


def _is_tensor_divided(weight: nn.Parameter) -> bool:
    names = weight.device_mesh.mesh_dim_names if isinstance(weight, DTensor) else None
    return names is not None and "tensor" in names


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorSetup:
    """A setup as `parts.tensor_parallel` reads it."""

    strategy: str
    ranks: int
    shape: Shape
    device: Device
    backend: Backend
    precision: Precision
    seed: int
    options: Mapping[str, OptionValue]


def _as_tensor_parallel(setup: Setup) -> Setup:
    """The setup with the options that stages do not offer: a loss that is divided, and products in pieces."""
    return _TensorSetup(
        strategy=setup.strategy,
        ranks=setup.ranks,
        shape=setup.shape,
        device=setup.device,
        backend=setup.backend,
        precision=setup.precision,
        seed=setup.seed,
        options={**setup.options, "loss_parallel": False, "async_tp": False},
    )
