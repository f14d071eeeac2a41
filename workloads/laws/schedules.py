"""What each rank of a pipeline does, in its order: the actions of its stages, schedule by schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ActionKind = Literal["forward", "backward", "input_backward", "weight_backward"]
"""backward: of inputs and weights together; the other two are its halves, where a schedule parts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What a stage computes for a microbatch; both are counted from 0, stages in the order of the model."""

    kind: ActionKind
    stage: int
    microbatch: int
