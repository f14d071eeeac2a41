"""What the stages of a pipeline cost: states and activations of each rank, and what they send each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workloads.laws.activations import Microbatch
from workloads.laws.live_microbatches import live_microbatches_of_stages
from workloads.laws.pipeline import Pipeline
from workloads.laws.schedules import actions
from workloads.laws.terms import States, Transfer
from workloads.laws.weights import Dimensions, block_weights, elements, outer_weights
from workloads.parts.shape import Shape

ELEMENT_BYTES = 4
LOSS_BYTES = 4
"""What the last stage hands on, in fp32."""
STEP_BYTES = 4
"""AdamW counts steps for each weight by itself, in fp32."""


def stage_weights(shape: Shape, counts: Sequence[int], stage: int) -> tuple[Dimensions, ...]:
    """The tensors of one stage: its blocks, the embedding in the first, last norm and head in the last."""
    embedding, norm, head = outer_weights(shape)
    return (
        *((embedding,) if stage == 0 else ()),
        *block_weights(shape) * counts[stage],
        *((norm, head) if stage == len(counts) - 1 else ()),
    )


def stage_states(weights: Iterable[Dimensions]) -> States:
    """Weights, gradients and AdamW's two moments of these tensors, all in fp32."""
    held = tuple(weights)
    weights_bytes = ELEMENT_BYTES * elements(held)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + STEP_BYTES * len(held),
    )


def boundary_bytes(shape: Shape, sequences: int) -> int:
    """The residual stream of one microbatch, which stages hand on in fp32 in every precision."""
    return ELEMENT_BYTES * sequences * shape.sequence * shape.width


def boundary_transfers(pipeline: Pipeline, *, numbers: int) -> tuple[Transfer, ...]:
    """Those of the rank that sends most: activations to the next stage, gradients to the one before.

    numbers: scalars that the ranks of a pipeline agree on in a step, such as the norm of all gradients.
    """
    if pipeline.ranks == 1:
        return ()
    messages = max(_messages(pipeline, rank) for rank in range(pipeline.ranks))
    sent = Transfer(collective="send", axis="stage", payload_bytes=messages * pipeline.boundary_bytes, calls=messages)
    agreed = Transfer(collective="all_reduce", axis="stage", payload_bytes=ELEMENT_BYTES * numbers, calls=numbers or 1)
    return (sent, agreed) if numbers else (sent,)


def stored_bytes(microbatch: Microbatch, counts: Sequence[int], stage: int) -> int:
    """What a stage's forward of one microbatch leaves for its backward: its input, and its output until that is sent.

    Tokens are not counted: they are there through the whole step.
    """
    out_bytes = microbatch.head_bytes + LOSS_BYTES if stage == len(counts) - 1 else microbatch.stream_bytes
    return counts[stage] * microbatch.stored_block_bytes + out_bytes


def activations_by_stage(pipeline: Pipeline, microbatch: Microbatch, counts: Sequence[int]) -> tuple[int, ...]:
    """The most that forwards of each stage's live microbatches have left at once, in bytes, tokens not counted.

    What a stage hands on to one of the same rank is that stage's input too, and is counted of the one that made it.

    Raises:
        ValueError: the schedule cannot run this pipeline.
    """
    live = live_microbatches_of_stages(actions(pipeline))
    return tuple(
        live[stage] * (stored_bytes(microbatch, counts, stage) - _handed_bytes(pipeline, microbatch, stage))
        for stage in range(pipeline.stages)
    )


def _handed_bytes(pipeline: Pipeline, microbatch: Microbatch, stage: int) -> int:
    """A stage's input, where the stage before it is on the same rank."""
    is_handed = stage > 0 and pipeline.rank_of(stage - 1) == pipeline.rank_of(stage)
    return microbatch.stream_bytes if is_handed else 0


def _messages(pipeline: Pipeline, rank: int) -> int:
    """Tensors that a rank sends to others in a step: one for each microbatch and each end of a stage that faces one."""
    facing = sum(
        0 <= neighbour < pipeline.stages and pipeline.rank_of(neighbour) != rank
        for stage in pipeline.stages_of(rank)
        for neighbour in (stage - 1, stage + 1)
    )
    return facing * pipeline.microbatches
