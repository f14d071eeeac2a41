"""What a rank of DeepSpeed-Ulysses computes and sends: its positions of all heads go for all positions of its heads.

Source: Jacobs et al. 2023, DeepSpeed Ulysses: System optimizations for enabling training of extreme long sequence
transformer models, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from workloads.laws.terms import Transfer
from workloads.parts.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraffic:
    """What a rank hands to all_to_all in one optimizer step.

    sequences: those that go through the model at a time; microbatches: how many times that happens in a step.
    element_bytes: of queries, keys and values, of attention's output, and of their gradients.
    is_recomputed: backward runs attention's forward again, with its exchanges.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    element_bytes: int
    is_recomputed: bool

    @property
    def given_bytes(self) -> int:
        """Queries, keys and values of a rank's positions in one layer."""
        return self._heads_bytes(self.shape.heads + 2 * self.shape.kv_heads)

    @property
    def returned_bytes(self) -> int:
        """Attention's output for as many positions."""
        return self._heads_bytes(self.shape.heads)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Both exchanges of every layer, forward and back; nothing is left to compute meanwhile."""
        if self.ranks == 1:
            return ()
        calls = self.shape.layers * self.microbatches * (3 if self.is_recomputed else 2)
        return tuple(
            Transfer(collective="all_to_all", axis="sequence", payload_bytes=calls * size_bytes, calls=calls)
            for size_bytes in (self.given_bytes, self.returned_bytes)
        )

    def _heads_bytes(self, heads: int) -> int:
        positions = self.sequences * self.shape.sequence // self.ranks
        return positions * heads * self.shape.head_width * self.element_bytes


def pairs(*, sequence: int, ranks: int) -> Fraction:
    """Pairs of query and key that a rank computes in forward, for one sequence, as a mean over all heads.

    Every rank computes the same: all causal pairs of its share of the heads.
    """
    return Fraction(sequence * (sequence + 1), 2 * ranks)


def paper_forward_elements(shape: Shape, *, ranks: int) -> int:
    """The paper's account of what a rank sends in forward for one sequence, 4 N d / P for each layer.

    It is of a model with as many key and value heads as query heads; grouped ones send less.
    """
    return 4 * shape.layers * shape.sequence * shape.width // ranks
