"""In which marked step each collective of several ranks was asked for.

A host runs ahead of its device, so a collective belongs to the step in which its launch was, wherever the host's marks
stand when it runs. Where the launch is not told, it belongs to the step in whose time on the device it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.matching import Matched
from collectors.traces.ranks.numbered_steps import numbers_of_marks
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import launch_of
from collectors.traces.steps.stretches import Stretch


def steps_of(
    times: Iterable[CollectiveTime],
    timelines: Sequence[Timeline],
    steps: Mapping[int, Sequence[Stretch]],
    offset_ns: Mapping[int, int],
) -> dict[Matched, int]:
    """The number of the step of each collective; what is before the first step is in one of its own.

    By the number in the step's name where all traces that mark steps number them upwards, else by its place in the
    trace of those ranks that marks most. Empty where no trace marks steps.

    timelines: on their own clocks. steps: by rank, its marked steps. offset_ns: by rank, what its clock must show more.
    """
    marking = sorted((one for one in timelines if steps[one.rank]), key=lambda one: (-len(steps[one.rank]), one.rank))
    numbers = [numbers_of_marks(timeline) for timeline in marking]
    if not all((of_trace != ABSENT).all() and (np.diff(of_trace) > 0).all() for of_trace in numbers):
        numbers = [np.arange(of_trace.size) for of_trace in numbers]
    marked = {
        timeline.rank: _Marked(timeline, steps[timeline.rank], of_trace)
        for timeline, of_trace in zip(marking, numbers, strict=True)
    }
    if not marked:
        return {}
    most = marking[0].rank
    found = {}
    for time in times:
        rows = dict(zip(time.matched.ranks, time.matched.rows, strict=True))
        rank = next((rank for rank in marked if rank in rows), None)
        found[time.matched] = (
            marked[most].step_at(max(time.arrival_ns) - offset_ns[most])
            if rank is None
            else marked[rank].step_of(rows[rank])
        )
    return found


class _Marked:
    """The steps of one rank's trace. numbers: one a step."""

    def __init__(self, timeline: Timeline, steps: Sequence[Stretch], numbers: NDArray[np.int64]) -> None:
        self._start_ns, self._launch = timeline.start_ns, launch_of(timeline)
        self._on_host_ns = timeline.start_ns[timeline.of_kind("step")]
        self._at_work_ns = np.array([step.start_ns for step in steps], dtype=np.int64)
        # What is before the first step has the number before its.
        self._numbers = np.concatenate((numbers[:1] - 1, numbers))

    def step_of(self, row: int) -> int:
        """That of a span at work."""
        launch = self._launch[row]
        if launch == ABSENT:
            return self.step_at(int(self._start_ns[row]))
        return int(self._numbers[np.searchsorted(self._on_host_ns, self._start_ns[launch], side="right")])

    def step_at(self, moment_ns: int) -> int:
        """That which was at work at a moment of the rank's clock."""
        return int(self._numbers[np.searchsorted(self._at_work_ns, moment_ns, side="right")])
