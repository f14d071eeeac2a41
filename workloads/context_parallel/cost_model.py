"""Cost models of `ring_attention` and `ulysses`: attention pairs, messages, and time of attention on a ring.

On a ring a rank attends to the block that it holds while it passes that block on and receives the next; then neighbours
wait for each other. With equal work and n ranks, forward takes (n - 1) max(attention, transfer) + attention: all of the
communication is hidden where attention takes longer, and the share attention / transfer where the transfer does.
Assumes that each rank has a link of its own, and that communication takes nothing from computation.
Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Transfer

# Ring attention: pairs of query and key, and the bytes that travel the ring.
#
# Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3; the zigzag layout is from Zhu's
# ring-flash-attention; an equal share of the mask for all ranks is the idea of Brandon et al. 2023, Striped Attention.

Layout = Literal["plain", "zigzag"]
"""Positions that a rank holds.

plain: consecutive positions, in the order of ranks.
zigzag: of twice as many chunks as ranks, the rank-th from the front and the rank-th from the end.
"""

GRADIENT_BYTES = 4
"""Bytes of one element of the travelling gradients, which are summed over all ranks in fp32."""


def ring_pairs(layout: Layout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Return the pairs of query and key that a rank computes in forward, for one head of one sequence."""
    return sum(
        pairs_with(source, layout, is_causal=is_causal, sequence=sequence, rank=rank, ranks=ranks)
        for source in range(ranks)
    )


def pairs_with(source: int, layout: Layout, *, is_causal: bool, sequence: int, rank: int, ranks: int) -> int:
    """Return the pairs among them whose keys the source rank holds."""
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

    sequences: number of sequences that pass through the model at a time; microbatches: how often that happens in a
    step.
    element_bytes: size of an element of the travelling keys and values.
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
        gradients = self._sent(visits, self.gradients_bytes, behind="backward")
        # When the gradient sums are complete there is nothing left to compute: the last hop home is exposed.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTime:
    """Predicted time of one rank.

    communication_s: time in which a message to the rank is under way; hidden_s: the part of it in which the rank
    attends. Time that is neither attention nor communication is waiting for a neighbour that has more to do.
    """

    elapsed_s: float
    attention_s: float
    communication_s: float
    hidden_s: float

    @property
    def hidden_ratio(self) -> float | None:
        """Hidden communication divided by all communication; None where there is none."""
        return self.hidden_s / self.communication_s if self.communication_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """What happens between two synchronisations of neighbours.

    attention_s: time of each rank's attention to the block that it holds; transfer_s: time of the messages to the next
    rank, 0 where there are none.
    """

    attention_s: Sequence[float]
    transfer_s: float


def forward_hops(attention_s: Sequence[Sequence[float]], *, block_s: float) -> list[Hop]:
    """Return the hops of forward. attention_s: by hop and rank; block_s: transfer of a rank's keys and values."""
    last = len(attention_s) - 1
    return [
        Hop(attention_s=of_ranks_s, transfer_s=block_s if hop < last else 0.0)
        for hop, of_ranks_s in enumerate(attention_s)
    ]


def backward_hops(attention_s: Sequence[Sequence[float]], *, block_s: float, gradients_s: float) -> list[Hop]:
    """Return the hops of backward: gradients follow their block one hop later, and return home in an extra hop.

    attention_s: by hop and rank; block_s, gradients_s: transfer of a rank's keys and values, and of their gradients.
    """
    last = len(attention_s) - 1
    hops = [
        Hop(attention_s=of_ranks_s, transfer_s=block_s * (hop < last) + gradients_s * (hop > 0))
        for hop, of_ranks_s in enumerate(attention_s)
    ]
    home = Hop(attention_s=[0.0] * len(attention_s[0]), transfer_s=gradients_s)
    return [*hops, home] if last else hops


def ring_time(hops: Sequence[Hop], *, is_overlapped: bool) -> tuple[RingTime, ...]:
    """Return the time of each rank, when all start at once.

    is_overlapped: a rank attends while messages are under way; otherwise it waits for them first.
    """
    ranks = len(hops[0].attention_s)
    begun_s, communication_s, hidden_s = [0.0] * ranks, [0.0] * ranks, [0.0] * ranks
    for hop in hops:
        meeting = _meeting(begun_s, hop.transfer_s)
        for rank, attention_s in enumerate(hop.attention_s):
            attends_s = begun_s[rank] if is_overlapped else meeting.done_s[rank]
            attended_s = attends_s + attention_s
            # Overlap of attention [attends_s, attended_s] with the incoming message [left_s, came_s].
            beside_s = min(attended_s, meeting.came_s[rank]) - max(attends_s, meeting.left_s[rank])
            communication_s[rank] += hop.transfer_s
            hidden_s[rank] += max(0.0, beside_s)
            begun_s[rank] = max(attended_s, meeting.done_s[rank])
    return tuple(
        RingTime(
            elapsed_s=begun_s[rank],
            attention_s=sum(hop.attention_s[rank] for hop in hops),
            communication_s=communication_s[rank],
            hidden_s=hidden_s[rank],
        )
        for rank in range(ranks)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """When the message to each rank left and arrived, and when the rank was done with both neighbours."""

    left_s: list[float]
    came_s: list[float]
    done_s: list[float]


def _meeting(begun_s: Sequence[float], transfer_s: float) -> _Meeting:
    if not transfer_s:
        return _Meeting(left_s=[*begun_s], came_s=[*begun_s], done_s=[*begun_s])
    # A message leaves when both sender and receiver are ready.
    left_s = [max(begun_s[rank - 1], at_s) for rank, at_s in enumerate(begun_s)]
    came_s = [at_s + transfer_s for at_s in left_s]
    done_s = [max(at_s, came_s[(rank + 1) % len(came_s)]) for rank, at_s in enumerate(came_s)]
    return _Meeting(left_s=left_s, came_s=came_s, done_s=done_s)


# DeepSpeed-Ulysses: all_to_all exchanges a rank's positions of all heads for all positions of its heads.
#
# Source: Jacobs et al. 2023, DeepSpeed Ulysses: System optimizations for enabling training of extreme long sequence
# transformer models, section 3.2.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraffic:
    """What a rank passes to all_to_all in one optimizer step.

    sequences: number of sequences that pass through the model at a time; microbatches: how often that happens in a
    step.
    element_bytes: size of an element of queries, keys and values, of attention's output, and of their gradients.
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
        """Attention's output for the same positions."""
        return self._heads_bytes(self.shape.heads)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Both exchanges of every layer, forward and backward; all are exposed, as nothing is left to compute."""
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


def ulysses_pairs(*, sequence: int, ranks: int) -> Fraction:
    """Return the pairs of query and key that a rank computes in forward, for one sequence, as a mean over all heads.

    Every rank computes the same number: all causal pairs of its share of the heads.
    """
    return Fraction(sequence * (sequence + 1), 2 * ranks)


def paper_forward_elements(shape: Shape, *, ranks: int) -> int:
    """Return the paper's account of the elements that a rank sends in forward for one sequence: 4 N d / P per layer.

    It assumes as many key and value heads as query heads; grouped heads send less.
    """
    return 4 * shape.layers * shape.sequence * shape.width // ranks
