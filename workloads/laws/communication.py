"""What a rank's collectives cost in one step: the bytes that it sends, and their time on a given link.

Bytes are payload on the wire, without headers: Ethernet, IP and TCP add about 5 % at an MTU of 1500.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.laws.terms import Collective, Transfer

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
    """Bytes that the busiest rank sends for each byte of the tensor; 0 where it is alone.

    The tensor is what all_reduce and broadcast leave on each rank, what all_gather gathers, what reduce_scatter and
    all_to_all take in, and what send sends.
    For nccl's rings this is also the factor of nccl-tests' bus bandwidth. gloo's reduce_scatter is an all_reduce of
    the whole input in torch 2.11 to 2.13, and its broadcast a binomial tree, whose root sends once a level.
    Source: Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms; nccl-tests, PERFORMANCE.md.

    Raises:
        ValueError: there is no rank.
    """
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    if ranks == 1:
        return Fraction(0)
    share = Fraction(ranks - 1, ranks)
    match collective:
        case "all_reduce":
            return 2 * share
        case "reduce_scatter":
            return 2 * share if backend == "gloo" else share
        case "all_gather" | "all_to_all":
            return share
        case "broadcast":
            return Fraction(_levels(ranks)) if backend == "gloo" else Fraction(1)
        case "send":
            return Fraction(1)


def wire_messages(collective: Collective, ranks: int, backend: CommunicationBackend) -> int:
    """Messages that follow each other on the longest way through one call: how often it pays the latency."""
    if ranks == 1:
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
        case "all_to_all" | "send":
            return 1


def wire_bytes(transfer: Transfer, ranks: int, backend: CommunicationBackend) -> int:
    """Bytes that the busiest rank sends in one step for these collectives, rounded up.

    ranks: those of the transfer's mesh axis.

    Raises:
        ValueError: there is no rank.
    """
    exact = transfer.payload_bytes * wire_factor(transfer.collective, ranks, backend)
    return -(-exact.numerator // exact.denominator)


def transfer_time_s(
    transfer: Transfer, ranks: int, link: Link, backend: CommunicationBackend, *, calls: int = 1
) -> float:
    """Time of these collectives in one step, one after another, when all ranks are ready.

    calls: how many collectives the payload is divided into; each pays the latency of its messages.
    Assumes a link of its own for each rank, and that the busiest rank never waits for another: an oversubscribed switch
    is not covered, nor a tree whose ranks pass on only what they hold whole (gloo's broadcast from 4 ranks on).

    Raises:
        ValueError: there is no rank.
    """
    messages = calls * wire_messages(transfer.collective, ranks, backend)
    bytes_s = wire_bytes(transfer, ranks, backend) / link.bandwidth_bytes_per_second
    return messages * link.latency_s + bytes_s


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


def _levels(ranks: int) -> int:
    """Depth of a binomial tree: the logarithm to base 2, rounded up."""
    return (ranks - 1).bit_length()
