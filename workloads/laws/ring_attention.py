"""What a rank of ring attention computes and sends: pairs of query and key, and the bytes that travel the ring.

Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3; the zigzag layout is Zhu's, of
ring-flash-attention, and Brandon et al.'s idea (2023, Striped Attention) of an equal share of the mask for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.laws.terms import Transfer
from workloads.parts.shape import Shape

Layout = Literal["plain", "zigzag"]
"""Which positions a rank holds.

plain: neighbouring ones, rank by rank.
zigzag: of twice as many chunks as ranks, the rank-th from the front and the rank-th from the end.
"""

GRADIENT_BYTES = 4
"""Of one element of the gradients that travel: they are summed over all ranks, in fp32."""


def pairs(layout: Layout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Pairs of query and key that a rank computes in forward, for one head of one sequence."""
    return sum(
        pairs_with(source, layout, is_causal=is_causal, sequence=sequence, rank=rank, ranks=ranks)
        for source in range(ranks)
    )


def pairs_with(source: int, layout: Layout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Those among them whose keys the source holds."""
    held = sequence // ranks
    if not is_causal:
        return held * held
    if source == rank:
        return held * (held + 1) // 2
    if layout == "zigzag":
        return held * held // 2
    return held * held if source < rank else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTraffic:
    """What a rank sends in one optimizer step.

    sequences: those that go through the model at a time; microbatches: how many times that happens in a step.
    element_bytes: of keys and values as they travel.
    is_recomputed: backward runs attention's forward again, with its messages.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    element_bytes: int
    is_recomputed: bool
    is_overlapped: bool

    @property
    def block_bytes(self) -> int:
        """Keys and values of one rank's positions in one layer."""
        return self._elements * self.element_bytes

    @property
    def gradients_bytes(self) -> int:
        """Their gradients."""
        return self._elements * GRADIENT_BYTES

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All messages to the next rank: keys and values visit all others, their gradients come home too."""
        if self.ranks == 1:
            return ()
        visits = self.ranks - 1
        forward = self._sent(visits, self.block_bytes, behind="forward")
        again = self._sent(visits, self.block_bytes, behind="backward")
        gradients = self._sent(visits, self.gradients_bytes, behind="backward")
        # Nothing is left to attend to when the sums are complete: the way home is waited for.
        home = self._sent(1, self.gradients_bytes, behind=None)
        return (forward, *[again] * (1 + self.is_recomputed), gradients, home)

    @property
    def _elements(self) -> int:
        positions = self.sequences * self.shape.sequence // self.ranks
        return 2 * positions * self.shape.kv_heads * self.shape.head_width

    def _sent(self, hops: int, hop_bytes: int, *, behind: Literal["forward", "backward"] | None) -> Transfer:
        calls = hops * self.shape.layers * self.microbatches
        return Transfer(
            collective="send",
            axis="sequence",
            payload_bytes=calls * hop_bytes,
            calls=calls,
            behind=behind if self.is_overlapped else None,
        )
