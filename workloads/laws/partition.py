"""Which weights each rank updates where optimizer states are divided by whole weights, as torch's ZeRO-1 does it.

The split is uneven: no rank can hold less than the largest weight, and with more ranks than large weights some hold
little or nothing. The paper's account, which divides evenly, is `laws.memory.paper_states`.
Source: torch 2.13, ZeroRedundancyOptimizer._partition_parameters.
"""

from __future__ import annotations

import math

from workloads.laws.division import divide
from workloads.laws.terms import States
from workloads.laws.weights import Dimensions, elements, model_weights
from workloads.parts.shape import Shape

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
