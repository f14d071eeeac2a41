"""What a card tells the laws: the transfers of one step, and the bytes of state that a rank holds.

Plain figures of one rank; the laws turn them into times and totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.parts.shape import Shape

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Equal collectives that one rank takes part in during one optimizer step.

    axis: the mesh axis whose ranks take part.
    payload_bytes: the tensor's bytes over all calls, before the collective's own factor (2 (n - 1) / n for a ring).
    behind: the phase it may be hidden behind, None where the step must wait for it.
    """

    collective: Collective
    axis: str
    payload_bytes: int
    behind: Literal["forward", "backward"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Bytes of training state on one rank, as this implementation keeps them (not the paper's account)."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def replicated_states(shape: Shape) -> States:
    """Weights, gradients and AdamW's two moments whole on the rank, all in fp32, with a step count for each tensor."""
    weights_bytes = 4 * shape.parameters()
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + 4 * shape.parameter_tensors(),
    )
