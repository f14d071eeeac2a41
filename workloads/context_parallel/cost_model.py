"""Cost models of `ring_attention` and `ulysses`: attention pairs, and the bytes that attention sends."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.cost_models.memory import recomputed_count
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Transfer

# Ring attention: pairs of query and key, and the bytes that travel the ring.
#
# Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3; the zigzag layout is from Zhu's
# ring-flash-attention; an equal share of the mask for all ranks is the idea of Brandon et al. 2023, Striped Attention.

PositionLayout = Literal["plain", "zigzag"]
"""Positions that a rank holds.

plain: consecutive positions, in the order of ranks.
zigzag: of twice as many chunks as ranks, the rank-th from the front and the rank-th from the end.
"""

GRADIENT_BYTES = 4
"""Bytes of one element of the travelling gradients, which are summed over all ranks in fp32."""


def ring_pairs(layout: PositionLayout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Return the pairs of query and key that a rank computes in forward, for one head of one sequence."""
    return sum(
        pairs_with(source, layout, is_causal=is_causal, sequence=sequence, rank=rank, ranks=ranks)
        for source in range(ranks)
    )


def pairs_with(source: int, layout: PositionLayout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Return those of the rank's pairs whose keys the source rank holds."""
    positions = sequence // ranks
    if not is_causal:
        return positions * positions
    if source == rank:
        return positions * (positions + 1) // 2
    if layout == "zigzag":
        return positions * positions // 2
    return positions * positions if source < rank else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTraffic:
    """Bytes that a rank sends in one optimizer step.

    sequences: number of sequences that pass through the model at a time; microbatches: how often that happens in a
    step.
    element_bytes: size of an element of the travelling keys and values.
    is_recomputed: in the last of every `recomputed_every` blocks, backward runs attention's forward again, with its
    messages.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    element_bytes: int
    is_recomputed: bool
    is_overlapped: bool
    recomputed_every: int = 1

    @property
    def block_bytes(self) -> int:
        """Keys and values of one rank's positions in one layer."""
        return self._elements * self.element_bytes

    @property
    def gradients_bytes(self) -> int:
        """Gradients of these keys and values."""
        return self._elements * GRADIENT_BYTES

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All messages to the next rank: keys and values visit all other ranks; their gradients also return home."""
        if self.ranks == 1:
            return ()
        visits = self.ranks - 1
        forward = self._sent(visits, self.block_bytes, behind="forward")
        again = self._sent(visits, self.block_bytes, behind="backward")
        rerun = [self._sent(visits, self.block_bytes, behind="backward", layers=layers) for layers in self._rerun]
        gradients = self._sent(visits, self.gradients_bytes, behind="backward")
        # When the gradient sums are complete there is nothing left to compute: the last hop home is exposed.
        home = self._sent(1, self.gradients_bytes, behind=None)
        return (forward, again, *rerun, gradients, home)

    @property
    def _rerun(self) -> tuple[int, ...]:
        """Number of blocks whose forward backward runs again, if there are any."""
        blocks = recomputed_count(range(self.shape.layers), every=self.recomputed_every) if self.is_recomputed else 0
        return (blocks,) if blocks else ()

    @property
    def _elements(self) -> int:
        positions = self.sequences * self.shape.sequence // self.ranks
        return 2 * positions * self.shape.kv_heads * self.shape.head_width

    def _sent(
        self, hops: int, hop_bytes: int, *, behind: Literal["forward", "backward"] | None, layers: int | None = None
    ) -> Transfer:
        """Return the messages of a step. layers: number of layers that send them; None: all."""
        calls = hops * (self.shape.layers if layers is None else layers) * self.microbatches
        return Transfer(
            collective="send",
            axis="sequence",
            payload_bytes=calls * hop_bytes,
            calls=calls,
            behind=behind if self.is_overlapped else None,
        )


# DeepSpeed-Ulysses: all_to_all exchanges a rank's positions of all heads for all positions of its heads.
#
# Source: Jacobs et al. 2023, DeepSpeed Ulysses: System optimizations for enabling training of extreme long sequence
# transformer models, section 3.2.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraffic:
    """Bytes that a rank passes to all_to_all in one optimizer step.

    sequences: number of sequences that pass through the model at a time; microbatches: how often that happens in a
    step.
    element_bytes: size of an element of queries, keys and values, of attention's output, and of their gradients.
    is_recomputed: in the last of every `recomputed_every` blocks, backward runs attention's forward again, with its
    exchanges.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    element_bytes: int
    is_recomputed: bool
    recomputed_every: int = 1

    @property
    def given_bytes(self) -> int:
        """Queries, keys and values of a rank's positions in one layer."""
        return self._heads_bytes(self.shape.heads + 2 * self.shape.kv_heads)

    @property
    def returned_bytes(self) -> int:
        """Attention's output for the same positions."""
        return self._heads_bytes(self.shape.heads)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Both exchanges of every layer, forward and backward; all are exposed, because nothing is left to compute."""
        if self.ranks == 1:
            return ()
        layers = self.shape.layers
        rerun = recomputed_count(range(layers), every=self.recomputed_every) if self.is_recomputed else 0
        calls = self.microbatches * (2 * layers + rerun)
        return tuple(
            Transfer(collective="all_to_all", axis="sequence", payload_bytes=calls * size_bytes, calls=calls)
            for size_bytes in (self.given_bytes, self.returned_bytes)
        )

    def _heads_bytes(self, heads: int) -> int:
        positions = self.sequences * self.shape.sequence // self.ranks
        return positions * heads * self.shape.head_width * self.element_bytes


def ulysses_pairs(*, sequence: int, ranks: int) -> Fraction:
    """Return the pairs of query and key that a rank computes in forward for one sequence, as a mean over all heads.

    Every rank computes the same number: all causal pairs of its share of the heads.
    """
    return Fraction(sequence * (sequence + 1), 2 * ranks)
