"""What a rank's collectives cost in one step: the bytes that it sends and receives, and their time on a given link.

Bytes are payload on the wire, without headers: Ethernet, IP and TCP add about 5 % at an MTU of 1500.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.cost_models.terms import Collective, Transfer

# How fast collectives go in nccl-tests' terms: algorithm bandwidth, and the bus bandwidth that links are compared by.
#
# The bus factor is a definition: for each collective, what the busiest link must carry under the best algorithm of
# plain sends and receives. It knows no backend, so figures of all backends compare. What a backend really sends is
# `communication.wire_factor`: gloo's reduce sends more than its bus factor says, so its bus bandwidth stays below
# what its links carry; a switch that adds (nccl's NVLS) sends less, so its bus bandwidth may lie above them.


def bus_factor(collective: Collective, ranks: int) -> Fraction:
    """What turns an algorithm bandwidth into a bus bandwidth.

    One rank has the factor of the formula, as in nccl-tests: 0 where it holds n - 1, so that its bus bandwidth is 0,
    and 1 for broadcast, reduce and send.
    Source: nccl-tests, PERFORMANCE.md; gather.cu, scatter.cu and sendrecv.cu for those that it leaves out.

    Raises:
        ValueError: there is no rank.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    share = Fraction(ranks - 1, ranks)
    match collective:
        case "all_reduce":
            return 2 * share
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return share
        case "broadcast" | "reduce" | "send":
            return Fraction(1)


def algorithm_bandwidth(size_bytes: int, elapsed_s: float) -> float:
    """Size over time, in bytes per second.

    size_bytes: of one buffer, by collective:
        all_reduce, broadcast, reduce, send: of a rank's buffer, which is as large on all ranks;
        all_gather: of what a rank receives, all ranks' parts; reduce_scatter: of what a rank gives, all ranks' parts;
        all_to_all: of what a rank gives, its own part with it, which is as large as what it receives;
        gather: of what the root receives, its own part with it; scatter: of what the root gives, likewise.
    This is the tensor that `communication.wire_factor` reads.
    Source: nccl-tests, the column "size": the larger of a rank's two buffers.

    Raises:
        ValueError: the size is below 0, or the time not above 0.
    """
    if size_bytes < 0:
        raise ValueError(f"size_bytes is {size_bytes}; it must be 0 or more")
    if not elapsed_s > 0:
        raise ValueError(f"elapsed_s is {elapsed_s:g}; it must be above 0: time more calls at once")
    return size_bytes / elapsed_s


def bus_bandwidth(collective: Collective, ranks: int, size_bytes: int, elapsed_s: float) -> float:
    """Bytes per second to compare with the hardware's, whatever the collective and the number of ranks.

    size_bytes: as `algorithm_bandwidth` reads it.

    Raises:
        ValueError: there is no rank, the size is below 0, or the time not above 0.
    """
    return algorithm_bandwidth(size_bytes, elapsed_s) * float(bus_factor(collective, ranks))


CommunicationBackend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one rank can send while it receives as much.

    latency_s: from the start of a message to its arrival, without the time of its bytes.

    Raises:
        ValueError: the bandwidth is not above 0, or the latency is below 0.
    """

    bandwidth_bytes_per_second: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_second > 0:
            raise ValueError(f"bandwidth_bytes_per_second is {self.bandwidth_bytes_per_second:g}; it must be above 0")
        if not self.latency_s >= 0:
            raise ValueError(f"latency_s is {self.latency_s:g}; it must be 0 or more")


def wire_factor(collective: Collective, ranks: int, backend: CommunicationBackend) -> Fraction:
    """Bytes that the busiest rank sends, or receives if that is more, for each byte of the tensor; 0 where it is alone.

    The tensor is what all_reduce, broadcast and reduce leave on a rank, what all_gather and gather bring together, what
    reduce_scatter, scatter and all_to_all take in, and what send sends. The root of gather and of gloo's reduce
    receives more than anybody sends; elsewhere the busiest rank sends as much as any receives, or more.
    This is what is really sent, and so knows the backend; a bus bandwidth's factor is a definition, and is in `bus`.
    gloo's reduce_scatter is an all_reduce of the whole input in torch 2.11 to 2.13, its broadcast a binomial tree,
    whose root sends once a level, and its reduce a ring's reduce_scatter whose parts the root gathers.
    gloo's factors are counted on a link, in torch 2.13; nccl's are those of its rings, from source: its other
    algorithms may send less (NVLS, where the switch adds).
    Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms; gloo, reduce.cc, gather.cc, scatter.cc;
    torch, nccl.cpp (gather and scatter are sends from and to the root, all at once).

    Raises:
        ValueError: there is no rank.
    """
    if _is_alone(ranks):
        return Fraction(0)
    share = Fraction(ranks - 1, ranks)
    match collective:
        case "all_reduce":
            return 2 * share
        case "reduce_scatter":
            return 2 * share if backend == "gloo" else share
        case "all_gather" | "all_to_all" | "gather" | "scatter":
            return share
        case "broadcast":
            return Fraction(_levels(ranks)) if backend == "gloo" else Fraction(1)
        case "reduce":
            return 2 * share if backend == "gloo" else Fraction(1)
        case "send":
            return Fraction(1)


def wire_messages(collective: Collective, ranks: int, backend: CommunicationBackend) -> int:
    """Messages that follow each other on the longest way through one call: how often it pays the latency.

    Messages that a rank sends to several others, or receives from them, travel at once and count as one.

    Raises:
        ValueError: there is no rank.
    """
    if _is_alone(ranks):
        return 0
    match collective:
        case "all_reduce":
            return 2 * (ranks - 1)
        case "reduce_scatter":
            return 2 * (ranks - 1) if backend == "gloo" else ranks - 1
        case "all_gather":
            return ranks - 1
        case "broadcast":
            return _levels(ranks) if backend == "gloo" else ranks - 1
        case "reduce":
            return ranks if backend == "gloo" else ranks - 1
        case "all_to_all" | "gather" | "scatter" | "send":
            return 1


def wire_bytes(transfer: Transfer, ranks: int, backend: CommunicationBackend) -> int:
    """Bytes that the busiest rank sends or receives in one step for these collectives, rounded up.

    ranks: those of the transfer's mesh axis.

    Raises:
        ValueError: there is no rank.
    """
    return _wire_bytes(transfer.collective, transfer.payload_bytes, ranks, backend)


def collective_time_s(
    collective: Collective,
    payload_bytes: int,
    ranks: int,
    link: Link,
    backend: CommunicationBackend,
    *,
    calls: int = 1,
) -> float:
    """Time of collectives, one after another, when all ranks are ready: latency x messages + bytes / bandwidth.

    payload_bytes: the tensor's bytes, as `wire_factor` reads it, over all calls.
    calls: how many collectives the payload is divided into; each pays the latency of its messages.
    Assumes a link of its own for each rank, and that the busiest rank never waits for another: an oversubscribed switch
    is not covered, nor a tree whose ranks pass on only what they hold whole (gloo's broadcast from 4 ranks on).
    Source: Hockney 1994, The communication challenge for MPP.

    Raises:
        ValueError: there is no rank.
    """
    messages = calls * wire_messages(collective, ranks, backend)
    bytes_s = _wire_bytes(collective, payload_bytes, ranks, backend) / link.bandwidth_bytes_per_second
    return messages * link.latency_s + bytes_s


def transfer_time_s(transfer: Transfer, ranks: int, link: Link, backend: CommunicationBackend) -> float:
    """Time of these collectives in one step, as `collective_time_s` has it.

    Raises:
        ValueError: there is no rank.
    """
    return collective_time_s(transfer.collective, transfer.payload_bytes, ranks, link, backend, calls=transfer.calls)


def link_of(transfer: Transfer, ranks: int, backend: CommunicationBackend, elapsed_s: float) -> Link:
    """The link on which one call of this transfer takes the time that was measured; its latency is in the bandwidth.

    Raises:
        ValueError: nothing was sent, or in no time, so no bandwidth can be told.
    """
    sent_bytes = wire_bytes(transfer, ranks, backend)
    if sent_bytes == 0 or not elapsed_s > 0:
        raise ValueError(
            f"{transfer.collective} of {transfer.payload_bytes} bytes on {ranks} ranks in {elapsed_s:g} s tells no"
            " bandwidth; measure a transfer of at least 2 ranks and 1 byte"
        )
    return Link(bandwidth_bytes_per_second=sent_bytes / elapsed_s)


def _wire_bytes(collective: Collective, payload_bytes: int, ranks: int, backend: CommunicationBackend) -> int:
    exact = payload_bytes * wire_factor(collective, ranks, backend)
    return -(-exact.numerator // exact.denominator)


def _is_alone(ranks: int) -> bool:
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    return ranks == 1


def _levels(ranks: int) -> int:
    """Depth of a binomial tree: the logarithm to base 2, rounded up."""
    return (ranks - 1).bit_length()


# The bytes that torch's Flight Recorder counts for the transfers of a step, so that both can stand side by side.


def recorded_bytes(transfers: Iterable[Transfer], backend: CommunicationBackend) -> dict[Collective, int]:
    """Payload of one step, by the collective that the backend runs for each.

    gloo's reduce_scatter is an all_reduce of the whole input, in torch 2.11 to 2.13.
    """
    counted: Counter[Collective] = Counter()
    for transfer in transfers:
        is_reduced_whole = backend == "gloo" and transfer.collective == "reduce_scatter"
        counted["all_reduce" if is_reduced_whole else transfer.collective] += transfer.payload_bytes
    return dict(counted)
