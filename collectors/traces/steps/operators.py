"""Which operator of the host stands behind a moment, and which one put a kernel on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.foreground import Foreground
from collectors.traces.steps.launches import launch_of

Rows = NDArray[np.int64]
"""Numbers of spans in a Timeline, or `ABSENT`."""


def operators_at(
    timeline: Timeline, moments_ns: Times, threads: NDArray[np.int64], *, counts: Callable[[str], bool] = bool
) -> Rows:
    """The row of the innermost operator that ran on the host at each moment.

    threads: of each moment, where to look; `ABSENT` for whichever thread an operator came to last.
    counts: whether an operator of this name may be the answer; one that may not is looked through.
    """
    chosen = _operators(timeline) & np.array([counts(name) for name in timeline.names], dtype=bool)[timeline.name]
    found = np.full(moments_ns.size, ABSENT, dtype=np.int64)
    for thread in np.unique(threads):
        here = threads == thread
        of_thread = chosen if thread == ABSENT else chosen & (timeline.stream == thread)
        found[here] = _innermost(timeline, np.flatnonzero(of_thread), moments_ns[here])
    return found


def launching_operators(timeline: Timeline) -> Rows:
    """Per span of the device the row of the operator inside of which it was launched; of an operator, its own row.

    It is `ABSENT` where the trace holds no launch, or the launch was made by none.
    """
    operators = _operators(timeline)
    launch = launch_of(timeline)
    found = np.where(operators, np.arange(operators.size), ABSENT)
    launched = np.flatnonzero(launch != ABSENT)
    threads = timeline.stream[launch[launched]]
    for thread in np.unique(threads):
        here = launched[threads == thread]
        rows = np.flatnonzero(operators & (timeline.stream == thread))
        found[here] = _innermost(timeline, rows, timeline.start_ns[launch[here]])
    return found


def _operators(timeline: Timeline) -> NDArray[np.bool_]:
    """The host's operators and annotations; without a device, computation is made of operators too."""
    host = timeline.of_kind("host")
    return host if timeline.is_device else host | timeline.of_kind("compute")


def _innermost(timeline: Timeline, rows: Rows, moments_ns: Times) -> Rows:
    owner = Foreground(timeline.start_ns[rows], timeline.end_ns[rows]).at(moments_ns)
    return np.append(rows, ABSENT)[owner]
