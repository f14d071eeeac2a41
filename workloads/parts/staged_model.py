"""A rank's stages of the reference model, cut as the setup's option `balance` says, and their trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.cards.pipeline_options import BALANCE, counts
from workloads.cards.training_options import local_batch
from workloads.laws.balance import balance
from workloads.laws.pipeline import Pipeline
from workloads.parts.part_times import measure_parts
from workloads.parts.pipeline import PipelineTrainer
from workloads.parts.stages import StageModel, cut
from workloads.parts.training import Clip, make_model
from workloads.parts.transformer import Transformer
from workloads.roster import card_of
from workloads.workload import Phase


def make_trainer(
    setup: Setup,
    mesh: DeviceMesh,
    phase: Phase,
    *,
    prepare: Callable[[StageModel], None] = lambda stage: None,
    positions: int | None = None,
    after_backward: Callable[[list[StageModel]], None] = lambda stages: None,
    clip: Clip | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> PipelineTrainer:
    """The stages of this rank, in the pipeline along the mesh's axis `stage`, and their trainer.

    prepare: changes each stage in place before it has an optimizer, such as dividing it among the ranks of other axes.
    positions: of the residual stream that a rank hands on, where that is divided by them too.
    after_backward: is handed the stages when their gradients are there.
    clip, scaler: as `Trainer` has them; those that agree over the axis `stage` where they are left out.
    """
    card = card_of(setup.strategy)
    pipeline = card.pipeline(setup)
    assert pipeline is not None, "its card has a pipeline"
    sequences = local_batch(setup, card.data_ranks(setup))
    model, group = make_model(setup), mesh.get_group("stage")
    blocks_of = divide(setup, model, pipeline, sequences)
    ranges = cut(setup.shape.layers, blocks_of)
    models = {stage: StageModel(model, ranges[stage]) for stage in pipeline.stages_of(group.rank())}
    stages = list(models.values())
    for stage in stages:
        prepare(stage)
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
        notes=list(_notes(setup, blocks_of)),
    )


def divide(setup: Setup, model: Transformer, pipeline: Pipeline, sequences: int) -> tuple[int, ...]:
    """How many blocks each stage has, the same on all ranks. sequences: of a microbatch."""
    if setup.options[BALANCE.name] != "measured":
        return counts(setup, pipeline.stages)
    times = measure_parts(setup, model, sequences)
    return balance(times.blocks_s, pipeline.stages, before=times.embedding_s, after=times.head_s)


def _notes(setup: Setup, blocks_of: tuple[int, ...]) -> Iterator[str]:
    choice = setup.options[BALANCE.name]
    if choice != "layers":
        yield f"balance={choice} gave the stages, in the order of the model, {_listed(blocks_of)} blocks"


def _listed(numbers: tuple[int, ...]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}"
