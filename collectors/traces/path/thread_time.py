"""What one thread of the host was in, moment by moment, from its first span to its last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.foreground import Foreground

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTime:
    """Stretches without a gap between them: each ends where the next begins.

    row: the innermost span that the thread was in; `ABSENT` where it was in none.
    """

    start_ns: Times
    end_ns: Times
    row: Rows

    def within(self, start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
        """Start, end and row of each stretch between two moments, the first and the last cut to them."""
        first = max(int(np.searchsorted(self.start_ns, start_ns, side="right")) - 1, 0)
        behind = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        cut_start_ns = np.maximum(self.start_ns[first:behind], start_ns)
        cut_end_ns = np.minimum(self.end_ns[first:behind], end_ns)
        lasting = cut_end_ns > cut_start_ns
        columns = (cut_start_ns[lasting], cut_end_ns[lasting], self.row[first:behind][lasting])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def spent_ns(self, chosen: NDArray[np.bool_], moments_ns: Times) -> Times:
        """The time in stretches of chosen rows before each moment. chosen: per row, the last for `ABSENT`."""
        is_chosen = chosen[self.row]
        lasting_ns = np.where(is_chosen, self.end_ns - self.start_ns, 0)
        before_ns = np.cumsum(lasting_ns) - lasting_ns
        place = np.maximum(np.searchsorted(self.start_ns, moments_ns, side="right") - 1, 0)
        inside_ns = np.clip(moments_ns - self.start_ns[place], 0, lasting_ns[place])
        spent: Times = before_ns[place] + inside_ns
        return spent


def thread_time(timeline: Timeline, row: Rows) -> ThreadTime:
    """The time of the thread whose spans these are."""
    row = row[timeline.end_ns[row] > timeline.start_ns[row]]
    pieces = Foreground(timeline.start_ns[row], timeline.end_ns[row]).pieces()
    gap = np.flatnonzero(pieces.start_ns[1:] > pieces.end_ns[:-1])
    start_ns = np.concatenate((pieces.start_ns, pieces.end_ns[gap]))
    end_ns = np.concatenate((pieces.end_ns, pieces.start_ns[gap + 1]))
    inside = np.concatenate((row[pieces.owner], np.full(gap.size, ABSENT, dtype=np.int64)))
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns, inside = start_ns[order], end_ns[order], inside[order]
    begins = np.flatnonzero(np.concatenate(([True], inside[1:] != inside[:-1]))[: inside.size])
    return ThreadTime(
        start_ns=start_ns[begins],
        end_ns=end_ns[np.append(begins[1:], inside.size) - 1] if inside.size else end_ns,
        row=inside[begins],
    )
