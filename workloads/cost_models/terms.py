"""Terms in which a strategy's spec states its costs: transfers of one step, bytes of state, weight tensors.

All figures are per rank; the other cost models turn them into times and totals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Literal

from workloads.cost_models.shape import Shape


def divide(sizes: Sequence[int], holders: int) -> tuple[int, ...]:
    """Assign whole tensors to holders, largest first, each to the holder with the least; return the holder of each.

    Holders count from 0; those beyond the number of tensors hold none. Ties go to the first holder and the first
    tensor.
    Source: Graham 1969, Bounds on multiprocessing timing anomalies: the fullest holder has at most 4/3 of that in the
    best division.

    Raises:
        ValueError: there is no holder.
    """
    if holders < 1:
        raise ValueError(f"holders is {holders}; it must be 1 or more")
    sums = [(0, holder) for holder in range(holders)]  # A heap: the holder with the least comes first.
    holder_of = [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        least, holder = sums[0]
        heapreplace(sums, (least + sizes[tensor], holder))
        holder_of[tensor] = holder
    return tuple(holder_of)


Collective = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Equal collectives that one rank takes part in during one optimizer step.

    axis: mesh axis whose ranks take part. ranks: how many of them take part; None if all do.
    payload_bytes: size of the tensor over all calls, before the collective's own factor (2 (n - 1) / n for a ring).
    calls: number of equal collectives that share the payload; each pays the latency of its messages.
    behind: phase that may hide the transfer; None if the step must wait for it.

    Raises:
        ValueError: there is no call.
    """

    collective: Collective
    axis: str
    payload_bytes: int
    calls: int = 1
    ranks: int | None = None
    behind: Literal["forward", "backward"] | None = None

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"calls is {self.calls}; it must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransfers:
    """Collectives of one step that a pipeline stage waits for within its actions.

    each: within the actions of every microbatch, with half of their time in forward and half in backward; each transfer
    counts all microbatches together.
    first: before the forward of the first microbatch.
    last: after the backward of the last.
    """

    each: tuple[Transfer, ...] = ()
    first: tuple[Transfer, ...] = ()
    last: tuple[Transfer, ...] = ()


def bucket_count(payload_bytes: int, bucket_bytes: int) -> int:
    """Return the number of collectives that a payload is divided into.

    Raises:
        ValueError: a bucket has no byte.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be 1 or more")
    return max(1, -(-payload_bytes // bucket_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of training state on one rank, as this implementation keeps them (a paper's account may differ)."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def full_model_bytes(shape: Shape) -> int:
    """Return the bytes of the whole model's weights as every strategy first creates them: fp32 in every precision."""
    return 4 * shape.parameters()


def replicated_states(shape: Shape) -> States:
    """Return the states of a rank that holds weights, gradients and AdamW's two moments whole.

    All are fp32; AdamW also keeps a step count for each tensor.
    """
    weights_bytes = full_model_bytes(shape)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + 4 * shape.parameter_tensors(),
    )


# Weight tensors of a `Shape`'s model, by their dimensions, in the order of their names.

Dimensions = tuple[int, ...]
"""Dimensions of one tensor, in torch's order: a linear layer has (outputs, inputs)."""


def attention_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """Return the four projections of one block's attention."""
    width, query_width, kv_width = shape.width, shape.query_width, shape.kv_heads * shape.head_width
    return (query_width, width), (kv_width, width), (kv_width, width), (width, query_width)


def mlp_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """Return the three projections of one block's MLP."""
    return (shape.mlp_width, shape.width), (shape.mlp_width, shape.width), (shape.width, shape.mlp_width)


def block_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """Return the weights of one block: attention and MLP, each preceded by its norm."""
    norm = (shape.width,)
    return norm, *attention_weights(shape), norm, *mlp_weights(shape)


def outer_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """Return the weights outside the blocks: embedding, last norm, and the head where it is not tied."""
    table, norm = (shape.vocabulary, shape.width), (shape.width,)
    return (table, norm) if shape.is_tied else (table, norm, table)


def model_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """Return the weights of the whole model."""
    embedding, *last = outer_weights(shape)
    return embedding, *block_weights(shape) * shape.layers, *last


def elements(weights: Iterable[Dimensions]) -> int:
    """Return the total number of elements of these tensors."""
    return sum(math.prod(dimensions) for dimensions in weights)
