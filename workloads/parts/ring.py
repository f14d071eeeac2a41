"""A ring of ranks: each sends to the next while it receives from the one before, and may compute meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A tensor on its way to the next rank, and another on its way here.

    sent: held until it has left.
    """

    works: Sequence[dist.Work]
    sent: Tensor
    received: Tensor

    def wait(self) -> Tensor:
        """What the rank before has sent, when both are through; on a GPU the current stream waits.

        Call it once: gloo would wait for another message.
        """
        for work in self.works:
            work.wait()
        return self.received


class Ring:
    """A rank's place in the ring of its group, and the bytes that it has sent there.

    All ranks pass on tensors of equal sizes in the same order. On NCCL a rank must have set its current device.
    """

    def __init__(self, group: dist.ProcessGroup, *, is_overlapped: bool) -> None:
        """is_overlapped: messages travel while the rank computes; else it waits for each before it goes on."""
        self.rank = group.rank()
        self.ranks = group.size()
        self.sent_bytes = 0
        self._group = group
        self._is_overlapped = is_overlapped

    def circulate(self, tensor: Tensor) -> Iterator[Tensor]:
        """The tensor of each rank, this one's first, then that of the rank before, and so on.

        Each leaves while the caller works with it, and must not be changed.
        """
        for _ in range(self.ranks - 1):
            passing = self.pass_on(tensor)
            yield tensor
            tensor = passing.wait()
        yield tensor

    def pass_on(self, tensor: Tensor) -> Passing:
        """Begin to send a contiguous tensor, and to receive such a one. A rank that is alone receives its own."""
        if self.ranks == 1:
            return Passing(works=(), sent=tensor, received=tensor)
        received = torch.empty_like(tensor)
        # Receiving first: gloo would else let ranks that send to each other do so in turn, at down to half the speed.
        messages = [
            dist.P2POp(dist.irecv, received, group=self._group, group_peer=(self.rank - 1) % self.ranks),
            dist.P2POp(dist.isend, tensor, group=self._group, group_peer=(self.rank + 1) % self.ranks),
        ]
        self.sent_bytes += tensor.nbytes
        passing = Passing(works=dist.batch_isend_irecv(messages), sent=tensor, received=received)
        if self._is_overlapped:
            return passing
        return Passing(works=(), sent=tensor, received=passing.wait())
