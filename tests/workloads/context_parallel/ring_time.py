"""Time of attention on a ring, predicted hop by hop; what a real ring takes is compared with it.

On a ring a rank attends to the block that it holds while it passes that block on and receives the next; then neighbours
wait for each other. With equal work and n ranks, forward takes (n - 1) max(attention, transfer) + attention: all of the
communication is hidden where attention takes longer, and the share attention / transfer where the transfer does.
Assumes that each rank has a link of its own, and that communication takes nothing from computation.
Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
