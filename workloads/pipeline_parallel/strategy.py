"""Strategy of all pipelines: cuts the model into stages by the option `balance`, and builds a rank's trainer.

The specs of `gpipe`, `interleaved`, `one_f_one_b`, `pipeline_naive` and `zero_bubble` all name this `build`; they
differ in schedule and options.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.core.precision import stream_dtype
from workloads.core.trainer import Clip, autocast, materialise, outline_model
from workloads.core.transformer import Transformer, next_token_loss
from workloads.cost_models.schedules import Pipeline, balance
from workloads.options import local_batch, loss_chunks
from workloads.pipeline_parallel.spec import BALANCE, SPECS, PipelineSpec, counts
from workloads.pipeline_parallel.stages import PipelineTrainer, StageModel, cut
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

# Time of each part of the model on this machine, by which balance=measured cuts stages.
#
# This is the only clock in a workload: its times divide the work, and are not reported.
# Dimensions: b sequences of a microbatch, s positions, d width.

WARM_UP_PASSES = 2
TIMED_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Seconds of forward and backward for one microbatch. head_s: including the last norm and the loss."""

    embedding_s: float
    blocks_s: tuple[float, ...]
    head_s: float


def measure_parts(setup: Setup, model: Transformer, sequences: int) -> PartTimes:
    """Return the median time of each part over several passes, averaged over all ranks.

    model: only its first block is measured, because all are alike. sequences: of one microbatch.
    """
    shape, device = setup.shape, model.cos_sr.device
    tokens_bs = torch.arange(sequences * shape.sequence, device=device).reshape(sequences, -1) % shape.vocabulary
    stream = (sequences, shape.sequence, shape.width)
    stream_bsd = torch.ones(stream, device=device, dtype=stream_dtype(setup), requires_grad=True)

    def of_embedding() -> Tensor:
        out_bsd: Tensor = model.embedding(tokens_bs)
        return out_bsd

    def of_head() -> Tensor:
        return next_token_loss(model.head(model.norm(stream_bsd)), tokens_bs)

    of_block = partial(model.blocks[0], stream_bsd, model.cos_sr, model.sin_sr)
    own_s = [_median_s(setup, run) for run in (of_embedding, of_block, of_head)]
    all_s = torch.tensor(own_s, device=device, dtype=torch.float64)
    dist.all_reduce(all_s)
    embedding_s, block_s, head_s = (all_s / dist.get_world_size()).tolist()
    return PartTimes(embedding_s=embedding_s, blocks_s=(block_s,) * shape.layers, head_s=head_s)


def _median_s(setup: Setup, run: Callable[[], Tensor]) -> float:
    """Return the median time of forward and backward over the timed passes."""
    times_s = []
    for _ in range(WARM_UP_PASSES + TIMED_PASSES):
        _synchronise(setup)
        start_s = time.perf_counter()
        with autocast(setup):
            out = run()
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        _synchronise(setup)
        times_s.append(time.perf_counter() - start_s)
    return median(times_s[WARM_UP_PASSES:])


def _synchronise(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.synchronize()


def make_trainer(
    setup: Setup,
    spec: PipelineSpec,
    mesh: DeviceMesh,
    phase: Phase,
    *,
    prepare: Callable[[StageModel], None] = lambda stage: None,
    positions: int | None = None,
    after_backward: Callable[[list[StageModel]], None] = lambda stages: None,
    clip: Clip | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> PipelineTrainer:
    """Build this rank's stages, in the pipeline along the mesh's axis `stage`, and their trainer.

    prepare: changes each stage in place before it has an optimizer, for example to divide it among the ranks of other
    axes.
    positions: length of the residual stream that a rank passes on, if other axes divide it; None: the whole sequence.
    after_backward: called with the stages when their gradients are complete.
    clip, scaler: as in `Trainer`; by default those that agree over the axis `stage`.
    """
    pipeline = spec.pipeline(setup)
    sequences = local_batch(setup, spec.data_ranks(setup))
    model, group = outline_model(setup), mesh.get_group("stage")
    blocks_of = divide(setup, pipeline, sequences)
    ranges = cut(setup.shape.layers, blocks_of)
    models = {
        stage: StageModel(model, ranges[stage], loss_chunks=loss_chunks(setup))
        for stage in pipeline.stages_of(group.rank())
    }
    stages = list(models.values())
    for stage in stages:
        prepare(stage)
        materialise(setup, stage)
    choice = setup.options[BALANCE.name]
    *most, last = map(str, blocks_of)
    note = f"balance={choice} gave the stages, in the order of the model, {', '.join(most)} and {last} blocks"
    return PipelineTrainer(
        setup,
        models,
        phase,
        pipeline=pipeline,
        stream=(sequences, positions or setup.shape.sequence, setup.shape.width),
        group=group,
        after_backward=lambda: after_backward(stages),
        clip=clip,
        scaler=scaler,
        notes=[] if choice == "layers" else [note],
    )


def divide(setup: Setup, pipeline: Pipeline, sequences: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage, the same on all ranks. sequences: of a microbatch."""
    if setup.options[BALANCE.name] != "measured":
        return counts(setup, pipeline.stages)
    model = outline_model(setup)
    model.blocks = model.blocks[:1]
    materialise(setup, model)
    return balance_by_time(setup, model, pipeline, sequences)


def balance_by_time(setup: Setup, model: Transformer, pipeline: Pipeline, sequences: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage, by the times that a model's parts take; see `measure_parts`."""
    times = measure_parts(setup, model, sequences)
    return balance(times.blocks_s, pipeline.stages, before=times.embedding_s, after=times.head_s)


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build this rank's stages of the model, and torch's schedule over all ranks."""
    spec = next(spec for spec in SPECS if spec.name == setup.strategy)
    return make_trainer(setup, spec, mesh, phase)
