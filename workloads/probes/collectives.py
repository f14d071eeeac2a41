"""The probe `collectives`: times the library's collectives on buffers of several sizes, as nccl-tests does.

What differs from nccl-tests: all_reduce, broadcast and reduce work in place, where it has both ways; calls that are
timed move zeros, and have the same buffers, where it moves on through a larger one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import ELEMENT_BYTES
from workloads.cards.collectives import chosen_collectives, counted_sizes
from workloads.laws.terms import Collective
from workloads.parts.collective_calls import Buffers, allocate, make_call
from workloads.parts.collective_check import count_wrong, fill
from workloads.parts.dtypes import DTYPES
from workloads.probe import ProbeSetup, Record, Stopwatch


def probe(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time each collective on each size, check its result, and record it.

    Raises:
        RuntimeError: a result is wrong.
    """
    for collective in chosen_collectives(setup):
        _measure(collective, setup, mesh.get_group("data"), record, stopwatch)


def _measure(
    collective: Collective, setup: ProbeSetup, group: dist.ProcessGroup, record: Record, stopwatch: Stopwatch
) -> None:
    """One collective; its buffers are gone before those of the next are made."""
    sizes = counted_sizes(setup, collective)
    whole = allocate(collective, sizes[-1], group.rank(), dtype=DTYPES[setup.precision], device=setup.device)
    for counts in sizes:
        buffers = whole.first(counts)
        call = make_call(collective, buffers, group)
        buffers.give.zero_()  # Zeros stay zeros, however often they are summed.
        elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
        size_bytes = counts.size * ELEMENT_BYTES[setup.precision]
        check(collective, call, buffers, rank=group.rank(), ranks=group.size(), size_bytes=size_bytes)
        record({"collective_s": elapsed}, collective=collective, algorithm="library", size=str(size_bytes))


def check(
    collective: Collective, call: Callable[[], object], buffers: Buffers, *, rank: int, ranks: int, size_bytes: int
) -> None:
    """Call once more, on known values.

    Raises:
        RuntimeError: what the rank got is wrong.
    """
    fill(collective, buffers, rank, ranks)
    call()
    if wrong := count_wrong(collective, buffers, rank, ranks):
        raise RuntimeError(
            f"{collective} of {size_bytes} bytes gave rank {rank} {wrong} of {len(buffers.take)} elements wrongly;"
            " trust no result of these ranks before the cause is found"
        )
