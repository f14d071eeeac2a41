"""What each rank's lateness cost in each step.

Collectives of one step are late together, since a rank that is behind stays behind until the step's end. So a step, and
not a collective, is what says once more that a rank is late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.late_arrivals import LateArrival
from collectors.traces.ranks.matching import Matched


def delays_by_step(
    late: Sequence[LateArrival], ranks: Sequence[int], step_of: Mapping[Matched, int]
) -> NDArray[np.int64]:
    """Delays in nanoseconds, one row for each step with a collective, one column for each of these ranks.

    step_of: of all collectives, late or not, the number of the step. Where it is empty, since no trace marks steps,
    there is one row for all arrivals of a late rank until another is late.
    """
    column = {rank: number for number, rank in enumerate(ranks)}
    if step_of:
        steps = np.unique(np.array(list(step_of.values()), dtype=np.int64))
        rows = np.searchsorted(steps, np.array([step_of[one.matched] for one in late], dtype=np.int64))
        count = steps.size
    else:
        turns = np.diff([one.rank for one in late]) != 0
        rows = np.concatenate(([0], np.cumsum(turns)))[: len(late)]
        count = int(rows[-1]) + 1 if late else 0
    delays_ns = np.zeros((count, len(ranks)), dtype=np.int64)
    for row, one in zip(rows, late, strict=True):
        delays_ns[row, column[one.rank]] += one.delay_ns
    return delays_ns
