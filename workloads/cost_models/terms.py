"""What a card tells the laws: the transfers of one step, and the bytes of state that a rank holds.

Plain figures of one rank; the laws turn them into times and totals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from workloads.cost_models.shape import Shape

# Who holds which tensor where tensors are divided whole: the largest first, each to who has least.


def divide(sizes: Sequence[int], holders: int) -> tuple[int, ...]:
    """The holder of each tensor, counted from 0; those beyond the number of tensors hold none.

    Of holders that have equally much the first gets it, and of tensors that are equally large the first goes first.
    Source: Graham 1969, Bounds on multiprocessing timing anomalies: the fullest has at most 4/3 of the best division's.

    Raises:
        ValueError: there is no holder.
    """
    if holders < 1:
        raise ValueError(f"holders is {holders}; it must be 1 or more")
    held = [0] * holders
    holder_of = [0] * len(sizes)
    for tensor in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        holder_of[tensor] = held.index(min(held))
        held[holder_of[tensor]] += sizes[tensor]
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

    axis: the mesh axis whose ranks take part. ranks: how many of them do, where it is not all.
    payload_bytes: the tensor's bytes over all calls, before the collective's own factor (2 (n - 1) / n for a ring).
    calls: collectives that the payload is divided into, equally; each pays the latency of its messages.
    behind: the phase it may be hidden behind, None where the step must wait for it.

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


def bucket_count(payload_bytes: int, bucket_bytes: int) -> int:
    """Collectives that a payload is divided into.

    Raises:
        ValueError: a bucket has no byte.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; it must be 1 or more")
    return max(1, -(-payload_bytes // bucket_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCovered:
    """A figure that a law does not know, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of training state on one rank, as this implementation keeps them (not the paper's account)."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def made_whole_bytes(shape: Shape) -> int:
    """The whole model's weights as every strategy makes them, in fp32 whatever it computes in."""
    return 4 * shape.parameters()


def replicated_states(shape: Shape) -> States:
    """Weights, gradients and AdamW's two moments whole on the rank, all in fp32, with a step count for each tensor."""
    weights_bytes = made_whole_bytes(shape)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + 4 * shape.parameter_tensors(),
    )


# The tensors that the weights of a `Shape`'s model are kept in, by their dimensions, in the order of their names.

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
