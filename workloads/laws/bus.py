"""How fast collectives go in nccl-tests' terms: algorithm bandwidth, and the bus bandwidth that links are compared by.

The bus factor is a definition: for each collective, what the busiest link must carry under the best algorithm of plain
sends and receives. It knows no backend, so figures of all backends compare. What a backend really sends is
`communication.wire_factor`: gloo's reduce sends more than its bus factor says, so its bus bandwidth stays below what
its links carry; a switch that adds (nccl's NVLS) sends less, so its bus bandwidth may lie above them.
"""

from __future__ import annotations

from fractions import Fraction

from workloads.laws.terms import Collective


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
