"""The tensors that the weights of a `Shape`'s model are kept in, by their dimensions, in the order of their names."""

from __future__ import annotations

import math
from collections.abc import Iterable

from workloads.parts.shape import Shape

Dimensions = tuple[int, ...]
"""Of one tensor, as torch gives them: a linear layer's are its outputs and its inputs."""


def attention_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """The four products of one block's attention."""
    width, kv_width = shape.width, shape.kv_heads * shape.head_width
    return (width, width), (kv_width, width), (kv_width, width), (width, width)


def mlp_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """The three products of one block's MLP."""
    return (shape.mlp_width, shape.width), (shape.mlp_width, shape.width), (shape.width, shape.mlp_width)


def block_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """All of one block: each half behind its norm."""
    norm = (shape.width,)
    return norm, *attention_weights(shape), norm, *mlp_weights(shape)


def outer_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """What stands in no block: embedding, last norm and head."""
    table = (shape.vocabulary, shape.width)
    return table, (shape.width,), table


def model_weights(shape: Shape) -> tuple[Dimensions, ...]:
    """The whole model."""
    embedding, norm, head = outer_weights(shape)
    return embedding, *block_weights(shape) * shape.layers, norm, head


def elements(weights: Iterable[Dimensions]) -> int:
    """Elements of all these tensors together."""
    return sum(math.prod(dimensions) for dimensions in weights)
