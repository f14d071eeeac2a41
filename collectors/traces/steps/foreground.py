"""Which of the spans that overlap a moment belongs to: the one that started last.

On one thread that is the innermost operator; on a device it is the kernel that came to the others. So a set of spans
divides the time that it covers, without a rest and without counting twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times

NOBODY = -1
"""The owner of a moment at which nothing ran."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Disjoint stretches of time, in order, each with the number of the span that it belongs to."""

    start_ns: Times
    end_ns: Times
    owner: Numbers


class Foreground:
    """The owner of each moment. Spans are sorted by start, and of those that start together the longer is first."""

    def __init__(self, start_ns: Times, end_ns: Times) -> None:
        self._start_ns, self._end_ns = start_ns, end_ns
        self._outlived_by = _outlived_by(end_ns)

    def at(self, moments_ns: Times) -> Numbers:
        """The number of the span that each moment belongs to, or `NOBODY`."""
        if not self._start_ns.size:
            return np.full(moments_ns.size, NOBODY, dtype=np.int64)
        owner: Numbers = np.searchsorted(self._start_ns, moments_ns, side="right") - 1
        # Between a span that is over and the one before that outlives it, none can last until the moment.
        over = self._is_over(owner, moments_ns)
        while over.size:
            owner[over] = self._outlived_by[owner[over]]
            over = over[self._is_over(owner[over], moments_ns[over])]
        return owner

    def pieces(self) -> Pieces:
        """The time that the spans cover, divided among them."""
        # Sorted by hand: `np.unique` hashes, which takes a hundred times as long on a million moments.
        edges_ns = np.sort(np.concatenate((self._start_ns, self._end_ns)))
        start_ns, end_ns = edges_ns[:-1], edges_ns[1:]
        owner = self.at(start_ns)
        owned = (owner != NOBODY) & (end_ns > start_ns)
        return Pieces(start_ns=start_ns[owned], end_ns=end_ns[owned], owner=owner[owned])

    def _is_over(self, owner: Numbers, moments_ns: Times) -> Numbers:
        """The places at which the owner ended before the moment."""
        return np.flatnonzero((owner != NOBODY) & (self._end_ns[owner] <= moments_ns))


def _outlived_by(end_ns: Times) -> Numbers:
    """Per span the last one before it that ends later."""
    outlived_by = [NOBODY] * end_ns.size
    lasting: list[int] = []
    ends = end_ns.tolist()
    for number, end in enumerate(ends):
        while lasting and ends[lasting[-1]] <= end:
            lasting.pop()
        if lasting:
            outlived_by[number] = lasting[-1]
        lasting.append(number)
    return np.array(outlived_by, dtype=np.int64)
