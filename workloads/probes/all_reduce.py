"""Probe `all_reduce`: times each all-reduce algorithm on vectors of several sizes, and counts what it sends.

The textbook algorithms post their messages from Python, so small vectors also show the cost of posting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.core.collectives import Buffers
from workloads.core.mesh import DTYPES
from workloads.probes.collectives import check
from workloads.probes.cost_model import Algorithm, refusal
from workloads.probes.spec import chosen_algorithms, scratch_elements_of_all, vector_sizes
from workloads.protocols import Elapsed, ProbeSetup, Quantity, Record, Stopwatch
from workloads.spec import ELEMENT_BYTES

# A counted wire: the ranks of a group exchange messages in rounds, and each counts what it sends and receives.

NOTHING: Mapping[int, Tensor] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTraffic:
    """The traffic of one rank, as payload without headers.

    rounds: all rounds, including those in which it had no message.
    peak_bytes: the most bytes that it sent, or received, in one round.
    """

    rounds: int = 0
    sent_bytes: int = 0
    peak_bytes: int = 0


class MessageRounds:
    """Sends and receives in rounds, in which all messages of a rank travel at once.

    All ranks of the group must go through the same rounds, and both ends must name each message. Tensors are contiguous
    and on the group's device. Rank numbers are those within the group.

    On NCCL the group must first have run a collective of all its ranks, because a round may leave ranks out, and each
    rank must have set its current device.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank = group.rank()
        self.ranks = group.size()
        self.traffic = CountedTraffic()
        self._group = group

    def exchange(self, *, send: Mapping[int, Tensor] = NOTHING, receive: Mapping[int, Tensor] = NOTHING) -> None:
        """Run one round: send tensors to ranks, and receive tensors from ranks in place.

        On the host it returns when everything is sent and received; on a GPU the current stream waits. An empty tensor
        is not sent: both ends know that it is empty. Without messages, only the round counts.
        """
        sent = {peer: tensor for peer, tensor in send.items() if tensor.numel()}
        received = {peer: tensor for peer, tensor in receive.items() if tensor.numel()}
        # Post all messages together: a rank that waits for its send before it receives may wait for ever. Post receives
        # first: otherwise gloo lets ranks that send to each other do so in turn, at as little as half the link's speed.
        messages = [
            dist.P2POp(dist.irecv, tensor, group=self._group, group_peer=peer) for peer, tensor in received.items()
        ]
        messages += [
            dist.P2POp(dist.isend, tensor, group=self._group, group_peer=peer) for peer, tensor in sent.items()
        ]
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()
        sent_bytes, received_bytes = (sum(tensor.nbytes for tensor in own.values()) for own in (sent, received))
        self.traffic = CountedTraffic(
            rounds=self.traffic.rounds + 1,
            sent_bytes=self.traffic.sent_bytes + sent_bytes,
            peak_bytes=max(self.traffic.peak_bytes, sent_bytes, received_bytes),
        )


# The textbook all-reduce algorithms: every rank holds a vector, and in the end every rank holds the sum of all.
#
# Each algorithm adds in place, in rounds of messages, and is written for one rank. `workloads.probes.cost_model` has
# its rounds and bytes. After each algorithm all ranks hold the same bits, whatever the numbers are; the remarks below
# on the order of additions say why.
#
# vector: one dimension, contiguous, of the same size on all ranks.
# scratch: space for received elements that are not added yet, of the vector's type; see `scratch_elements` of the spec.
# Source: Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH; Patarasuk
# and Yuan 2009, Bandwidth optimal all-reduce algorithms.

SERVER = 0


def all_reduce(algorithm: Algorithm, vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Replace the vector of each rank by the sum over all ranks.

    Raises:
        ValueError: the algorithm cannot run on this many ranks.
    """
    if (reason := refusal(algorithm, wire.ranks)) is not None:
        raise ValueError(reason)
    if wire.ranks > 1:
        _ALGORITHMS[algorithm](vector, scratch, wire)


def sequential(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Pass a partial sum from the first rank to the last, then the result back.

    Only the last rank computes the whole sum, in the order of the ranks; all others copy it.
    """
    rank, last = wire.rank, wire.ranks - 1
    received = scratch[: len(vector)]
    # reduce: each rank adds its own vector to the partial sum, and passes it on
    for sender in range(last):
        if rank == sender:
            wire.exchange(send={sender + 1: vector})
        elif rank == sender + 1:
            wire.exchange(receive={sender: received})
            vector += received
        else:
            wire.exchange()
    # broadcast: the result travels back
    for sender in range(last, 0, -1):
        if rank == sender:
            wire.exchange(send={sender - 1: vector})
        elif rank == sender - 1:
            wire.exchange(receive={sender: vector})
        else:
            wire.exchange()


def ring(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Pass chunks, one per rank, round the ring all at once: first to sum them, then to copy them.

    Each chunk is summed along one path through the ranks; all others copy it from the end of the path.
    """
    rank, ranks = wire.rank, wire.ranks
    previous, right = (rank - 1) % ranks, (rank + 1) % ranks
    chunks = torch.tensor_split(vector, ranks)
    # reduce-scatter: each rank adds its own part to the arriving chunk, and passes it on; at the end rank r holds the
    # whole sum of chunk r + 1
    for step in range(ranks - 1):
        sent, summed = chunks[(rank - step) % ranks], chunks[(rank - step - 1) % ranks]
        received = scratch[: len(summed)]
        wire.exchange(send={right: sent}, receive={previous: received})
        summed += received
    # all-gather: each whole chunk goes round again, and each rank keeps a copy
    for step in range(ranks - 1):
        sent, copied = chunks[(rank + 1 - step) % ranks], chunks[(rank - step) % ranks]
        wire.exchange(send={right: sent}, receive={previous: copied})


def all_to_all(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Send the whole vector to all other ranks, and add up the vectors of all.

    Every rank adds in the order of the ranks, including its own vector: otherwise their sums would differ in rounding.
    """
    peers = [peer for peer in range(wire.ranks) if peer != wire.rank]
    received = dict(zip(peers, _rows(scratch, len(peers), len(vector)), strict=True))
    wire.exchange(send=dict.fromkeys(peers, vector), receive=received)
    # reduce: the same order on each rank
    total, *more = [vector if peer == wire.rank else received[peer] for peer in range(wire.ranks)]
    for contribution in more:
        total += contribution
    vector.copy_(total)


def recursive_doubling(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Exchange and add partial sums in pairs, at doubling distances: 1, 2, 4, ...

    After the round at distance d the 2 d ranks of a block hold the sum of their block. Both ranks of a pair add the
    same two numbers, in either order, which gives the same floating-point result.
    """
    received = scratch[: len(vector)]
    for distance in _distances(wire.ranks):
        partner = wire.rank ^ distance
        wire.exchange(send={partner: vector}, receive={partner: received})
        vector += received


def recursive_halving(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Share out the sums in pairs at halving distances, then copy the results at doubling distances.

    Each element is summed on one rank, and all others copy it.
    """
    halvings = []
    part = vector
    # reduce-scatter by recursive halving: each rank of a pair sends half of its part away, and sums the half that it
    # keeps
    for distance in reversed(_distances(wire.ranks)):
        partner = wire.rank ^ distance
        first, second = torch.tensor_split(part, 2)
        own_half, other_half = (first, second) if wire.rank & distance == 0 else (second, first)
        received = scratch[: len(own_half)]
        wire.exchange(send={partner: other_half}, receive={partner: received})
        own_half += received
        halvings.append((partner, own_half, other_half))
        part = own_half
    # all-gather by recursive doubling: the same way back, with each half complete
    for partner, own_half, other_half in reversed(halvings):
        wire.exchange(send={partner: own_half}, receive={partner: other_half})


def parameter_server(vector: Tensor, scratch: Tensor, wire: MessageRounds) -> None:
    """Send all vectors to the server, which is a rank like the others and returns the sum to all.

    Only the server adds, in the order of the ranks; all others copy.
    """
    workers = [peer for peer in range(wire.ranks) if peer != SERVER]
    if wire.rank != SERVER:
        wire.exchange(send={SERVER: vector})  # push
        wire.exchange(receive={SERVER: vector})  # pull
        return
    received = _rows(scratch, len(workers), len(vector))
    wire.exchange(receive=dict(zip(workers, received, strict=True)))
    for contribution in received:
        vector += contribution
    wire.exchange(send=dict.fromkeys(workers, vector))


_ALGORITHMS: Mapping[Algorithm, Callable[[Tensor, Tensor, MessageRounds], None]] = {
    "sequential": sequential,
    "ring": ring,
    "all_to_all": all_to_all,
    "recursive_doubling": recursive_doubling,
    "recursive_halving": recursive_halving,
    "parameter_server": parameter_server,
}


def _distances(ranks: int) -> list[int]:
    """Return 1, 2, 4, ... up to half of the ranks, whose number is a power of two."""
    return [2**level for level in range(ranks.bit_length() - 1)]


def _rows(scratch: Tensor, count: int, elements: int) -> tuple[Tensor, ...]:
    """Return space for this many vectors, one after the other."""
    return scratch[: count * elements].view(count, elements).unbind()


Contestant = Algorithm | Literal["library"]


def probe(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time each algorithm on each size, check its result, and record it.

    Raises:
        RuntimeError: a result is wrong.
    """
    group = mesh.get_group("data")
    # The library first: on NCCL, the first operation of a group must involve all its ranks.
    contestants: tuple[Contestant, ...] = ("library", *chosen_algorithms(setup))
    sizes = vector_sizes(setup)
    zeros = partial(torch.zeros, dtype=DTYPES[setup.precision], device=setup.device)
    longest = zeros(sizes[-1] // ELEMENT_BYTES[setup.precision])
    scratch = zeros(scratch_elements_of_all(setup))
    for size_bytes in sizes:
        vector = longest[: size_bytes // ELEMENT_BYTES[setup.precision]]
        for algorithm in contestants:
            call = partial(_sum, algorithm, vector, scratch, group)
            vector.zero_()  # Zeros stay zeros, however often they are summed.
            elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
            figures: dict[Quantity, float | Elapsed] = {"collective_s": elapsed}
            traffic = check(
                "all_reduce",
                call,
                Buffers(give=vector, take=vector),
                rank=group.rank(),
                ranks=group.size(),
                text=f"all_reduce by {algorithm} of {size_bytes} bytes",
            )
            if traffic is not None:
                figures["rounds"], figures["sent_bytes"] = traffic.rounds, traffic.sent_bytes
                figures["peak_node_bytes"] = traffic.peak_bytes
            record(figures, collective="all_reduce", algorithm=algorithm, size=str(size_bytes))


def _sum(algorithm: Contestant, vector: Tensor, scratch: Tensor, group: dist.ProcessGroup) -> CountedTraffic | None:
    """Run one call, and return its traffic if that can be counted."""
    if algorithm == "library":
        dist.all_reduce(vector, group=group)
        return None
    wire = MessageRounds(group)
    all_reduce(algorithm, vector, scratch, wire)
    return wire.traffic
