"""What the device ran, by kind and name, and how long after its launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectors.traces.spans import Timeline, stream_name
from collectors.traces.steps.durations import COLUMNS
from collectors.traces.steps.kernel_times import KernelTimes, kernel_times
from collectors.traces.steps.launch_queue import LaunchQueue, launch_queue
from collectors.traces.steps.launches import is_at_work
from collectors.traces.table import Column, Table

_AFTER = (*COLUMNS, Column(name="union", unit="ns"), Column(name="share", unit="ratio"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """What ran, and of each rank with a device its launches. notes: what is not known, and why."""

    times: KernelTimes
    queues: tuple[LaunchQueue, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """By name, by kind, the delays of launches, and the queues."""
        return (
            Table(
                name="kernels",
                title="What ran, by name, over all ranks",
                columns=(Column(name="kind"), Column(name="name"), *_AFTER),
                rows=tuple(
                    (time.kind, time.name, *time.durations.cells(), time.union_ns, time.share)
                    for time in self.times.by_name
                ),
            ),
            Table(
                name="kinds",
                title="What ran, by kind, on each rank",
                columns=(Column(name="rank"), Column(name="kind"), *_AFTER),
                rows=tuple(
                    (time.rank, time.kind, *time.durations.cells(), time.union_ns, time.share)
                    for time in self.times.by_kind
                ),
            ),
            Table(
                name="launch_delays",
                title="From the start of a launch to the start of what it launched; a graph is one launch",
                columns=(Column(name="rank"), Column(name="kind"), *COLUMNS),
                rows=tuple(
                    (queue.rank, kind, *delays.cells())
                    for queue in self.queues
                    for kind, delays in queue.delays.items()
                ),
            ),
            Table(
                name="queues",
                title="How much was launched and not started",
                columns=(
                    Column(name="rank"),
                    Column(name="stream"),
                    Column(name="longest"),
                    Column(name="mean_length"),
                ),
                rows=tuple(
                    (
                        found.rank,
                        "all" if queue.stream is None else stream_name(queue.stream),
                        queue.longest,
                        queue.mean_length,
                    )
                    for found in self.queues
                    for queue in found.queues
                ),
                notes=("mean_length: over the time from the first launch to the last start.",),
            ),
        )


def kernels(timelines: Sequence[Timeline]) -> Kernels:
    """What all ranks ran; of a trace without a device, the operators of its host, whose times hold those within."""
    queues = tuple(launch_queue(timeline) for timeline in timelines if timeline.is_device)
    notes = [
        f"rank {timeline.rank}: its trace has no device: these are operators of the host, which hold each other's"
        " times, and have no launches"
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
                f"rank {queue.rank}: the trace holds no launch of {queue.unknown} of its spans; they have no delay, and"
                " no place in the queue"
            )
        if queue.early:
            notes.append(
                f"rank {queue.rank}: {queue.early} launches come after what they launched by the trace's clocks;"
                " delays and queues leave them out"
            )
        if queue.spans_of_graphs:
            notes.append(
                f"rank {queue.rank}: graphs launched {queue.spans_of_graphs} spans; the delay of a graph is that of"
                " the first of them"
            )
    return Kernels(times=kernel_times(timelines), queues=queues, notes=tuple(notes))
