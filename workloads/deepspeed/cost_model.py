"""Cost model of DeepSpeed's ZeRO: what a rank holds and sends, to the byte, for DeepSpeed 0.19 with weights in fp32.

Stages 1 and 2 lay all weights end to end and cut them into equal parts; stage 3 cuts each weight by itself. The
optimizer updates a second copy of each part, the master: in the paper it is the fp32 copy of fp16 weights; here both
are fp32.
Source: DeepSpeed 0.19.8, stage_1_and_2.py, stage3.py, partitioned_param_coordinator.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from workloads.cost_models.memory import ZeroStage, recomputed_count
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import (
    Dimensions,
    States,
    Transfer,
    block_weights,
    bucket_count,
    elements,
    model_weights,
    replicated_states,
)

ELEMENT_BYTES = 4
"""Bytes of an element of weights, gradients and moments, held or in transfer."""
STEP_BYTES = 4
"""Bytes of AdamW's step counter, one for each tensor that it updates."""
ALIGNMENT = 2
"""Stages 1 and 2 round each rank's part up to a multiple of this many elements."""
WHOLE_BUCKET = 500_000_000
"""Elements that stage 0 averages together."""
SUB_GROUP = 1_000_000_000
"""Elements after which stage 3 begins another tensor to update."""
LIVE = 1_000_000_000
"""Elements that stage 3 gathers ahead of their use, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """How DeepSpeed divides a model, and how a step uses it.

    microbatches: forward and backward passes of a step; stages 2 and 3 reduce gradients in each of them.
    bucket: elements of gradients that are reduced together, from stage 1 on.
    threshold: stage 3 keeps weights of at most this many elements whole in addition to their parts, and gathers them
        after its update.
    reuse_distance: stage 3 keeps a weight gathered if at most this many elements are used before its next use.
    prefetch: elements that stage 3 gathers at a time ahead of their use; 0: each weight when it is used.
    is_recomputed: backward runs the forward of the last of every `recomputed_every` blocks again.
    is_clipped: gradients are clipped; stage 0 computes the norm only then, the others always.
    is_offloaded: masters, moments and gradients of the rank's part are on the host.
    is_overlapped: the backend moves weights and gradients while the rank computes.
    """

    shape: Shape
    ranks: int
    stage: ZeroStage
    microbatches: int = 1
    bucket: int = WHOLE_BUCKET
    threshold: int = 0
    reuse_distance: int = LIVE
    prefetch: int = LIVE
    is_recomputed: bool = False
    recomputed_every: int = 1
    is_clipped: bool = True
    is_offloaded: bool = False
    is_overlapped: bool = False

    def padded(self) -> int:
        """Return the elements of all ranks' parts together, padding included."""
        weights = model_weights(self.shape)
        if self.stage == 3:
            return self.ranks * _part(weights, self.ranks)
        alignment = ALIGNMENT * self.ranks
        return -(-elements(weights) // alignment) * alignment

    def persistent(self) -> tuple[Dimensions, ...]:
        """Return the weights that stage 3 keeps whole on each rank."""
        return tuple(weight for weight in model_weights(self.shape) if math.prod(weight) <= self.threshold)

    def gathered(self) -> tuple[Dimensions, ...]:
        """Return the weights that stage 3 gathers when they are used."""
        return tuple(weight for weight in model_weights(self.shape) if math.prod(weight) > self.threshold)

    def gathered_again(self) -> tuple[Dimensions, ...]:
        """Return the weights that stage 3 gathers for backward, if none are kept gathered since forward.

        A recomputed forward releases the weights again, except its last product's, within which it stops.
        """
        blocks = recomputed_count(range(self.shape.layers), every=self.recomputed_every) if self.is_recomputed else 0
        rerun = block_weights(self.shape)[:-1] * blocks
        return *self.gathered(), *(weight for weight in rerun if math.prod(weight) > self.threshold)


def engine_states(engine: EngineModel) -> States:
    """Return each rank's states after a step, including gradients; they are the same on all ranks.

    Buffers that collect and send gradients do not count.
    """
    if engine.stage == 0:
        return replicated_states(engine.shape)
    part_bytes = ELEMENT_BYTES * engine.padded() // engine.ranks
    updated_bytes = 3 * part_bytes + STEP_BYTES * _sub_groups(engine)
    if engine.stage < 3:
        return States(
            parameters_bytes=engine.ranks * part_bytes, gradients_bytes=part_bytes, optimizer_bytes=updated_bytes
        )
    whole_bytes = ELEMENT_BYTES * engine.ranks * _part(engine.persistent(), engine.ranks)
    return States(
        parameters_bytes=part_bytes + whole_bytes,
        # The sum that backward builds, and its copy that the update scales and reads.
        gradients_bytes=2 * part_bytes,
        optimizer_bytes=updated_bytes,
    )


def engine_transfers(engine: EngineModel) -> tuple[Transfer, ...]:
    """Return the collectives of one step, from the third on: stage 3 learns the order of weights in the first two.

    Two figures are only approximate: the bytes if stage 3 keeps some but not all weights gathered until backward, and
    the calls if a weight that is larger than a bucket lies across the parts of two ranks.
    """
    if engine.ranks == 1:
        return ()
    match engine.stage:
        case 0:
            calls = bucket_count(engine.shape.parameters(), WHOLE_BUCKET)
            payload_bytes = ELEMENT_BYTES * engine.shape.parameters()
            average = Transfer(collective="all_reduce", axis="data", payload_bytes=payload_bytes, calls=calls)
            return (average, *([_norm(4)] if engine.is_clipped else []))
        case 1 | 2:
            return (_reduce(engine), _norm(4), _gather(engine.padded(), calls=1))
        case 3:
            # The norm is in fp64, except on the host.
            transfers = [*_fetch(engine), _reduce(engine), _norm(4 if engine.is_offloaded else 8)]
            if persistent := engine.persistent():
                # After the update, weights that are whole on each rank are gathered one by one.
                transfers.append(_gather(engine.ranks * _part(persistent, engine.ranks), calls=len(persistent)))
            return tuple(transfers)


def _reduce(engine: EngineModel) -> Transfer:
    """Return the reduction of gradients. Stages 1 and 2 average whole gradients on all ranks; each reads its part."""
    weights = model_weights(engine.shape)
    passes = 1 if engine.stage == 1 else engine.microbatches
    return Transfer(
        collective="reduce_scatter" if engine.stage == 3 else "all_reduce",
        axis="data",
        payload_bytes=passes * ELEMENT_BYTES * (engine.padded() if engine.stage == 3 else elements(weights)),
        calls=passes * _buckets(weights, engine.bucket),
        behind="backward" if engine.is_overlapped else None,
    )


def _fetch(engine: EngineModel) -> Iterator[Transfer]:
    weights, rest = engine.gathered(), engine.gathered_again()
    padded = engine.ranks * _part(weights, engine.ranks)
    if not weights:
        return
    yield _fetched(engine, padded, len(weights), "forward")
    # Weights within reuse distance, or gathered far ahead, are not released before their use in backward.
    reused = max(engine.reuse_distance // 2, LIVE if engine.prefetch else 0)
    if padded > reused:
        yield _fetched(engine, engine.ranks * _part(rest, engine.ranks) - reused, len(rest), "backward")


def _fetched(engine: EngineModel, gathered: int, weights: int, phase: Literal["forward", "backward"]) -> Transfer:
    """Return a step's gathers in one phase. gathered, weights: elements and weights of each microbatch."""
    calls = bucket_count(gathered, engine.prefetch) if engine.prefetch else weights
    return _gather(
        engine.microbatches * gathered,
        calls=engine.microbatches * calls,
        behind=phase if engine.is_overlapped else None,
    )


def _gather(gathered: int, *, calls: int, behind: Literal["forward", "backward"] | None = None) -> Transfer:
    return Transfer(
        collective="all_gather", axis="data", payload_bytes=ELEMENT_BYTES * gathered, calls=calls, behind=behind
    )


def _norm(size_bytes: int) -> Transfer:
    """Return the all_reduce of the whole gradient's norm."""
    return Transfer(collective="all_reduce", axis="data", payload_bytes=size_bytes)


def _part(weights: Iterable[Dimensions], ranks: int) -> int:
    """Return the elements of a rank's parts of these weights, each padded by itself."""
    return sum(-(-math.prod(weight) // ranks) for weight in weights)


def _buckets(weights: Iterable[Dimensions], bucket: int) -> int:
    """Count the buckets that gradients fill in the order of backward; a gradient larger than a bucket has its own."""
    count, filled = 0, bucket + 1
    for weight in reversed(tuple(weights)):
        size = math.prod(weight)
        if filled + size > bucket:
            count, filled = count + 1, 0
        filled += size
    return count


def _sub_groups(engine: EngineModel) -> int:
    """Count the tensors that the rank updates: weights join one until their parts reach `SUB_GROUP` elements."""
    if engine.stage < 3:
        return 1
    count, filled = 0, SUB_GROUP
    for weight in model_weights(engine.shape):
        if filled >= SUB_GROUP:
            count, filled = count + 1, 0
        filled += -(-math.prod(weight) // engine.ranks)
    return count
