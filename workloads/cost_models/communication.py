"""Cost model of collectives: bytes on the wire, bandwidths as nccl-tests defines them, time on a link, sweeps.

Elements of a call are counted as in nccl-tests: GetCollByteCount of src/*.cu and TimeTest of src/common.cu.
Wire bytes are payload without headers: Ethernet, IP and TCP add about 5 % at an MTU of 1500.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal, get_args

from workloads.cost_models.terms import Collective, Transfer

# nccl-tests divides size by time (algorithm bandwidth) and multiplies by the bus factor (bus bandwidth). Its size is
# the larger of a rank's two buffers, which is the tensor that `wire_factor` refers to.
#
# The bus factor is a definition: the load of the busiest link under the best algorithm of plain sends and receives. It
# is the same for every backend, so that figures of all backends compare. What a backend really sends is `wire_factor`:
# gloo's reduce sends more than its bus factor, so its bus bandwidth stays below the bandwidth of its links; a switch
# that adds (NCCL's NVLS) sends less, so its bus bandwidth may exceed it.


def bus_factor(collective: Collective, ranks: int) -> Fraction:
    """Return the factor that turns an algorithm bandwidth into a bus bandwidth.

    One rank gets the value of the formula, as in nccl-tests: 0 where the formula contains n - 1, so that its bus
    bandwidth is 0, and 1 for broadcast, reduce and send.
    Source: nccl-tests, PERFORMANCE.md; gather.cu, scatter.cu and sendrecv.cu for the collectives that it leaves out.

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


CommunicationBackend = Literal["gloo", "nccl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A rank's full-duplex link: it sends at this bandwidth while it receives at the same bandwidth.

    latency_s: time from the start of a message to its arrival, without the time of its bytes.

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
    """Return the wire bytes of the busiest rank per byte of the tensor; 0 for a rank that is alone.

    Wire bytes are what a rank sends, or what it receives if that is more.
    The tensor is the result on a rank for all_reduce, broadcast and reduce; the collected result for all_gather and
    gather; the whole input for reduce_scatter, scatter and all_to_all; the message for send. The root of gather and of
    gloo's reduce receives more than any rank sends; in all other collectives the busiest rank sends at least as much as
    any rank receives.
    The factor counts what a backend really sends; the definition behind bus bandwidth is `bus_factor`.
    In torch 2.11 to 2.13, gloo's reduce_scatter is an all_reduce of the whole input, its broadcast a binomial tree
    whose root sends once per level, and its reduce a ring reduce_scatter whose parts the root gathers.
    gloo's factors were counted on a link, in torch 2.13. nccl's are those of its ring algorithms, read from source; its
    other algorithms may send less (NVLS, where the switch adds).
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
    """Return the consecutive messages on the longest path through one call: how often it pays the latency.

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
    """Return the bytes that the busiest rank sends or receives in one step for this transfer, rounded up.

    ranks: size of the transfer's mesh axis.

    Raises:
        ValueError: there is no rank.
    """
    return ceil(transfer.payload_bytes * wire_factor(transfer.collective, ranks, backend))


def collective_time_s(
    collective: Collective,
    payload_bytes: int,
    ranks: int,
    link: Link,
    backend: CommunicationBackend,
    *,
    calls: int = 1,
) -> float:
    """Return the time of consecutive collectives when all ranks are ready: latency x messages + bytes / bandwidth.

    payload_bytes: size of the tensor as in `wire_factor`, over all calls.
    calls: number of collectives that share the payload; each pays the latency of its messages.
    Assumes that each rank has a link of its own and that the busiest rank never waits for another. Not covered: an
    oversubscribed switch, and a tree whose ranks forward a tensor only when they hold all of it (gloo's broadcast from
    4 ranks on).
    Source: Hockney 1994, The communication challenge for MPP.

    Raises:
        ValueError: there is no rank.
    """
    messages = calls * wire_messages(collective, ranks, backend)
    sent_bytes = ceil(payload_bytes * wire_factor(collective, ranks, backend))
    return messages * link.latency_s + sent_bytes / link.bandwidth_bytes_per_second


def transfer_time_s(transfer: Transfer, ranks: int, link: Link, backend: CommunicationBackend) -> float:
    """Return the time of this transfer in one step; see `collective_time_s`."""
    return collective_time_s(transfer.collective, transfer.payload_bytes, ranks, link, backend, calls=transfer.calls)


def _is_alone(ranks: int) -> bool:
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; it must be 1 or more")
    return ranks == 1


def _levels(ranks: int) -> int:
    """Return the depth of a binomial tree: the logarithm to base 2, rounded up."""
    return (ranks - 1).bit_length()


def recorded_bytes(transfers: Iterable[Transfer], backend: CommunicationBackend) -> dict[Collective, int]:
    """Return the payload that torch's Flight Recorder counts in one step, by the collective that the backend runs.

    gloo's reduce_scatter is an all_reduce of the whole input, in torch 2.11 to 2.13.
    """
    bytes_of: Counter[Collective] = Counter()
    for transfer in transfers:
        is_reduced_whole = backend == "gloo" and transfer.collective == "reduce_scatter"
        bytes_of["all_reduce" if is_reduced_whole else transfer.collective] += transfer.payload_bytes
    return dict(bytes_of)


COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
IN_PLACE: frozenset[Collective] = frozenset({"all_reduce", "broadcast", "reduce"})
"""Collectives whose result overwrites the input, as in torch.distributed."""

UNDIVIDED: frozenset[Collective] = IN_PLACE | {"send"}
"""Collectives that move the full buffer; in the others each rank has a shard of it."""

ROOT = 0
"""Rank that gather and reduce collect on, and that scatter and broadcast start from."""

SHARD_BYTES = 16
"""A rank's shard of a buffer is a multiple of this size; the remainder is not moved."""

CHECKED_AT_ONCE = 2**16
"""Elements of a result that are compared at a time."""

CHECK_BYTES = 8 * 8 * CHECKED_AT_ONCE
"""Upper bound of what the comparison holds: eight int64 for each element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Elements of one call, on the rank that has most: the root where there is one.

    give: elements of the input. take: elements of the result. buffers: both together, counted once where they share a
    buffer.
    """

    give: int
    take: int
    buffers: int

    @property
    def size(self) -> int:
        """Elements of what nccl-tests prints as size: the larger buffer."""
        return max(self.give, self.take)


def counts(collective: Collective, size_bytes: int, ranks: int, element_bytes: int) -> Counts:
    """Return what a call of the requested size moves: never more, and less if the ranks do not divide it."""
    full = size_bytes // element_bytes
    multiple = SHARD_BYTES // element_bytes
    shard = full // ranks // multiple * multiple
    match collective:
        case "all_reduce" | "broadcast" | "reduce":
            return Counts(give=full, take=full, buffers=full)
        case "send":
            return Counts(give=full, take=full, buffers=2 * full)
        case "all_gather" | "gather":
            return Counts(give=shard, take=ranks * shard, buffers=(ranks + 1) * shard)
        case "reduce_scatter" | "scatter":
            return Counts(give=ranks * shard, take=shard, buffers=(ranks + 1) * shard)
        case "all_to_all":
            return Counts(give=ranks * shard, take=ranks * shard, buffers=2 * ranks * shard)


def held_elements(collective: Collective, counts: Counts, rank: int) -> int:
    """Return the elements that a rank holds; for gather and scatter only the root holds a shard and the full buffer."""
    if rank != ROOT and collective in ("gather", "scatter"):
        return min(counts.give, counts.take)
    return counts.buffers


def least_bytes(collective: Collective, ranks: int, element_bytes: int) -> int:
    """Return the smallest size that moves anything: one element, or the smallest shard of each rank."""
    return element_bytes if collective in UNDIVIDED else ranks * SHARD_BYTES


def sweep(min_bytes: int, max_bytes: int, factor: int) -> tuple[int, ...]:
    """Return the requested sizes, ascending; none if the first is too large."""
    sizes = []
    size_bytes = min_bytes
    while size_bytes <= max_bytes:
        sizes.append(size_bytes)
        size_bytes *= factor
    return tuple(sizes)
