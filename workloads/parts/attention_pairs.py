"""How much attention a rank computes: the pairs of query and key in forward, counted where they are computed.

Dimensions: b batch, h query heads, k key heads, q queries, t keys, e elements of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from workloads.workload import Phase


class PairCount:
    """Pairs of all heads, sequences and layers, in forward alone: what checkpoints compute again does not count."""

    def __init__(self) -> None:
        self.pairs = 0
        """Since its making."""
        self._is_forward = False

    def watch(self, phase: Phase) -> Phase:
        """The same marks, by which forward is known."""

        @contextmanager
        def mark(name: str) -> Iterator[None]:
            with phase(name):
                self._is_forward = name == "forward"
                try:
                    yield
                finally:
                    self._is_forward = False

        return mark

    def add(self, q_bhqe: Tensor, k_bkte: Tensor, *, is_causal: bool) -> None:
        """These queries attend to these keys. is_causal: query i to keys 0 to i."""
        if self._is_forward:
            batch, heads, queries, _ = q_bhqe.shape
            seen = queries * (queries + 1) // 2 if is_causal else queries * k_bkte.shape[2]
            self.pairs += batch * heads * seen
