"""Kernel statistics: times of the device's work by kind and name, launch delays, and launch queues.

In a trace without a device, the host's operators are counted instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import GRAPH_LAUNCH
from collectors.traces.intervals import Times, union
from collectors.traces.steps import is_at_work, is_of_gloo, launch_of
from collectors.traces.table import Table, table_of
from collectors.traces.timeline import ABSENT, KINDS, SpanKind, Timeline, stream_name

# Statistics of durations, group by group.


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Statistics of durations in whole nanoseconds, halves rounded up.

    deviation_ns: the median absolute deviation. p95_ns: the smallest duration that 95 % of them do not exceed.
    """

    count: int
    total_ns: int
    mean_ns: int
    median_ns: int
    deviation_ns: int
    p95_ns: int
    longest_ns: int


DURATIONS = " ".join(field.name for field in fields(Durations))
"""The columns of `Durations` in a table."""


def durations(values_ns: Times, group: NDArray[np.int64]) -> dict[int, Durations]:
    """Return the statistics of each group, in order of group numbers. group: for each value, its group's number."""
    # Sort by group, then by value: each group's sorted values run from first to first + counts.
    order = np.lexsort((values_ns, group))
    values_ns, group = values_ns[order], group[order]
    numbers, first, counts = np.unique(group, return_index=True, return_counts=True)
    if not numbers.size:
        return {}
    # A group's sum may exceed 64 bits, so add up the upper and the lower halves of the values separately.
    high, low = np.add.reduceat(values_ns >> 32, first), np.add.reduceat(values_ns & 0xFFFF_FFFF, first)
    totals_ns = [(upper << 32) + lower for upper, lower in zip(high.tolist(), low.tolist(), strict=True)]
    medians_ns = _medians(values_ns, first, counts)
    distances_ns = np.abs(values_ns - np.repeat(medians_ns, counts))
    deviations_ns = _medians(distances_ns[np.lexsort((distances_ns, group))], first, counts)
    p95_ns = values_ns[first + (95 * counts + 99) // 100 - 1]
    longest_ns = values_ns[first + counts - 1]
    return {
        number: Durations(
            count=count,
            total_ns=totals_ns[row],
            mean_ns=(2 * totals_ns[row] + count) // (2 * count),
            median_ns=int(medians_ns[row]),
            deviation_ns=int(deviations_ns[row]),
            p95_ns=int(p95_ns[row]),
            longest_ns=int(longest_ns[row]),
        )
        for row, (number, count) in enumerate(zip(numbers.tolist(), counts.tolist(), strict=True))
    }


def _medians(sorted_ns: Times, first: NDArray[np.int64], counts: NDArray[np.int64]) -> Times:
    """Return the median of each group of sorted values; the mean of the middle two is rounded up."""
    lower_ns, upper_ns = sorted_ns[first + (counts - 1) // 2], sorted_ns[first + counts // 2]
    middle: Times = lower_ns + (upper_ns - lower_ns + 1) // 2
    return middle


# Counts and durations of each name and each kind.


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """All spans with a name, over all ranks; or, if the name is None, all spans of a kind on a rank.

    union_ns: the time in which at least one ran on a rank, added up over ranks. share: of the sum of all durations,
    over all ranks or on that rank.
    """

    rank: int | None
    kind: SpanKind
    name: str | None
    durations: Durations
    union_ns: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """The times by name, over all ranks, largest sum first; and by kind, rank by rank."""

    by_name: tuple[KernelTime, ...]
    by_kind: tuple[KernelTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """All spans at work, as columns. name: the same number on all ranks. trace: index of the rank's Timeline."""

    name: NDArray[np.int64]
    kind: NDArray[np.int64]
    trace: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


def kernel_times(timelines: Sequence[Timeline]) -> KernelTimes:
    """Return the times of computation, communication and copies; without a device, of the host's operators."""
    names: dict[str, int] = {}
    spans = _spans(timelines, names)
    words, kinds = tuple(names), len(KINDS)
    # A group's number encodes its name (or its trace) and its kind: number = name * kinds + kind.
    of_names = _grouped(spans, spans.name * kinds + spans.kind)
    of_kinds = _grouped(spans, spans.trace * kinds + spans.kind)
    total_ns = sum(durations.total_ns for _, durations, _ in of_names)
    of_rank_ns: Counter[int] = Counter()
    for number, of_kind, _ in of_kinds:
        of_rank_ns[number // kinds] += of_kind.total_ns
    by_name = [
        KernelTime(
            rank=None,
            kind=KINDS[number % kinds],
            name=words[number // kinds],
            durations=of_name,
            union_ns=union_ns,
            share=of_name.total_ns / total_ns if total_ns else 0.0,
        )
        for number, of_name, union_ns in of_names
    ]
    by_kind = [
        KernelTime(
            rank=timelines[number // kinds].rank,
            kind=KINDS[number % kinds],
            name=None,
            durations=of_kind,
            union_ns=union_ns,
            share=of_kind.total_ns / of_rank_ns[number // kinds] if of_rank_ns[number // kinds] else 0.0,
        )
        for number, of_kind, union_ns in of_kinds
    ]
    return KernelTimes(
        by_name=tuple(sorted(by_name, key=lambda time: (-time.durations.total_ns, time.kind, time.name))),
        by_kind=tuple(by_kind),
    )


def _spans(timelines: Sequence[Timeline], names: dict[str, int]) -> _Spans:
    """Return the spans as columns; add each name and its number to `names`."""
    columns = [np.empty((5, 0), dtype=np.int64)]
    for trace, timeline in enumerate(timelines):
        rows = np.flatnonzero(is_at_work(timeline))
        numbers = np.array([names.setdefault(name, len(names)) for name in timeline.names], dtype=np.int64)
        name, kind = numbers[timeline.name[rows]], timeline.kind[rows]
        columns.append(
            np.stack((name, kind, np.full(rows.size, trace), timeline.start_ns[rows], timeline.end_ns[rows]))
        )
    name, kind, traces, start_ns, end_ns = np.concatenate(columns, axis=1)
    return _Spans(name=name, kind=kind, trace=traces, start_ns=start_ns, end_ns=end_ns)


def _grouped(spans: _Spans, group: NDArray[np.int64]) -> list[tuple[int, Durations, int]]:
    """Return for each group its number, its durations, and its union, added up over ranks."""
    if not group.size:
        return []
    by_group = durations(spans.end_ns - spans.start_ns, group)
    traces = 1 + spans.trace.max()
    numbers, which = np.unique(group * traces + spans.trace, return_inverse=True)
    # Shift each group on each rank into a range of its own, so that a single call of union suffices. The ranges consist
    # of indices among all sorted edges, not of times: a wrong time makes a trace last for years, and many such traces
    # in a row exceed 64 bits.
    # Example: edges at 10, 20, 30, 40; two groups have [10, 30) and [20, 40), as indices [0, 2) and [1, 3); the second
    # is shifted by 4 to [5, 7). Modulo 4 these are indices again; divided by 4, they are the group.
    edges_ns = np.sort(np.concatenate((spans.start_ns, spans.end_ns)))
    shift = which.ravel() * edges_ns.size
    together = union(np.searchsorted(edges_ns, spans.start_ns) + shift, np.searchsorted(edges_ns, spans.end_ns) + shift)
    owner = numbers[together[:, 0] // edges_ns.size] // traces
    unions_ns = np.zeros(len(by_group), dtype=np.int64)
    np.add.at(unions_ns, np.searchsorted(list(by_group), owner), np.diff(edges_ns[together % edges_ns.size]).ravel())
    return [(number, of_group, int(unions_ns[row])) for row, (number, of_group) in enumerate(by_group.items())]


# The device's lag behind the host: launch delays and queue lengths.
#
# A launch's delay runs from the start of the call to the start of the first span that it launched; a graph is a single
# launch. kineto puts host and device on the same clock. A queue contains the work that is launched but not started.

GRAPH = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQueue:
    """The launch queue of a stream, or of the whole device if stream is None.

    length: of the queue from each of moments_ns on; 0 before the first and after the last.
    """

    stream: int | None
    moments_ns: Times
    length: NDArray[np.int64]

    @property
    def longest(self) -> int:
        return int(self.length.max())

    @property
    def mean_length(self) -> float | None:
        """The mean over the time from the first launch to the last start; None if this time is 0."""
        lasting_ns = np.diff(self.moments_ns)
        if not lasting_ns.sum():
            return None
        # Floating point, since a wrong time makes a trace last for years, and lengths times years exceed 64 bits.
        return float(np.average(self.length[:-1], weights=lasting_ns.astype(np.float64)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchQueue:
    """Launch delays and queues of a rank.

    delays: by the kind of the launched work, `GRAPH` for graphs. queues: of the device, then of each stream.
    spans_of_graphs: number of spans on the device that graphs launched. unknown: number of spans on the device whose
    launch the trace lacks, not counting gloo's spans, which have none.
    early: number of launches after their own span by the trace's clocks; they are left out of all figures.
    """

    rank: int
    delays: Mapping[str, Durations]
    queues: tuple[StreamQueue, ...]
    spans_of_graphs: int
    unknown: int
    early: int


def launch_queue(timeline: Timeline) -> LaunchQueue:
    """Return the delays and queues of a rank; none if the trace has no device, or its clock differs from the host's."""
    launch = launch_of(timeline)
    is_on_device = is_at_work(timeline) & ~is_of_gloo(timeline) & timeline.is_device
    rows = np.flatnonzero(launch != ABSENT)
    is_graph = np.array([GRAPH_LAUNCH in name for name in timeline.names], dtype=np.bool_)
    # Rows are sorted by start, so the first row of a launch started first.
    calls, first = np.unique(launch[rows], return_index=True)
    started = rows[first]
    delay_ns = timeline.start_ns[started] - timeline.start_ns[calls]
    is_sound = (delay_ns >= 0) & ~np.bool_(timeline.about.clocks_differ)
    kinds = np.where(is_graph[timeline.name[calls]], len(KINDS), timeline.kind[started].astype(np.int64))
    delays_by_kind = durations(delay_ns[is_sound], kinds[is_sound])
    launched_ns, started_ns = timeline.start_ns[calls[is_sound]], timeline.start_ns[started[is_sound]]
    stream = timeline.stream[started[is_sound]]
    queues = [_queue(None, launched_ns, started_ns)] if stream.size else []
    for number in np.unique(stream).tolist():
        queues.append(_queue(number, launched_ns[stream == number], started_ns[stream == number]))
    return LaunchQueue(
        rank=timeline.rank,
        delays={(*KINDS, GRAPH)[number]: delays for number, delays in delays_by_kind.items()},
        queues=tuple(queues),
        spans_of_graphs=int(is_graph[timeline.name[launch[rows]]].sum()),
        unknown=int((is_on_device & (launch == ABSENT)).sum()),
        early=0 if timeline.about.clocks_differ else int((~is_sound).sum()),
    )


def _queue(stream: int | None, launched_ns: Times, started_ns: Times) -> StreamQueue:
    moments_ns, index = np.unique(np.concatenate((launched_ns, started_ns)), return_inverse=True)
    # A launch adds 1 to the queue, a start removes 1; the lengths are the running sum.
    change = np.zeros(moments_ns.size, dtype=np.int64)
    np.add.at(change, index.ravel(), np.repeat((1, -1), (launched_ns.size, started_ns.size)))
    return StreamQueue(stream=stream, moments_ns=moments_ns, length=np.cumsum(change))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels, and the launches of each rank with a device. notes: what is unknown, and why."""

    times: KernelTimes
    queues: tuple[LaunchQueue, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return the times by name and by kind, the launch delays, and the queues."""
        return (
            table_of(
                "kernels",
                "What ran, by name, over all ranks",
                f"kind name {DURATIONS} union_ns share_ratio",
                [(time.kind, time.name, *_figures(time)) for time in self.times.by_name],
            ),
            table_of(
                "kinds",
                "What ran, by kind, on each rank",
                f"rank kind {DURATIONS} union_ns share_ratio",
                [(time.rank, time.kind, *_figures(time)) for time in self.times.by_kind],
            ),
            table_of(
                "launch_delays",
                "Delay from the start of a launch to the start of its work; a graph is one launch",
                f"rank kind {DURATIONS}",
                [
                    (of_rank.rank, kind, *astuple(delays))
                    for of_rank in self.queues
                    for kind, delays in of_rank.delays.items()
                ],
            ),
            table_of(
                "queues",
                "Work that was launched and had not started",
                "rank stream longest mean_length",
                [
                    (
                        of_rank.rank,
                        "all" if queue.stream is None else stream_name(queue.stream),
                        queue.longest,
                        queue.mean_length,
                    )
                    for of_rank in self.queues
                    for queue in of_rank.queues
                ],
                "mean_length: over the time from the first launch to the last start.",
            ),
        )


def _figures(time: KernelTime) -> tuple[int | float, ...]:
    return (*astuple(time.durations), time.union_ns, time.share)


def kernels(timelines: Sequence[Timeline]) -> Kernels:
    """Return the kernels and launches of all ranks.

    Without a device, the host's operators take the place of kernels; their times include those of nested operators.
    """
    queues = tuple(launch_queue(timeline) for timeline in timelines if timeline.is_device)
    notes = [
        f"rank {timeline.rank}: its trace has no device: these are operators of the host, whose times include nested"
        " operators, and which have no launches"
        for timeline in timelines
        if not timeline.is_device and is_at_work(timeline).any()
    ]
    notes += [
        f"rank {timeline.rank}: nothing computes, communicates or copies in its trace"
        for timeline in timelines
        if not is_at_work(timeline).any()
    ]
    for queue in queues:
        if queue.unknown:
            notes.append(
                f"rank {queue.rank}: the trace lacks the launches of {queue.unknown} of its spans; delays and queues"
                " leave them out"
            )
        if queue.early:
            notes.append(
                f"rank {queue.rank}: {queue.early} launches come after their work by the trace's clocks;"
                " delays and queues leave them out"
            )
        if queue.spans_of_graphs:
            notes.append(
                f"rank {queue.rank}: graphs launched {queue.spans_of_graphs} spans; the delay of a graph is that of"
                " the first of them"
            )
    return Kernels(times=kernel_times(timelines), queues=queues, notes=tuple(notes))
