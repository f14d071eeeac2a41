"""Known values for a collective, others on each rank and at each place, and how many of them came out wrong.

Values are whole numbers up to 256, and so are their sums, which every precision holds exactly in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from workloads.laws.terms import Collective
from workloads.parts.collective_calls import Buffers
from workloads.parts.collective_sizes import CHECKED_AT_ONCE, ROOT

_NOT_GIVEN = -1
_ADDS: frozenset[Collective] = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_MOST_ADDENDS = 64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def fill(collective: Collective, buffers: Buffers, rank: int, ranks: int) -> None:
    """Write what the rank gives, and make sure that what it shall get is not there yet."""
    buffers.take.fill_(_NOT_GIVEN)
    if collective == "broadcast" and rank != ROOT:
        return
    for part, positions in _blocks(buffers.give):
        part.copy_(_addend(rank, positions, ranks) if collective in _ADDS else _value(rank, positions))


def count_wrong(collective: Collective, buffers: Buffers, rank: int, ranks: int) -> int:
    """How many elements that the rank got are not what `fill` gave on all ranks."""
    if collective == "reduce" and rank != ROOT:
        return 0  # What is left there has no meaning.
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
    """From 1 to 4, never 0, so that one that is missing is seen; of many ranks, at each place from 64 at most."""
    addend = 1 + (_mixed(rank, positions) & 3)
    stride = -(-ranks // _MOST_ADDENDS)
    return addend if stride == 1 else addend * ((positions + rank) % stride == 0)


def _value(rank: int | Tensor, positions: Tensor) -> Tensor:
    """From 0 to 255."""
    return _mixed(rank, positions) & 255


def _mixed(rank: int | Tensor, positions: Tensor) -> Tensor:
    """Bits that look random: no shift by any number of places, and no other rank, has the same.

    Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators (the mixing of SplitMix64).
    """
    mixed = (positions + (rank << 32)) * _FIRST
    mixed ^= mixed >> 30
    mixed *= _SECOND
    mixed ^= mixed >> 27
    return mixed


def _blocks(buffer: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The buffer part by part, each with the positions of its elements: whole, they would outweigh the buffer."""
    for first in range(0, len(buffer), CHECKED_AT_ONCE):
        part = buffer[first : first + CHECKED_AT_ONCE]
        yield part, torch.arange(first, first + len(part), device=buffer.device)
