"""Each distinct thing once, and the things as numbers of these."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from collectors.traces.spans import ABSENT

T = TypeVar("T", bound=Hashable)


class _Numbers(dict[T, int]):
    """A number for each distinct key, in the order in which they are first asked for."""

    def __missing__(self, key: T) -> int:
        self[key] = number = len(self)
        return number


def numbered(things: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """The distinct ones in the order in which they first are, and the number of each."""
    numbers = _Numbers[T]()
    number = np.fromiter(map(numbers.__getitem__, things), dtype=np.int32, count=len(things))
    return tuple(numbers), number


def numbered_but(nothing: T, things: Sequence[T]) -> tuple[tuple[T, ...], NDArray[np.int32]]:
    """The same, without those that equal `nothing`: they have the number `ABSENT`."""
    distinct, number = numbered(things)
    if nothing not in distinct:
        return distinct, number
    absent = distinct.index(nothing)
    moved = np.arange(len(distinct), dtype=np.int32)
    moved[absent:] -= 1
    moved[absent] = ABSENT
    return tuple(thing for thing in distinct if thing != nothing), moved[number]
