"""Times of a collective on several ranks: how long each rank waited for the last, and how long the transfer took.

wait: from a rank's own arrival to the last rank's. transfer: from the last arrival to the rank's own end. Also computes
a collective's size, bandwidth and step, and detects impossible times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.cross_rank.matching import ROOTED, MatchedCollective
from collectors.traces.cross_rank.process_groups import call_of, numbers_of_marks
from collectors.traces.steps import StepInterval, launch_of
from collectors.traces.timeline import ABSENT, Call, Timeline
from workloads.cost_models.communication import bus_factor
from workloads.cost_models.terms import Collective

# Bytes per element of each dtype. Not taken from torch, which need not be installed to read traces.

_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "complex32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


def buffer_bytes(call: Call) -> int | None:
    """Return the bytes of the rank's larger buffer, as nccl-tests counts; None if the trace lacks it."""
    known = [elements for elements in (call.given_elements, call.filled_elements) if elements is not None]
    if not known or call.dtype not in _BYTES:
        return None
    return max(known) * _BYTES[call.dtype]


_WITH_BANDWIDTH: tuple[Collective, ...] = get_args(Collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """A collective on the common clock; tuples are in the order of `matched.ranks`.

    wait_ns, transfer_ns: add up to the collective's duration on the rank. A rank that left before the last one arrived
    only waited; this can happen in a rooted collective, otherwise the clocks are off.
    size_bytes: of a rank's larger buffer, the maximum if ranks differ; None if a trace lacks it.
    """

    matched: MatchedCollective
    arrival_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    wait_ns: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    size_bytes: int | None

    @property
    def last_rank(self) -> int:
        """The rank that arrived last; the lowest if several did."""
        return self.matched.ranks[self.arrival_ns.index(max(self.arrival_ns))]

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes per second from the last arrival to the last end.

        None if the size is unknown, no time passes between the two, ranks are missing (one of them may be last), or
        the collective is rooted, so that data moves before the last rank has arrived.
        """
        elapsed_ns = max(self.end_ns) - max(self.arrival_ns)
        is_partial = self.matched.missing_count > 0 or self.matched.collective in ROOTED
        if self.size_bytes is None or elapsed_ns <= 0 or is_partial:
            return None
        return self.size_bytes * 1e9 / elapsed_ns

    @property
    def bus_bandwidth(self) -> float | None:
        """The algorithm bandwidth times the collective's bus factor; None if either is unknown."""
        speed = self.algorithm_bandwidth
        collective = next((known for known in _WITH_BANDWIDTH if known == self.matched.collective), None)
        if speed is None or collective is None:
            return None
        return speed * float(bus_factor(collective, len(self.matched.ranks)))


def time_of(
    matched: MatchedCollective, timelines: Mapping[int, Timeline], offset_ns: Mapping[int, int]
) -> CollectiveTime:
    """Return the times of a collective. timelines: by rank, on their own clocks. offset_ns: by rank, to add."""
    spans = list(zip(matched.ranks, matched.rows, strict=True))
    arrival_ns = tuple(int(timelines[rank].start_ns[row]) + offset_ns[rank] for rank, row in spans)
    end_ns = tuple(int(timelines[rank].end_ns[row]) + offset_ns[rank] for rank, row in spans)
    last_ns = max(arrival_ns)
    sizes = [buffer_bytes(call_of(timelines[rank], row)) for rank, row in spans]
    known = [size for size in sizes if size is not None]
    return CollectiveTime(
        matched=matched,
        arrival_ns=arrival_ns,
        end_ns=end_ns,
        wait_ns=tuple(min(last_ns, end) - start for start, end in zip(arrival_ns, end_ns, strict=True)),
        transfer_ns=tuple(max(0, end - last_ns) for end in end_ns),
        size_bytes=max(known) if len(known) == len(sizes) else None,
    )


# The step of each collective.
#
# A host runs ahead of its device, so a collective belongs to the step in which it was launched, not to the host's step
# when it runs. If the launch is unknown, it belongs to the step that was at work on the device when it began.


def steps_of(
    times: Iterable[CollectiveTime],
    timelines: Sequence[Timeline],
    steps: Mapping[int, Sequence[StepInterval]],
    offset_ns: Mapping[int, int],
) -> dict[MatchedCollective, int]:
    """Return the number of each collective's step; for collectives before the first step, its number minus 1.

    A step's number is the one in its name if all traces that mark steps number them in ascending order, else its index
    in its trace. Collectives on ranks without marks take the steps of the rank with the most marks. Empty if no trace
    marks steps.

    timelines: on their own clocks. steps: by rank, its marked steps. offset_ns: by rank, to add to its clock.
    """
    marking = sorted(
        (timeline for timeline in timelines if steps[timeline.rank]),
        key=lambda timeline: (-len(steps[timeline.rank]), timeline.rank),
    )
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
    step_of = {}
    for time in times:
        rows = dict(zip(time.matched.ranks, time.matched.rows, strict=True))
        rank = next((rank for rank in marked if rank in rows), None)
        if rank is None:
            step_of[time.matched] = marked[most].step_at(max(time.arrival_ns) - offset_ns[most])
        else:
            step_of[time.matched] = marked[rank].step_of(rows[rank])
    return step_of


class _Marked:
    """The steps of a rank's trace. numbers: one per step."""

    def __init__(self, timeline: Timeline, steps: Sequence[StepInterval], numbers: NDArray[np.int64]) -> None:
        self._start_ns, self._launch = timeline.start_ns, launch_of(timeline)
        self._on_host_ns = timeline.start_ns[timeline.of_kind("step")]
        self._at_work_ns = np.array([step.start_ns for step in steps], dtype=np.int64)
        # An additional first entry: the number for collectives before the first step.
        self._numbers = np.concatenate((numbers[:1] - 1, numbers))

    def step_of(self, row: int) -> int:
        """Return the step number of a span at work."""
        launch = self._launch[row]
        if launch == ABSENT:
            return self.step_at(int(self._start_ns[row]))
        return int(self._numbers[np.searchsorted(self._on_host_ns, self._start_ns[launch], side="right")])

    def step_at(self, moment_ns: int) -> int:
        """Return the number of the step at work at a moment on the rank's clock."""
        return int(self._numbers[np.searchsorted(self._at_work_ns, moment_ns, side="right")])


def is_impossible(time: CollectiveTime, residual_ns: int) -> bool:
    """Return whether a rank appears to leave before the last has arrived, though this collective does not allow it.

    residual_ns: uncertainty when times of different ranks are compared.
    """
    return time.matched.collective not in ROOTED and min(time.end_ns) + residual_ns < max(time.arrival_ns)


def count_impossible(times: Iterable[CollectiveTime], residual_ns: int) -> int:
    return sum(is_impossible(time, residual_ns) for time in times)
