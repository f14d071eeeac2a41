"""One collective on several ranks: how long each waited for the last, and how long the transfer then took.

wait: from a rank's own arrival to the last rank's. transfer: from the last arrival to the rank's own end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.matching import ROOTED, Matched
from collectors.traces.cross_rank.process_groups import call_of, numbers_of_marks
from collectors.traces.steps import Stretch, launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline
from workloads.cost_models.communication import bus_factor
from workloads.cost_models.terms import Collective

# How large the elements of a dtype are, and so the buffers of a collective.
#
# torch knows too, and is not asked: traces are read where there is no torch.

_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


def buffer_bytes(call: Call) -> int | None:
    """Bytes of the larger of the rank's two buffers, as nccl-tests counts a size; None where the trace does not say."""
    known = [elements for elements in (call.given_elements, call.filled_elements) if elements is not None]
    if not known or call.dtype not in _BYTES:
        return None
    return max(known) * _BYTES[call.dtype]


_WITH_BANDWIDTH: tuple[Collective, ...] = get_args(Collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One collective on the common clock; per rank in the order of `matched.ranks`.

    wait_ns, transfer_ns: together what it lasted on the rank. A rank that left before the last came (of a rooted
    collective it may, else clocks are off) only waited.
    size_bytes: of the larger of a rank's two buffers, where ranks differ the largest; None where traces do not say.
    """

    matched: Matched
    arrival_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    size_bytes: int | None

    @property
    def last_rank(self) -> int:
        """The rank that came last; of several the lowest."""
        return self.matched.ranks[self.arrival_ns.index(max(self.arrival_ns))]

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes per second from the last arrival to the last end.

        None where the size is not known, the traces show no such time, ranks are missing, one of which may be last, or
        the collective is rooted, whose data moves before the last has come.
        """
        elapsed_ns = max(self.end_ns) - max(self.arrival_ns)
        is_partial = self.matched.missing_count > 0 or self.matched.collective in ROOTED
        if self.size_bytes is None or elapsed_ns <= 0 or is_partial:
            return None
        return self.size_bytes * 1e9 / elapsed_ns

    @property
    def bus_bandwidth(self) -> float | None:
        """The algorithm bandwidth times the collective's factor; None where the one is or there is no other."""
        speed = self.algorithm_bandwidth
        factor = next(
            (
                bus_factor(collective, len(self.matched.ranks))
                for collective in _WITH_BANDWIDTH
                if collective == self.matched.collective
            ),
            None,
        )
        return None if speed is None or factor is None else speed * float(factor)


def time_of(matched: Matched, timelines: Mapping[int, Timeline], offset_ns: Mapping[int, int]) -> CollectiveTime:
    """The times of one collective. timelines: by rank, on their own clocks. offset_ns: what these must show more."""
    places = list(zip(matched.ranks, matched.rows, strict=True))
    arrival_ns = tuple(int(timelines[rank].start_ns[row]) + offset_ns[rank] for rank, row in places)
    end_ns = tuple(int(timelines[rank].end_ns[row]) + offset_ns[rank] for rank, row in places)
    last_ns = max(arrival_ns)
    sizes = [buffer_bytes(call_of(timelines[rank], row)) for rank, row in places]
    known = [size for size in sizes if size is not None]
    return CollectiveTime(
        matched=matched,
        arrival_ns=arrival_ns,
        end_ns=end_ns,
        wait_ns=tuple(min(last_ns, end) - start for start, end in zip(arrival_ns, end_ns, strict=True)),
        transfer_ns=tuple(max(0, end - last_ns) for end in end_ns),
        size_bytes=max(known) if len(known) == len(sizes) else None,
    )


# In which marked step each collective of several ranks was asked for.
#
# A host runs ahead of its device, so a collective belongs to the step in which its launch was, wherever the host's
# marks stand when it runs. Where the launch is not told, it belongs to the step in whose time on the device it came.


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


# Collectives that a rank seems to leave before the last has come, which in truth none can.


def is_impossible(time: CollectiveTime, residual_ns: int) -> bool:
    """Whether a rank left a collective that nobody can leave before the last has come.

    residual_ns: how far the times of different ranks may be off.
    """
    return time.matched.collective not in ROOTED and min(time.end_ns) + residual_ns < max(time.arrival_ns)


def count_impossible(times: Iterable[CollectiveTime], residual_ns: int) -> int:
    """How many of these."""
    return sum(is_impossible(time, residual_ns) for time in times)
