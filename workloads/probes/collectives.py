"""Probes of links: `collectives`, which times them on buffers of several sizes as nccl-tests does, and `pairs`.

`pairs` measures each pair of neighbours on a ring, many pairs at a time and no rank in two at once. Each pair sends
both ways at the same time: a slow link shows in one pair, a slow node in both of its pairs.

`collectives` differs from nccl-tests: all_reduce, broadcast and reduce run only in place, while nccl-tests measures
both ways; timed calls move zeros and reuse the same buffers, while nccl-tests advances through a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.core.collectives import Buffers, allocate, exchange, make_call
from workloads.core.mesh import DTYPES
from workloads.cost_models.communication import CHECKED_AT_ONCE, ROOT
from workloads.cost_models.terms import Collective
from workloads.probes.spec import chosen_collectives, counted_sizes, pair_bytes, rounds
from workloads.protocols import ProbeSetup, Record, Stopwatch
from workloads.spec import ELEMENT_BYTES

# Known input values, different on each rank and at each position, and the count of wrong results.
#
# Values are whole numbers up to 256, and so are their sums, which every precision holds exactly in any order of
# addition.

_Result = TypeVar("_Result")

_NOT_GIVEN = -1
_ADDS: frozenset[Collective] = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_MOST_ADDENDS = 64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def fill(collective: Collective, buffers: Buffers, rank: int, ranks: int) -> None:
    """Write the rank's input, and overwrite its result buffer so that it has no expected value yet."""
    buffers.take.fill_(_NOT_GIVEN)
    if collective == "broadcast" and rank != ROOT:
        return
    for part, positions in _blocks(buffers.give):
        part.copy_(_addend(rank, positions, ranks) if collective in _ADDS else _value(rank, positions))


def count_wrong(collective: Collective, buffers: Buffers, rank: int, ranks: int) -> int:
    """Return how many elements of the rank's result differ from what `fill` wrote on all ranks."""
    if collective == "reduce" and rank != ROOT:
        return 0  # Undefined on the other ranks.
    wrong = 0
    for part, positions in _blocks(buffers.take):
        expected = _expected(collective, positions, rank, ranks, len(buffers.take))
        wrong += int((part != expected.to(part.dtype)).sum())
    return wrong


def _expected(collective: Collective, positions: Tensor, rank: int, ranks: int, length: int) -> Tensor:
    match collective:
        case "all_reduce" | "reduce":
            return _sum(positions, ranks)
        case "reduce_scatter":
            return _sum(positions + rank * length, ranks)
        case "broadcast":
            return _value(ROOT, positions)
        case "scatter":
            return _value(ROOT, positions + rank * length)
        case "all_gather" | "gather":
            part = length // ranks
            return _value(positions // part, positions % part)
        case "all_to_all":
            part = length // ranks
            return _value(positions // part, positions % part + rank * part)
        case "send":
            return _value((rank - 1) % ranks, positions)


def _sum(positions: Tensor, ranks: int) -> Tensor:
    total = torch.zeros_like(positions)
    for rank in range(ranks):
        total += _addend(rank, positions, ranks)
    return total


def _addend(rank: int, positions: Tensor, ranks: int) -> Tensor:
    """Return addends from 1 to 4: never 0, so that a missing addend shows.

    On more than 64 ranks, at most 64 of them contribute at each position, and the others add 0.
    """
    addend = 1 + (_mixed(rank, positions) & 3)
    stride = -(-ranks // _MOST_ADDENDS)
    return addend if stride == 1 else addend * ((positions + rank) % stride == 0)


def _value(rank: int | Tensor, positions: Tensor) -> Tensor:
    """Return values from 0 to 255."""
    return _mixed(rank, positions) & 255


def _mixed(rank: int | Tensor, positions: Tensor) -> Tensor:
    """Return pseudorandom bits: no shift in position, and no other rank, gives the same sequence.

    Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators (the mixing of SplitMix64).
    """
    mixed = (positions + (rank << 32)) * _FIRST
    mixed ^= mixed >> 30
    mixed *= _SECOND
    mixed ^= mixed >> 27
    return mixed


def _blocks(buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the buffer in blocks, with the positions of their elements: all at once would outweigh the buffer."""
    for first in range(0, len(buffer), CHECKED_AT_ONCE):
        part = buffer[first : first + CHECKED_AT_ONCE]
        yield part, torch.arange(first, first + len(part), device=buffer.device)


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
    """Measure one collective; its buffers are freed before those of the next are created."""
    sizes = counted_sizes(setup, collective)
    largest = allocate(collective, sizes[-1], group.rank(), dtype=DTYPES[setup.precision], device=setup.device)
    for counts in sizes:
        buffers = largest.first(counts)
        call = make_call(collective, buffers, group)
        buffers.give.zero_()  # Zeros stay zeros, however often they are summed.
        elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
        size_bytes = counts.size * ELEMENT_BYTES[setup.precision]
        text = f"{collective} of {size_bytes} bytes"
        check(collective, call, buffers, rank=group.rank(), ranks=group.size(), text=text)
        record({"collective_s": elapsed}, collective=collective, algorithm="library", size=str(size_bytes))


def check(
    collective: Collective, call: Callable[[], _Result], buffers: Buffers, *, rank: int, ranks: int, text: str
) -> _Result:
    """Call again with known values, and return the result. text: the call in words.

    Raises:
        RuntimeError: the rank's result is wrong.
    """
    fill(collective, buffers, rank, ranks)
    result = call()
    if wrong := count_wrong(collective, buffers, rank, ranks):
        raise RuntimeError(
            f"{text}: {wrong} of {len(buffers.take)} elements are wrong on rank {rank};"
            " trust no result of these ranks until the cause is known"
        )
    return result


_VALUES = 251
"""Number of different sent values, a prime, so that a misplaced block shows."""


def probe_pairs(setup: ProbeSetup, mesh: DeviceMesh, record: Record, stopwatch: Stopwatch) -> None:
    """Time an exchange of each pair, check the received values, and record the time on both ranks.

    Raises:
        RuntimeError: the received values differ from those that the peer sent.
    """
    group = mesh.get_group("data")
    rank, size = group.rank(), pair_bytes(setup)
    give = _sent_by(rank, size // ELEMENT_BYTES[setup.precision], setup)
    take = torch.full_like(give, -1)
    for pairs in rounds(setup.ranks, int(setup.options["stride"])):
        pair = next((pair for pair in pairs if rank in pair), None)
        call: Callable[[], object] = _nothing
        if pair is not None:
            peer = sum(pair) - rank
            call = exchange(give, take, group, to=peer, source=peer)
        elapsed = stopwatch.back_to_back(call, warm_up=setup.warm_up, calls=setup.steps)
        if pair is None:
            continue
        if not torch.equal(take, _sent_by(peer, len(give), setup)):
            raise RuntimeError(
                f"rank {rank} did not get what rank {peer} sent in {size} bytes;"
                " trust no result of these two until the cause is known"
            )
        take.fill_(-1)
        record({"pair_s": elapsed}, pair=f"{pair[0]}-{pair[1]}", size=str(size))


def _sent_by(rank: int, elements: int, setup: ProbeSetup) -> Tensor:
    """Return the values that a rank sends: whole numbers that every precision holds."""
    numbers = torch.arange(elements, device=setup.device).add_(rank).remainder_(_VALUES)
    return numbers.to(DTYPES[setup.precision])


def _nothing() -> None:
    """Do nothing: a rank without a peer in this round waits."""
