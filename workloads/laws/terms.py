"""What a card tells the laws: the transfers of one step, and the bytes of state that a rank holds.

Plain figures of one rank; the laws turn them into times and totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.parts.shape import Shape

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
