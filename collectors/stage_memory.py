"""The activations that each pipeline stage of a rank holds, by what the forwards of its live microbatches left.

Knows no workload. A forward leaves what is there after it and was not before; a microbatch holds that until the end of
its backward, of the later half where backward is parted.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collectors.catalogue.memory import STAGE_ACTIVATION_BYTES
from collectors.metric import Sample
from workloads.laws.schedules import Action


class StageMemory:
    """Follows the actions of one step."""

    def __init__(self, held_bytes: Callable[[], int]) -> None:
        """held_bytes: activations, or all tensors, that are there now."""
        self._held_bytes = held_bytes
        self._left: dict[tuple[int, int], int] = {}
        self._held: Counter[int] = Counter()
        self._most: dict[int, int] = {}

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        """Count what is inside as this action."""
        place = (action.stage, action.microbatch)
        if action.kind == "forward":
            with _uncollected():
                before_bytes = self._held_bytes()
                yield
                self._left[place] = self._held_bytes() - before_bytes
            self._held[action.stage] += self._left[place]
            self._most[action.stage] = max(self._most.get(action.stage, 0), self._held[action.stage])
            return
        yield
        if action.kind in ("backward", "weight_backward"):
            self._held[action.stage] -= self._left.pop(place)

    def samples(self) -> list[Sample]:
        """The most that each stage held at once, in the order of stages."""
        return [STAGE_ACTIVATION_BYTES.at(self._most[stage], stage=str(stage)) for stage in sorted(self._most)]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Keep Python's collector of cycles from running.

    torch's parted backward leaves some activations in cycles (2.13): what is freed of them inside a forward would be
    taken from what the forward left.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
