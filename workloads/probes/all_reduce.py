"""The probe `all_reduce`: times each all-reduce algorithm on vectors of several sizes, and counts what it sends.

The textbook's algorithms post their messages from Python, so that small vectors show what posting costs, too.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.all_reduce import chosen_algorithms, scratch_elements_of_all, vector_sizes
from workloads.cards.card import ELEMENT_BYTES
from workloads.laws.all_reduce import Algorithm
from workloads.parts.all_reduce_algorithms import all_reduce
from workloads.parts.collective_calls import Buffers
from workloads.parts.collective_check import count_wrong, fill
from workloads.parts.dtypes import DTYPES
from workloads.parts.point_to_point import Traffic, Wire
from workloads.probe import Elapsed, ProbeSetup, Quantity, Record, Stopwatch

Contestant = Algorithm | Literal["library"]


def probe(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time each algorithm on each size, check its result, and record it.

    Raises:
        RuntimeError: a result is wrong.
    """
    group = mesh.get_group("data")
    # The library's first: on NCCL, what comes first in a group must be of all ranks.
    contestants: tuple[Contestant, ...] = ("library", *chosen_algorithms(setup))
    sizes = vector_sizes(setup)
    longest = _zeros(sizes[-1] // ELEMENT_BYTES[setup.precision], setup)
    scratch = _zeros(scratch_elements_of_all(setup), setup)
    for size_bytes in sizes:
        vector = longest[: size_bytes // ELEMENT_BYTES[setup.precision]]
        for algorithm in contestants:
            call = partial(_sum, algorithm, vector, scratch, group)
            vector.zero_()  # Zeros stay zeros, however often they are summed.
            elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
            figures: dict[Quantity, float | Elapsed] = {"collective_s": elapsed}
            buffers = Buffers(give=vector, take=vector)
            fill("all_reduce", buffers, group.rank(), group.size())
            traffic = call()
            if wrong := count_wrong("all_reduce", buffers, group.rank(), group.size()):
                raise RuntimeError(
                    f"all_reduce by {algorithm} of {size_bytes} bytes gave rank {group.rank()} {wrong} of {len(vector)}"
                    " elements wrongly; trust no result of these ranks before the cause is found"
                )
            if traffic is not None:
                figures |= _counted(traffic)
            record(figures, collective="all_reduce", algorithm=algorithm, size=str(size_bytes))


def _zeros(count: int, setup: ProbeSetup) -> Tensor:
    return torch.zeros(count, dtype=DTYPES[setup.precision], device=setup.device)


def _sum(algorithm: Contestant, vector: Tensor, scratch: Tensor, group: dist.ProcessGroup) -> Traffic | None:
    """One call, and what it sent where that can be counted."""
    if algorithm == "library":
        dist.all_reduce(vector, group=group)
        return None
    wire = Wire(group)
    all_reduce(algorithm, vector, scratch, wire)
    return wire.traffic


def _counted(traffic: Traffic) -> dict[Quantity, float]:
    return {
        "rounds": traffic.rounds,
        "sent_bytes": traffic.sent_bytes,
        "peak_node_bytes": traffic.peak_bytes,
    }
