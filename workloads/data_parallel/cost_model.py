"""Bytes that compressed gradients hand to collectives, exactly, for the model of a `Shape`.

Source: Vogels et al. 2019, PowerSGD; Lin et al. 2018, Deep gradient compression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Dimensions, States, divide, elements, model_weights

VALUE_BYTES = 4
"""Of one element of a gradient, or of a factor, fp32."""
HALF_BYTES = 2
INDEX_BYTES = 4
"""Of one index into a weight's gradient, int32."""
INDEXED_ELEMENTS = 2**31
"""Elements of a gradient that int32 can count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerBytes:
    """PowerSGD's two rounds. left_bytes: left factors and all that is no matrix. right_bytes: right factors."""

    left_bytes: int
    right_bytes: int


def matrices(shape: Shape) -> tuple[tuple[int, int], ...]:
    """Rows and columns of each weight of the model that is a matrix."""
    return tuple((weight[0], weight[1]) for weight in model_weights(shape) if len(weight) == 2)


def vectors(shape: Shape) -> tuple[int, ...]:
    """Elements of each weight of the model that is a vector."""
    return tuple(weight[0] for weight in model_weights(shape) if len(weight) == 1)


def error_feedback_bytes(shape: Shape) -> int:
    """What was left out of all gradients, which stays until it is sent."""
    return VALUE_BYTES * shape.parameters()


def rounded_bytes(shape: Shape) -> int:
    """All gradients in half precision."""
    return HALF_BYTES * shape.parameters()


def usable_rank(rows: int, columns: int, rank: int) -> int:
    """The rank that a matrix is cut to: at most its smaller side, where nothing of it is lost."""
    return min(rank, rows, columns)


def largest_rank(shape: Shape) -> int:
    """The least rank at which no matrix of the model loses anything."""
    return max(min(rows, columns) for rows, columns in matrices(shape))


def powersgd_bytes(shape: Shape, rank: int) -> PowerBytes:
    """The factors of all matrices and the vectors, over all buckets: r (n + m) elements for n x m."""
    ranks = [(rows, columns, usable_rank(rows, columns, rank)) for rows, columns in matrices(shape)]
    return PowerBytes(
        left_bytes=VALUE_BYTES * (sum(rows * used for rows, _, used in ranks) + sum(vectors(shape))),
        right_bytes=VALUE_BYTES * sum(columns * used for _, columns, used in ranks),
    )


def kept_elements(elements: int, density: float) -> int:
    """Elements of one gradient that top-k sends: the share `density`, rounded, and at least one."""
    return max(1, round(density * elements))


def largest_weight(shape: Shape) -> int:
    """Elements of the model's largest weight."""
    return max(math.prod(weight) for weight in model_weights(shape))


def top_k_bytes(shape: Shape, density: float) -> int:
    """What one rank sends: a value and an index for each element that it keeps.

    Each rank receives that of every other. A ring's all_reduce sends 2 (n - 1) / n times the gradients, all_gather
    n - 1 times this: at a density of 1 / n both send the same, and above it top-k sends more.
    """
    kept = sum(kept_elements(math.prod(weight), density) for weight in model_weights(shape))
    return (VALUE_BYTES + INDEX_BYTES) * kept


# Which weights each rank updates where optimizer states are divided by whole weights, as torch's ZeRO-1 does it.
#
# The split is uneven: no rank can hold less than the largest weight, and with more ranks than large weights some hold
# little or nothing. The paper's account, which divides evenly, is `laws.memory.paper_states`.
# Source: torch 2.13, ZeroRedundancyOptimizer._partition_parameters.

ELEMENT_BYTES = 4
STEP_BYTES = 4
"""AdamW counts steps for each weight by itself, in fp32."""


def partition(shape: Shape, ranks: int) -> tuple[tuple[Dimensions, ...], ...]:
    """The weights of each rank, in the order of the model: divided by their elements."""
    weights = model_weights(shape)
    rank_of = divide([math.prod(weight) for weight in weights], ranks)
    held: list[list[Dimensions]] = [[] for _ in range(ranks)]
    for weight, rank in zip(weights, rank_of, strict=True):
        held[rank].append(weight)
    return tuple(tuple(own) for own in held)


def elements_by_rank(shape: Shape, ranks: int) -> tuple[int, ...]:
    """How many elements each rank updates."""
    return tuple(elements(weights) for weights in partition(shape, ranks))


def partitioned_states(shape: Shape, *, rank: int, ranks: int) -> States:
    """Weights and gradients whole, AdamW's two moments of the rank's own weights, all in fp32."""
    whole_bytes = ELEMENT_BYTES * shape.parameters()
    own = partition(shape, ranks)[rank]
    return States(
        parameters_bytes=whole_bytes,
        gradients_bytes=whole_bytes,
        optimizer_bytes=2 * ELEMENT_BYTES * elements(own) + STEP_BYTES * len(own),
    )


def sent_bytes(shape: Shape, ranks: int) -> int:
    """Updated weights that ranks send each other, one broadcast a rank; who has none sends one element."""
    return sum(ELEMENT_BYTES * max(1, own) for own in elements_by_rank(shape, ranks))
