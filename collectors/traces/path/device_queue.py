"""What one rank's device did, stream by stream, and when the host had asked for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times
from collectors.traces.names import GLOO
from collectors.traces.spans import Timeline
from collectors.traces.steps.launches import is_at_work, launches

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceQueue:
    """The device's spans, by stream and start; spans of one stream run one after another.

    row: of the span. start_ns, end_ns, stream: its own. call: the row of the call that put it there, or `ABSENT`.
    called_ns: when that call began; of what was called before the trace, long ago. is_placed: whether this is known;
    otherwise it is when the span itself began.
    """

    row: Rows
    start_ns: Times
    end_ns: Times
    stream: NDArray[np.int64]
    call: Rows
    called_ns: Times
    is_placed: NDArray[np.bool_]


def device_queue(timeline: Timeline) -> DeviceQueue:
    """What the device of this rank did."""
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
    """Per span whether it ran on the device; gloo's run on the host, also where ranks share a device."""
    if not timeline.is_device:
        return np.zeros(timeline.kind.size, dtype=np.bool_)
    return is_at_work(timeline) & ~named(timeline, [name.startswith(GLOO) for name in timeline.names])


def named(timeline: Timeline, is_chosen: list[bool]) -> NDArray[np.bool_]:
    """Per span whether its name is chosen. is_chosen: per name."""
    return np.array(is_chosen, dtype=np.bool_)[timeline.name]
