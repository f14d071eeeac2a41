"""How many microbatches a pipeline rank holds at once, by the order of its actions alone.

A microbatch is held from the beginning of its forward to the end of its backward. Where a schedule parts backward, that
is the end of weight_backward, the later half: weights need the layers' inputs, which input_backward does not free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from workloads.laws.schedules import Action


def live_microbatches(order: Sequence[Sequence[Action]]) -> tuple[int, ...]:
    """The most that each rank holds at once, those of its stages added."""
    return tuple(_most(actions) for actions in order)


def live_microbatches_of_stages(order: Sequence[Sequence[Action]]) -> dict[int, int]:
    """The most that each stage holds at once, in the order of stages."""
    by_stage: dict[int, list[Action]] = {}
    for actions in order:
        for action in actions:
            by_stage.setdefault(action.stage, []).append(action)
    return {stage: _most(by_stage[stage]) for stage in sorted(by_stage)}


def held_microbatches(actions: Sequence[Action]) -> list[Counter[int]]:
    """What a rank holds during each of its actions: microbatches by stage."""
    held: Counter[int] = Counter()
    during = []
    for action in actions:
        if action.kind == "forward":
            held[action.stage] += 1
        during.append(held.copy())
        if action.kind in ("backward", "weight_backward"):
            held[action.stage] -= 1
    return during


def _most(actions: Sequence[Action]) -> int:
    return max((held.total() for held in held_microbatches(actions)), default=0)
