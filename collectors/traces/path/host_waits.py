"""When the host waits: for its device, in a call that says so, or for another of its threads, without a word.

A thread that waits for another is in no span, or in one that a person wrote around a part of the program. It is taken
to have waited if it was there for a while when another thread ended its work, and went on soon after: sooner than it
had been there. A stretch without a span in which a thread worked, while by chance another ended, looks alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collectors.traces.intervals import Times
from collectors.traces.path.device_queue import DeviceQueue, Rows, named
from collectors.traces.path.stream_waits import streams_of
from collectors.traces.path.thread_time import ThreadTime
from collectors.traces.spans import ABSENT, Timeline

LEAST_WAIT_NS = 20_000
"""Shorter stretches are no waits: the interpreter takes as long between two operators, and a thread to wake up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waking:
    """A thread of the host that waited until another had ended something."""

    thread: int
    begun_ns: int
    woken_ns: int
    by_thread: int
    ended_ns: int


def awaited(timeline: Timeline, queue: DeviceQueue) -> tuple[Rows, Rows]:
    """The calls in which the host waited for its device, and for each the index in the queue of what it waited for.

    Both as rows. A call that synchronises waits for what was put on the device before it, on its stream where the
    trace tells which one; a copy waits for itself where it ended within its call.
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
    """The waits of these threads for each other, and for what else ended.

    endings: by thread, when its work ended that others may wait for, beside the threads' own.
    begins_ns, ends_ns: of the whole trace; a thread may wait from the beginning, and to the end.
    """
    idle = {thread: _idle(stretches, timeline, begins_ns, ends_ns) for thread, stretches in threads.items()}
    moments = [(start, thread) for thread, stretches in idle.items() for start in stretches[0].tolist()]
    moments += [(int(end), thread) for thread, ends in endings.items() for end in ends.tolist()]
    moments.sort()
    times_ns = np.array([time for time, _ in moments], dtype=np.int64)
    found = []
    for thread, (starts_ns, stops_ns) in idle.items():
        latest = np.searchsorted(times_ns, stops_ns, side="right") - 1
        for start, stop, place in zip(starts_ns.tolist(), stops_ns.tolist(), latest.tolist(), strict=True):
            while place >= 0 and moments[place][1] == thread and moments[place][0] > start:
                place -= 1
            if place < 0 or moments[place][1] == thread or stop == ends_ns:
                continue
            ended, by = moments[place]
            if ended - start >= stop - ended:
                found.append(Waking(thread=thread, begun_ns=start, woken_ns=stop, by_thread=by, ended_ns=ended))
    return found


def _idle(stretches: ThreadTime, timeline: Timeline, begins_ns: int, ends_ns: int) -> tuple[Times, Times]:
    """Starts and ends of the stretches in which a thread may wait, the time before and after its spans with them."""
    is_annotation = named(timeline, ["::" not in name for name in timeline.names])
    is_written = is_annotation & (timeline.of_kind("host") | timeline.of_kind("step"))
    quiet = np.append(is_written, True)[stretches.row]
    starts_ns = np.concatenate(([begins_ns], stretches.start_ns[quiet], stretches.end_ns[-1:]))
    stops_ns = np.concatenate((stretches.start_ns[:1], stretches.end_ns[quiet], [ends_ns]))
    long = stops_ns - starts_ns >= LEAST_WAIT_NS
    return starts_ns[long], stops_ns[long]


def _last_before(timeline: Timeline, calls: Rows, queue: DeviceQueue, members: Rows) -> Rows:
    """Of these members of the queue the one that ended last within or before each call, of those called before it."""
    if not members.size:
        return np.full(calls.size, ABSENT, dtype=np.int64)
    members = members[np.argsort(queue.end_ns[members], kind="stable")]
    called_ns = queue.called_ns[members]
    place = np.searchsorted(queue.end_ns[members], timeline.end_ns[calls], side="right") - 1
    while (later := (place >= 0) & (called_ns[place] >= timeline.start_ns[calls])).any():
        place[later] -= 1
    return np.where(place >= 0, members[place], ABSENT)
