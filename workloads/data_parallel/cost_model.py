"""Cost model of data parallelism: exact bytes of compressed gradients, and states and traffic of torch's ZeRO-1.

All functions are for the model of a `Shape`. For the states of `single` and `ddp`, see
`workloads.cost_models.terms.replicated_states`.
Source: Vogels et al. 2019, PowerSGD; Lin et al. 2018, Deep gradient compression; torch 2.13,
ZeroRedundancyOptimizer._partition_parameters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Dimensions, States, divide, elements, model_weights

VALUE_BYTES = 4
"""Bytes of one element of a weight, a gradient, a moment or a factor, fp32."""
HALF_BYTES = 2
INDEX_BYTES = 4
"""Bytes of one index into a weight's gradient, int32."""
_LONG_BYTES = 8
INDEXED_ELEMENTS = 2**31
"""Number of elements of a gradient that int32 can index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBytes:
    """PowerSGD's two rounds. left_bytes: left factors and all that is not a matrix. right_bytes: right factors."""

    left_bytes: int
    right_bytes: int


def matrices(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Return rows and columns of each weight of the model that is a matrix."""
    return tuple((weight[0], weight[1]) for weight in model_weights(shape) if len(weight) == 2)


def vectors(shape: Shape) -> tuple[int, ...]:
    """Return the elements of each weight of the model that is a vector."""
    return tuple(weight[0] for weight in model_weights(shape) if len(weight) == 1)


def rounded_bytes(shape: Shape) -> int:
    """Return the bytes of all gradients in half precision."""
    return HALF_BYTES * shape.parameters()


def usable_rank(rows: int, columns: int, rank: int) -> int:
    """Return the rank that a matrix is cut to: at most its smaller side, at which it loses nothing."""
    return min(rank, rows, columns)


def largest_rank(shape: Shape) -> int:
    """Return the smallest rank at which no matrix of the model loses anything."""
    return max(min(rows, columns) for rows, columns in matrices(shape))


def powersgd_bytes(shape: Shape, rank: int) -> PowerBytes:
    """Return PowerSGD's bytes over all buckets: r (n + m) elements for each n x m matrix, and all vectors."""
    ranks = [(rows, columns, usable_rank(rows, columns, rank)) for rows, columns in matrices(shape)]
    return PowerBytes(
        left_bytes=VALUE_BYTES * (sum(rows * used for rows, _, used in ranks) + sum(vectors(shape))),
        right_bytes=VALUE_BYTES * sum(columns * used for _, columns, used in ranks),
    )


def kept_elements(elements: int, density: float) -> int:
    """Return how many elements of one gradient top-k sends: the share `density`, rounded, and at least one."""
    return max(1, round(density * elements))


def largest_weight(shape: Shape) -> int:
    """Return the elements of the model's largest weight."""
    return max(math.prod(weight) for weight in model_weights(shape))


def top_k_bytes(shape: Shape, density: float) -> int:
    """Return the bytes that one rank contributes: a value and an index for each element that it keeps.

    Each rank receives the contribution of every other. A ring's all_reduce sends 2 (n - 1) / n times the gradients,
    all_gather n - 1 times this: at a density of 1 / n both send the same, and above it top-k sends more.
    """
    elements = sum(kept_elements(math.prod(weight), density) for weight in model_weights(shape))
    return (VALUE_BYTES + INDEX_BYTES) * elements


def top_k_temporary_bytes(shape: Shape, density: float, ranks: int) -> int:
    """Return the most bytes that top-k of all gradients at once makes beside their copy.

    While it chooses: the magnitudes of the largest weight's gradient, an fp32 value for each element that it keeps of
    it, and an int64 index for each of all weights. While it adds: for each element its index by weight, in one tensor
    and of the rank whose values are added, the start of its weight and its place in the copy, all int64; an fp32 value;
    and a value and an int32 index of this rank and of each rank.
    """
    kept = [(weight, kept_elements(weight, density)) for weight in map(math.prod, model_weights(shape))]
    (largest, of_largest), total = max(kept), sum(count for _, count in kept)
    choosing = VALUE_BYTES * (largest + of_largest) + _LONG_BYTES * total
    each = 5 * _LONG_BYTES + VALUE_BYTES + (1 + ranks) * (VALUE_BYTES + INDEX_BYTES)
    return max(choosing, each * total)


# ZeRO-1 as in torch: optimizer states are divided by whole weights.
#
# The split is uneven: the fullest rank holds at least the largest weight, and with more ranks than large weights some
# hold little or nothing. The paper divides evenly; its count is `workloads.cost_models.memory.paper_states`.

STEP_BYTES = 4
"""AdamW's step counter, one for each weight, in fp32."""


@lru_cache(maxsize=16)
def partition(shape: Shape, ranks: int) -> tuple[tuple[Dimensions, ...], ...]:
    """Return the weights that each rank updates, in the order of the model; ranks are balanced by elements."""
    weights = model_weights(shape)
    rank_of = divide([math.prod(weight) for weight in weights], ranks)
    weights_of: list[list[Dimensions]] = [[] for _ in range(ranks)]
    for weight, rank in zip(weights, rank_of, strict=True):
        weights_of[rank].append(weight)
    return tuple(tuple(own) for own in weights_of)


@lru_cache(maxsize=16)
def elements_by_rank(shape: Shape, ranks: int) -> tuple[int, ...]:
    """Return how many elements each rank updates."""
    return tuple(elements(weights) for weights in partition(shape, ranks))


def partitioned_states(
    shape: Shape,
    *,
    rank: int,
    ranks: int,
    bytes_each: tuple[int, int, int] = (VALUE_BYTES, VALUE_BYTES, 2 * VALUE_BYTES),
) -> States:
    """Return a rank's states: weights and gradients whole, optimizer states of its own weights.

    bytes_each: of a weight, its gradient and its optimizer states; by default all are fp32, with AdamW's two moments.
    """
    weight_bytes, gradient_bytes, optimizer_bytes = bytes_each
    own, tensors = elements_by_rank(shape, ranks)[rank], len(partition(shape, ranks)[rank])
    return States(
        parameters_bytes=weight_bytes * shape.parameters(),
        gradients_bytes=gradient_bytes * shape.parameters(),
        optimizer_bytes=optimizer_bytes * own + STEP_BYTES * tensors,
    )


def sent_bytes(shape: Shape, ranks: int, *, weight_bytes: int = VALUE_BYTES) -> int:
    """Return the bytes of updated weights in all ranks' broadcasts; a rank without weights sends one element."""
    return sum(weight_bytes * max(1, own) for own in elements_by_rank(shape, ranks))
