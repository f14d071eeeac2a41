"""Bytes that compressed gradients hand to collectives, exactly, for the model of a `Shape`.

Source: Vogels et al. 2019, PowerSGD; Lin et al. 2018, Deep gradient compression.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from workloads.laws.weights import model_weights
from workloads.parts.shape import Shape

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
