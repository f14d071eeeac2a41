"""Sizes of a sweep over collectives, and the elements that each call moves, as nccl-tests counts them.

Imports no torch, so that a spec can predict what a rank will hold.
Source: nccl-tests, GetCollByteCount of src/*.cu and TimeTest of src/common.cu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from workloads.cost_models.terms import Collective

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
