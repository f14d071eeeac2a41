"""A counted wire: the ranks of a group exchange messages in rounds, and each counts what it sends and receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

NOTHING: Mapping[int, Tensor] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What one rank counted, in payload without headers.

    rounds: all of them, also those in which it had no message.
    peak_bytes: the most that it sent, or received, in one round.
    """

    rounds: int = 0
    sent_bytes: int = 0
    peak_bytes: int = 0


class Wire:
    """What a rank sends and receives through: rounds, in which all messages of a rank travel at once.

    All ranks of the group must go through the same rounds, and each message must be named by both its ends. Tensors
    are contiguous and of the group's device. Ranks are those within the group.

    On NCCL the group must have been through a collective of all its ranks before, because a round may leave ranks
    out, and a rank must have set its current device.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = group.rank()
        self.ranks = group.size()
        self.traffic = Traffic()
        self._group = group

    def exchange(self, *, send: Mapping[int, Tensor] = NOTHING, receive: Mapping[int, Tensor] = NOTHING) -> None:
        """One round: send tensors to ranks, and receive tensors from ranks into place.

        On the host it returns when all is sent and received; on a GPU the current stream waits for it. An empty
        tensor is no message: both ends know that it is empty.
        """
        sent = {peer: tensor for peer, tensor in send.items() if tensor.numel()}
        received = {peer: tensor for peer, tensor in receive.items() if tensor.numel()}
        # Posted together: a rank that waited for its own sending before it received might wait for ever. And receiving
        # first: gloo would else let ranks that send to each other do so in turn, at down to half the link's speed.
        messages = [
            dist.P2POp(dist.irecv, tensor, group=self._group, group_peer=peer) for peer, tensor in received.items()
        ]
        messages += [
            dist.P2POp(dist.isend, tensor, group=self._group, group_peer=peer) for peer, tensor in sent.items()
        ]
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()
        self._count(_bytes(sent), _bytes(received))

    def sit_out(self) -> None:
        """One round in which other ranks have messages, and this one has none."""
        self._count(0, 0)

    def _count(self, sent_bytes: int, received_bytes: int) -> None:
        before = self.traffic
        self.traffic = Traffic(
            rounds=before.rounds + 1,
            sent_bytes=before.sent_bytes + sent_bytes,
            peak_bytes=max(before.peak_bytes, sent_bytes, received_bytes),
        )


def _bytes(messages: Mapping[int, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in messages.values())
