"""A training on a GPU made up: when its operators, their launches and their kernels run, and what they add up to.

Of twenty kernels one is an all-reduce on a stream of its own, which runs beside those that follow, and two are copies.
Kernels of one stream never overlap, so that of each kind the sum is the union.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

BEGUN_NS = 4458676456788066
"""When it begins, after the base of its trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator, its launch, and what that put on the device."""

    number: int
    called_ns: int
    returned_ns: int
    launched_ns: int
    start_ns: int
    duration_ns: int

    @property
    def is_collective(self) -> bool:
        return self.number % 20 == 19

    @property
    def is_copy(self) -> bool:
        return self.number % 10 == 5

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


def operators(count: int, rank: int) -> Iterator[Operator]:
    """So many operators of a rank, the same each time, so that none need be kept to be gone through again."""
    random = Random(rank)
    host_ns, device_ns, network_ns = BEGUN_NS, BEGUN_NS, BEGUN_NS
    for number in range(count):
        length_ns = 12_000 + random.randrange(9_000)
        launched_ns = host_ns + 5_000 + random.randrange(3_000)
        begun = launched_ns + 4_000 + random.randrange(2_000)
        if number % 20 == 19:
            start_ns = max(begun, network_ns)
            duration_ns = 60_000 + random.randrange(120_000)
            network_ns = start_ns + duration_ns + 1_000
        else:
            start_ns = max(begun, device_ns)
            duration_ns = 2_000 + random.randrange(20_000)
            device_ns = start_ns + duration_ns + random.randrange(1, 1_500)
        yield Operator(
            number=number,
            called_ns=host_ns,
            returned_ns=host_ns + length_ns,
            launched_ns=launched_ns,
            start_ns=start_ns,
            duration_ns=duration_ns,
        )
        host_ns += length_ns + random.randrange(1, 2_000)


def busy_ns(count: int, rank: int) -> tuple[int, int, int]:
    """How long these compute, how long they communicate, and how long they do both."""
    computing = (at for at in operators(count, rank) if not (at.is_collective or at.is_copy))
    communicating = (at for at in operators(count, rank) if at.is_collective)
    compute_ns = communication_ns = overlap_ns = 0
    # Both are in order, so that what ends first is done with.
    one, other = next(computing, None), next(communicating, None)
    while one or other:
        if one and other:
            overlap_ns += max(0, min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns))
        if one and (other is None or one.end_ns <= other.end_ns):
            compute_ns += one.duration_ns
            one = next(computing, None)
        elif other:
            communication_ns += other.duration_ns
            other = next(communicating, None)
    return compute_ns, communication_ns, overlap_ns
