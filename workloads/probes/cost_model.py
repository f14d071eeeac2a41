"""Cost models of the probes: textbook all-reduce algorithms, FLOPs of a matrix product, bytes of a copy.

All-reduce: n ranks each hold a vector of S bytes and need the sum of all. A step is one round, in which messages travel
at once:
    sequential: a partial sum travels 0 -> 1 -> ... -> n - 1, then the result travels back; 2 (n - 1) steps of S.
    ring: n chunks go round, summed in n - 1 steps and copied in n - 1; each rank sends one chunk a step. The chunks are
        those of torch.tensor_split: the first (count mod n) have one element more than the others.
    all_to_all: each rank sends its whole vector to all others; 1 step.
    recursive_doubling: pairs exchange all that they have summed, S, at distances 1, 2, ..., n / 2; log2 n steps.
    recursive_halving: a reduce-scatter at distances n / 2, ..., 2, 1, then an all-gather at distances 1, 2, ..., n / 2.
        A rank's range of elements [lo, hi) is cut at lo + (hi - lo + 1) // 2, so that the first half has the odd
        element; of the pair, the rank whose bit of the distance is 0 keeps the first half and sends the second.
    parameter_server: all send S to rank 0, which sends the sum to all; 2 steps.
Source: Thakur, Rabenseifner and Gropp 2005, Optimization of collective communication operations in MPICH (recursive
doubling and halving); Patarasuk and Yuan 2009, Bandwidth optimal all-reduce algorithms (ring).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from workloads.cost_models.communication import Link

Algorithm = Literal["sequential", "ring", "all_to_all", "recursive_doubling", "recursive_halving", "parameter_server"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one all-reduce.

    peak_node_bytes: the most bytes that one rank sends, or receives, in one step.
    total_bytes: sent by all ranks in all steps.
    critical_bytes: the most bytes that one rank sends, or receives, in each step, summed over the steps; this
    determines the time.
    """

    steps: int
    peak_node_bytes: int
    total_bytes: int
    critical_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOrder:
    """Growth of a cost with the number of ranks n, for vectors of one size: S = 1, so that O(1/n) means S / n."""

    steps: str
    peak_node: str
    total: str


ORDERS: dict[Algorithm, CostOrder] = {
    "sequential": CostOrder(steps="O(n)", peak_node="O(1)", total="O(n)"),
    "ring": CostOrder(steps="O(n)", peak_node="O(1/n)", total="O(n)"),
    "all_to_all": CostOrder(steps="O(1)", peak_node="O(n)", total="O(n^2)"),
    "recursive_doubling": CostOrder(steps="O(log n)", peak_node="O(1)", total="O(n log n)"),
    "recursive_halving": CostOrder(steps="O(log n)", peak_node="O(1)", total="O(n)"),
    "parameter_server": CostOrder(steps="O(1)", peak_node="O(n)", total="O(n)"),
}


def refusal(algorithm: Algorithm, ranks: int) -> str | None:
    """Return why the algorithm cannot run on this many ranks, and on how many it can; None if it can run."""
    if ranks < 1:
        return f"ranks is {ranks}; it must be 1 or more"
    if algorithm in ("recursive_doubling", "recursive_halving") and ranks & (ranks - 1):
        fewer = 1 << (ranks.bit_length() - 1)
        return f"{algorithm} needs a power of two of ranks and there are {ranks}; use {fewer} or {2 * fewer}, or ring"
    return None


def cost(algorithm: Algorithm, ranks: int, element_count: int, element_bytes: int) -> Cost:
    """Return steps and bytes of one all-reduce, exact for vectors that the ranks do not divide; one rank pays nothing.

    Raises:
        ValueError: the algorithm refuses the ranks, or the vector's size is invalid.
    """
    if (reason := refusal(algorithm, ranks)) is not None:
        raise ValueError(reason)
    if element_count < 0 or element_bytes < 1:
        raise ValueError(
            f"a vector cannot have {element_count} elements of {element_bytes} bytes; give 0 elements or more,"
            " of 1 byte or more"
        )
    if ranks == 1:
        return Cost(steps=0, peak_node_bytes=0, total_bytes=0, critical_bytes=0)
    levels = ranks.bit_length() - 1
    # busiest: elements that the busiest rank sends, or receives, in each step.
    # vectors: how many whole vectors' worth of elements all ranks together send.
    match algorithm:
        case "sequential":
            busiest, vectors = [element_count] * (2 * (ranks - 1)), 2 * (ranks - 1)
        case "ring":
            # All chunks travel in every step, each from a different rank; the first chunk is the largest.
            busiest, vectors = [-(-element_count // ranks)] * (2 * (ranks - 1)), 2 * (ranks - 1)
        case "all_to_all":
            busiest, vectors = [(ranks - 1) * element_count], ranks * (ranks - 1)
        case "recursive_doubling":
            busiest, vectors = [element_count] * levels, ranks * levels
        case "recursive_halving":
            # ceil(ceil(x / 2) / 2) = ceil(x / 4), and so on for each level.
            halves = [-(-element_count // 2**level) for level in range(1, levels + 1)]
            busiest, vectors = halves + halves[::-1], 2 * (ranks - 1)
        case "parameter_server":
            busiest, vectors = [(ranks - 1) * element_count] * 2, 2 * (ranks - 1)
    return Cost(
        steps=len(busiest),
        peak_node_bytes=max(busiest) * element_bytes,
        total_bytes=vectors * element_count * element_bytes,
        critical_bytes=sum(busiest) * element_bytes,
    )


def time_s(cost: Cost, link: Link) -> float:
    """Return the time of one all-reduce whose ranks are all ready, each with a link of its own.

    Each step waits for its busiest rank, because messages to or from one rank share its link. Additions take no time.
    """
    return link.latency_s * cost.steps + cost.critical_bytes / link.bandwidth_bytes_per_second


# Counts of the device probes: operations of a matrix product, and bytes that a copy moves.
#
# Copies within a memory are counted as in STREAM: each byte that the program reads, and each byte that it writes. A
# cache that fetches a line before it overwrites it (write-allocate) moves more; that is not counted. Copies over a bus
# count each byte once, since every byte crosses the bus once.
# Source: McCalpin 1995, Memory bandwidth and machine balance in current high performance computers; STREAM's reference,
# "Counting Bytes and FLOPS".

CopyKind = Literal[
    "memory_copy", "memory_triad", "device_copy", "host_to_device", "device_to_host", "host_to_device_pageable"
]
"""memory_copy, memory_triad: a = b and a = b + s c in the memory of the host, as in STREAM.
device_copy: a = b in the memory of one GPU.
host_to_device, device_to_host: over the bus, from and to pinned pages, which cannot be swapped out.
host_to_device_pageable: from ordinary pages, which the driver copies to pinned ones first.
"""

BUFFERS_TOUCHED: Mapping[str, int] = {
    "memory_copy": 2,
    "memory_triad": 3,
    "device_copy": 2,
    "host_to_device": 1,
    "device_to_host": 1,
    "host_to_device_pageable": 1,
}
"""Number of buffers that a kind of copy reads and writes in its memory, or moves over its bus."""


def matmul_flops(m: int, n: int, k: int) -> int:
    """Return the floating-point operations of an (m, k) times a (k, n) matrix: k multiply-adds per element."""
    return 2 * m * n * k


def moved_bytes(kind: str, size_bytes: int) -> int:
    """Return the bytes that one copy of a kind moves. size_bytes: of one buffer.

    Raises:
        ValueError: the kind is unknown.
    """
    if kind not in BUFFERS_TOUCHED:
        raise ValueError(f'copy "{kind}" is unknown; it may be {", ".join(BUFFERS_TOUCHED)}')
    return BUFFERS_TOUCHED[kind] * size_bytes
