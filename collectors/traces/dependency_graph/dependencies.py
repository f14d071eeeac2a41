"""Dependency rules within a rank: which spans of its device and which of its host threads waited for which.

    rule              who waits                         for what
    stream order      a span of the device              the previous span on its stream
    launch            a span of the device              the call that launched it, and the minimum delay of a launch
    stream wait       a span of the device              a span on another stream: recorded (`stream_waits`), or
                                                        inferred from times (`inferred_stream_waits`, in CUDA graphs)
    synchronisation   a call on the host                a span of the device
    waking            a thread that was idle            another thread's end of work, inferred from times (`wakings`)
    enqueuing         a collective on gloo's threads    the c10d operator that enqueued it

Each rule is a function that returns pairs of source and waiter; `DeviceQueue` has those of launches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.event_names import GLOO
from collectors.traces.intervals import Times
from collectors.traces.operators import Foreground
from collectors.traces.steps import LONG_AGO, is_at_work, launches
from collectors.traces.timeline import ABSENT, Timeline

# The device's spans, stream by stream, and the calls that launched them.

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceQueue:
    """The device's spans, sorted by stream and start; spans of one stream run one after another.

    row, start_ns, end_ns, stream: of the span. call: the row of the call that launched it, or `ABSENT`.
    called_ns: start of that call; `LONG_AGO` if it was before the trace; the span's own start if it is unknown.
    is_placed: whether `called_ns` is known.
    """

    row: Rows
    start_ns: Times
    end_ns: Times
    stream: NDArray[np.int64]
    call: Rows
    called_ns: Times
    is_placed: NDArray[np.bool_]


def device_queue(timeline: Timeline) -> DeviceQueue:
    row = np.flatnonzero(on_device(timeline))
    row = row[np.lexsort((row, timeline.stream[row]))]
    launched, start_ns = launches(timeline), timeline.start_ns[row]
    is_placed = launched.is_known[row]
    return DeviceQueue(
        row=row,
        start_ns=start_ns,
        end_ns=timeline.end_ns[row],
        stream=timeline.stream[row],
        call=launched.row[row],
        called_ns=np.where(is_placed, launched.start_ns[row], start_ns),
        is_placed=is_placed,
    )


def on_device(timeline: Timeline) -> NDArray[np.bool_]:
    """Return for each span whether it ran on the device. gloo's spans always run on the host."""
    if not timeline.is_device:
        return np.zeros(timeline.kind.size, dtype=np.bool_)
    return is_at_work(timeline) & ~named(timeline, [name.startswith(GLOO) for name in timeline.names])


def stream_order(queue: DeviceQueue) -> tuple[Rows, Rows]:
    """Return the spans waited for and the spans that waited, pair by pair, as indices in the queue."""
    before = np.flatnonzero(queue.stream[1:] == queue.stream[:-1])
    return before, before + 1


def least_delay_ns(queue: DeviceQueue) -> int:
    """Return the minimum time from a call to its span's start in this rank's trace.

    At most `LEAST_WAIT_NS`: if a device always lags behind its host, its trace does not show the minimum.
    """
    delay_ns = (queue.start_ns - queue.called_ns)[queue.call != ABSENT]
    return int(delay_ns[delay_ns >= 0].min(initial=LEAST_WAIT_NS))


def named(timeline: Timeline, is_chosen: list[bool]) -> NDArray[np.bool_]:
    """Return for each span whether its name is chosen. is_chosen: for each name of the Timeline."""
    return np.array(is_chosen, dtype=np.bool_)[timeline.name]


# Cross-stream dependencies from recorded StreamWaitEvent calls.
#
# A trace records that a stream had to wait, but not for which span. We assume the span on another stream that ended
# last before the waiting span started, among those launched before the wait. If the trace does not name the waiting
# stream, the wait applies to the next launch of the calling thread.


def stream_waits(timeline: Timeline, queue: DeviceQueue) -> tuple[Rows, Rows]:
    """Return the spans waited for and the spans that waited, pair by pair, as indices in the queue."""
    names = ["StreamWaitEvent" in name for name in timeline.names]
    calls = np.flatnonzero(timeline.of_kind("launch") & named(timeline, names))
    waiting = _waiting(timeline, queue, calls)
    calls, waiting = calls[waiting != ABSENT], waiting[waiting != ABSENT]
    wait_ns, began_ns = timeline.start_ns[calls], queue.start_ns[waiting]
    waited_for = np.full(calls.size, ABSENT, dtype=np.int64)
    ended_ns = np.full(calls.size, LONG_AGO, dtype=np.int64)
    for stream in np.unique(queue.stream):
        on_stream = np.flatnonzero(queue.stream == stream)
        # For each wait, the number of this stream's spans that ended before the waiting span and were launched before
        # the wait. A stream runs in order, so these are its first spans, and the last of them ended last.
        last = np.minimum(
            np.searchsorted(np.maximum.accumulate(queue.end_ns[on_stream]), began_ns, side="right"),
            np.searchsorted(np.maximum.accumulate(queue.called_ns[on_stream]), wait_ns, side="left"),
        )
        last_kernel = on_stream[np.maximum(last, 1) - 1]
        later = (last > 0) & (queue.stream[waiting] != stream) & (queue.end_ns[last_kernel] > ended_ns)
        waited_for[later], ended_ns[later] = last_kernel[later], queue.end_ns[last_kernel[later]]
    known = waited_for != ABSENT
    return waited_for[known], waiting[known]


def streams_of(timeline: Timeline, calls: Rows) -> NDArray[np.int64]:
    """Return the stream of each call, from the event with its correlation; `ABSENT` if there is none."""
    events = np.flatnonzero(timeline.of_kind("wait") & named(timeline, ["Stream" in name for name in timeline.names]))
    by_correlation = dict(zip(timeline.correlation[events].tolist(), timeline.stream[events].tolist(), strict=True))
    by_correlation.pop(ABSENT, None)
    return np.array([by_correlation.get(key, ABSENT) for key in timeline.correlation[calls].tolist()], dtype=np.int64)


def _waiting(timeline: Timeline, queue: DeviceQueue, calls: Rows) -> Rows:
    """Return for each wait call the first span launched on the waiting stream after it, or `ABSENT`."""
    called = np.flatnonzero(queue.call != ABSENT)
    wait_ns, stream = timeline.start_ns[calls], streams_of(timeline, calls)
    by_stream = _next_launched(queue, called, queue.stream[called], wait_ns, stream)
    # If the trace does not name the stream, the wait applies to the next launch of the calling thread.
    thread = np.where(stream == ABSENT, timeline.stream[calls], ABSENT)
    by_thread = _next_launched(queue, called, timeline.stream[queue.call[called]], wait_ns, thread)
    return np.where(stream == ABSENT, by_thread, by_stream)


def _next_launched(
    queue: DeviceQueue, called: Rows, lane_of_called: NDArray[np.int64], wait_ns: Times, lane: NDArray[np.int64]
) -> Rows:
    """Return for each wait the first span launched in its lane at or after it, or `ABSENT`.

    A lane is a stream or a calling thread. called: launched spans, as indices in the queue.
    lane: of each wait; `ABSENT` for none.
    """
    next_call = np.full(wait_ns.size, ABSENT, dtype=np.int64)
    for number in np.unique(lane[lane != ABSENT]):
        mine, on_lane = np.flatnonzero(lane == number), called[lane_of_called == number]
        on_lane = on_lane[np.argsort(queue.called_ns[on_lane], kind="stable")]
        first = np.searchsorted(queue.called_ns[on_lane], wait_ns[mine], side="left")
        has_next = first < on_lane.size
        next_call[mine[has_next]] = on_lane[first[has_next]]
    return next_call


# The span that a host thread was in at any time, from its first span to its last.


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTime:
    """Contiguous stretches of a thread's time: each ends where the next begins.

    row: the innermost span that the thread was in; `ABSENT` if it was in none.
    """

    start_ns: Times
    end_ns: Times
    row: Rows

    def within(self, start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
        """Return start, end and row of each stretch in a window, clipped to it."""
        first = max(int(np.searchsorted(self.start_ns, start_ns, side="right")) - 1, 0)
        behind = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        cut_start_ns = np.maximum(self.start_ns[first:behind], start_ns)
        cut_end_ns = np.minimum(self.end_ns[first:behind], end_ns)
        lasting = cut_end_ns > cut_start_ns
        columns = (cut_start_ns[lasting], cut_end_ns[lasting], self.row[first:behind][lasting])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def spent_ns(self, chosen: NDArray[np.bool_], moments_ns: Times) -> Times:
        """Return the time spent in chosen rows before each moment. chosen: per row, with a last entry for `ABSENT`."""
        is_chosen = chosen[self.row]
        lasting_ns = np.where(is_chosen, self.end_ns - self.start_ns, 0)
        before_ns = np.cumsum(lasting_ns) - lasting_ns
        # Whole stretches before the moment, plus part of the stretch that contains it.
        stretch = np.maximum(np.searchsorted(self.start_ns, moments_ns, side="right") - 1, 0)
        inside_ns = np.clip(moments_ns - self.start_ns[stretch], 0, lasting_ns[stretch])
        spent: Times = before_ns[stretch] + inside_ns
        return spent


def thread_time(timeline: Timeline, row: Rows) -> ThreadTime:
    """Return the time of the thread with these spans."""
    row = row[timeline.end_ns[row] > timeline.start_ns[row]]
    pieces = Foreground(timeline.start_ns[row], timeline.end_ns[row]).pieces()
    # The pieces of innermost spans, and the gaps between them as pieces without a row.
    gap = np.flatnonzero(pieces.start_ns[1:] > pieces.end_ns[:-1])
    start_ns = np.concatenate((pieces.start_ns, pieces.end_ns[gap]))
    end_ns = np.concatenate((pieces.end_ns, pieces.start_ns[gap + 1]))
    inside = np.concatenate((row[pieces.owner], np.full(gap.size, ABSENT, dtype=np.int64)))
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns, inside = start_ns[order], end_ns[order], inside[order]
    # Merge neighbouring pieces of the same row into a stretch.
    begins = np.flatnonzero(np.concatenate(([True], inside[1:] != inside[:-1]))[: inside.size])
    return ThreadTime(
        start_ns=start_ns[begins],
        end_ns=end_ns[np.append(begins[1:], inside.size) - 1] if inside.size else end_ns,
        row=inside[begins],
    )


# Waits of the host for its device, and of its threads for each other.
#
# A trace does not record that a thread waits for another: the thread is in no span, or in a user's annotation. We
# assume that it waited if it was idle when the other thread ended its work and continued soon after: no later after
# that end than it had been idle before it. A thread that works outside any span while another happens to end looks the
# same.

LEAST_WAIT_NS = 20_000
"""Shorter stretches are not waits: the interpreter between two operators, and waking a thread, take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waking:
    """A wait of a host thread, from begun_ns to woken_ns, for work that by_thread ended at ended_ns."""

    thread: int
    begun_ns: int
    woken_ns: int
    by_thread: int
    ended_ns: int


def synchronisations(timeline: Timeline, queue: DeviceQueue) -> tuple[Rows, Rows]:
    """Return the rows of calls in which the host waited for its device, and the queue indices of the spans waited for.

    A synchronising call waits for work launched before it: on its stream, or on all streams if the trace names none. A
    copy's call waits for its own copy if that ended within the call.
    """
    calls = np.flatnonzero(timeline.of_kind("launch") & named(timeline, ["Synchronize" in n for n in timeline.names]))
    streams = streams_of(timeline, calls)
    last = np.full(calls.size, ABSENT, dtype=np.int64)
    for stream in np.unique(streams):
        chosen = streams == stream
        members = np.arange(queue.row.size) if stream == ABSENT else np.flatnonzero(queue.stream == stream)
        last[chosen] = _last_before(timeline, calls[chosen], queue, members)
    is_copy = named(timeline, ["Memcpy" in name for name in timeline.names])
    called = queue.call != ABSENT
    own = np.flatnonzero(called & is_copy[queue.call] & (queue.end_ns <= timeline.end_ns[queue.call]))
    known = last != ABSENT
    return np.concatenate((calls[known], queue.call[own])), np.concatenate((last[known], own))


def wakings(
    threads: Mapping[int, ThreadTime], endings: Mapping[int, Times], timeline: Timeline, begins_ns: int, ends_ns: int
) -> list[Waking]:
    """Return the waits of these threads for each other, and for other threads' endings.

    endings: by thread, additional times at which it ended work that others may wait for.
    begins_ns, ends_ns: of the whole trace. Threads are idle before their first span and after their last; a thread that
    is idle until the trace's end is not woken.

    Example: a thread is idle from 0 to 100 us. If another ends its work at 90 us, that woke it, since 90 >= 10. If the
    other ends at 30 us, it did not, since 30 < 70.
    """
    idle = {thread: _idle(stretches, timeline, begins_ns, ends_ns) for thread, stretches in threads.items()}
    # All ends of work, by time: the moments at which threads become idle, and the other endings.
    moments = [(start, thread) for thread, stretches in idle.items() for start in stretches[0].tolist()]
    moments += [(int(end), thread) for thread, ends in endings.items() for end in ends.tolist()]
    moments.sort()
    times_ns = np.array([time for time, _ in moments], dtype=np.int64)
    waits = []
    for thread, (starts_ns, stops_ns) in idle.items():
        latest = np.searchsorted(times_ns, stops_ns, side="right") - 1
        for start, stop, index in zip(starts_ns.tolist(), stops_ns.tolist(), latest.tolist(), strict=True):
            # The last end of work by another thread within the idle stretch.
            while index >= 0 and moments[index][1] == thread and moments[index][0] > start:
                index -= 1
            if index < 0 or moments[index][1] == thread or stop == ends_ns:
                continue
            ended, by = moments[index]
            if ended - start >= stop - ended:
                waits.append(Waking(thread=thread, begun_ns=start, woken_ns=stop, by_thread=by, ended_ns=ended))
    return waits


ENQUEUING = "c10d::"
"""Prefix of the operators that enqueue collectives."""


def enqueuings(timeline: Timeline, served: Rows, workers: list[int]) -> tuple[Rows, Rows]:
    """Return the collectives of gloo's own threads, and for each the last c10d operator that began before it.

    served: the rows of these collectives; those without a preceding operator are left out. workers: threads that
    enqueue.
    """
    is_enqueuing = named(timeline, [name.startswith(ENQUEUING) for name in timeline.names]) & timeline.of_kind("host")
    operators = np.flatnonzero(is_enqueuing & np.isin(timeline.stream, workers))
    last = np.searchsorted(timeline.start_ns[operators], timeline.start_ns[served], side="right") - 1
    return served[last >= 0], operators[last[last >= 0]]


def _idle(stretches: ThreadTime, timeline: Timeline, begins_ns: int, ends_ns: int) -> tuple[Times, Times]:
    """Return starts and ends of the stretches in which a thread may wait: outside spans, or in annotations."""
    is_annotation = named(timeline, ["::" not in name for name in timeline.names])
    is_written = is_annotation & (timeline.of_kind("host") | timeline.of_kind("step"))
    quiet = np.append(is_written, True)[stretches.row]
    starts_ns = np.concatenate(([begins_ns], stretches.start_ns[quiet], stretches.end_ns[-1:]))
    stops_ns = np.concatenate((stretches.start_ns[:1], stretches.end_ns[quiet], [ends_ns]))
    long = stops_ns - starts_ns >= LEAST_WAIT_NS
    return starts_ns[long], stops_ns[long]


def _last_before(timeline: Timeline, calls: Rows, queue: DeviceQueue, members: Rows) -> Rows:
    """Return for each call the member launched before it that ended last before the call's end, or `ABSENT`.

    members: indices in the queue.
    """
    if not members.size:
        return np.full(calls.size, ABSENT, dtype=np.int64)
    members = members[np.argsort(queue.end_ns[members], kind="stable")]
    called_ns = queue.called_ns[members]
    index = np.searchsorted(queue.end_ns[members], timeline.end_ns[calls], side="right") - 1
    while (later := (index >= 0) & (called_ns[index] >= timeline.start_ns[calls])).any():
        index[later] -= 1
    return np.where(index >= 0, members[index], ABSENT)


# Cross-stream dependencies that the trace does not record, for example inside a CUDA graph.
#
# We assume that a span that was ready (launched, its stream free) waited for the span on another stream that ended last
# before its start, if it started soon after: no later after that end than it had been ready before it. A span for which
# the device merely had no room until another happened to end looks the same.


def inferred_stream_waits(queue: DeviceQueue, source: Rows, target: Rows, least_delay_ns: int) -> tuple[Rows, Rows]:
    """Return the spans waited for and the spans that waited, pair by pair, as indices in the queue.

    source, target: the recorded waits, in the same form. least_delay_ns: minimum time from a call to a span's start.
    """
    before, after = stream_order(queue)
    # Ready: launched, the previous span on its stream ended, and its recorded waits over.
    ready_ns = np.where(queue.is_placed, queue.called_ns + least_delay_ns, LONG_AGO)
    ready_ns[after] = np.maximum(ready_ns[after], queue.end_ns[before])
    np.maximum.at(ready_ns, target, queue.end_ns[source])
    waiting = np.flatnonzero((ready_ns > LONG_AGO // 2) & (queue.start_ns - ready_ns >= LEAST_WAIT_NS))
    last_ended, is_soon = _ended_last(queue, waiting, ready_ns[waiting])
    return last_ended[is_soon], waiting[is_soon]


def _ended_last(queue: DeviceQueue, waiting: Rows, ready_ns: Times) -> tuple[Rows, NDArray[np.bool_]]:
    """Return for each waiting span the span on another stream that ended last before it, and whether that fits.

    It must have been launched no later and have ended while the span was ready, and the span must start soon after.
    """
    by_end = np.argsort(queue.end_ns, kind="stable")
    index = np.searchsorted(queue.end_ns[by_end], queue.start_ns[waiting], side="right") - 1
    while True:
        last_ended = by_end[np.maximum(index, 0)]
        is_after = (index >= 0) & (queue.end_ns[last_ended] > ready_ns)
        is_wrong = (queue.stream[last_ended] == queue.stream[waiting]) | (
            queue.called_ns[last_ended] > queue.called_ns[waiting]
        )
        if not (is_after & is_wrong).any():
            is_soon = queue.start_ns[waiting] - queue.end_ns[last_ended] <= queue.end_ns[last_ended] - ready_ns
            return last_ended, is_after & is_soon
        # If it is on the same stream, or was launched later, try the span that ended before it.
        index[is_after & is_wrong] -= 1
