"""What the ranks on a node need of its limits, and how a limit compares with that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.case import Case

PREFETCHED = 2
"""Batches that a loader's worker prepares in advance. Source: prefetch_factor of torch.utils.data.DataLoader."""
TOKEN_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What ranks need. ranks: the number of ranks on the node. world: that of all ranks of the case.

    workers: workers of each rank's data loader. loader_bytes: batches of all loaders on the node that wait for their
    rank.
    """

    ranks: int
    world: int
    is_on_gpus: bool
    uses_nccl: bool
    workers: int = 0
    loader_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A limit's value in words, what is needed of it (None: nothing), and whether it is enough."""

    value: str
    needed: str | None = None
    is_enough: bool = True


def demand_of(case: Case) -> Demand:
    """Return what the ranks of a case need on the node that has most of them.

    Each loader holds the prefetched batches of its workers and the batch in use. A sequence counts once, although each
    rank that shares it loads it.
    """
    ranks = math.ceil(case.ranks / case.nodes)
    workers = int(case.options.get("workers", 0))
    loader_bytes = 0
    if workers and case.model is not None:
        batch_bytes = case.shape.batch * (case.shape.sequence + 1) * TOKEN_BYTES
        loader_bytes = math.ceil(batch_bytes / case.nodes) * (PREFETCHED * workers + 1)
    return Demand(
        ranks=ranks,
        world=case.ranks,
        is_on_gpus=case.device == "cuda",
        uses_nccl=case.backend == "nccl",
        workers=workers,
        loader_bytes=loader_bytes,
    )


def demand_of_gpus(gpus: int) -> Demand:
    """Return what one rank on each GPU of a node needs; without GPUs, two ranks on its CPU."""
    ranks = gpus or 2
    return Demand(ranks=ranks, world=ranks, is_on_gpus=gpus > 0, uses_nccl=gpus > 0, workers=1)


def size_words(size_bytes: int) -> str:
    """Return a size in words, for example 64 MiB or 1.1 GiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.3g} {unit}"
    return f"{size_bytes} B"
