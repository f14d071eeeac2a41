"""How probable it is that one rank is as late as it is by luck alone."""

from __future__ import annotations

from math import ceil, exp, log

import numpy as np
from numpy.typing import NDArray

TILTS = np.geomspace(1e-3, 1e3, 200)


def chance_of_worst(delays_ns: NDArray[np.int64]) -> float:
    """At most so probable is a sum as large as the largest column's, if each row's delays fall on any rank alike.

    delays_ns: one row for each of what is independent, trials or steps; one column a rank; at least one is above 0.
    Source: Chernoff's bound on a sum of independent variables, times the number of ranks to pick from.
    """
    ranks = int(delays_ns.shape[1])
    scaled = delays_ns / delays_ns.max()
    worst = float(scaled.sum(axis=0).max())
    # The logarithm of the mean of exp(tilt x delay) over ranks, which is that of one rank's moments.
    bounds = [float((np.logaddexp.reduce(tilt * scaled, axis=1) - log(ranks)).sum() - tilt * worst) for tilt in TILTS]
    return min(1.0, ranks * exp(min(*bounds, 0.0)))


def least_rows(ranks: int, most_chance: float) -> int:
    """Trials or steps in all of which one of so many ranks must be late alone, for luck to be no more probable."""
    return 1 + ceil(log(1 / most_chance) / log(ranks))
