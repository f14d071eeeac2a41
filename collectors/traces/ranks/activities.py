"""What a rank did in the time before it came to a collective.

Where several things ran at once, the time is that of the one that ended last before the rank came, since that is what
it had waited for; what still ran when it came, it did not wait for. On a host, the loading of data comes before the
operators in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.gaps import without
from collectors.traces.intervals import Times, length_ns, union
from collectors.traces.names import DATA_LOADING
from collectors.traces.spans import Kind, Timeline
from collectors.traces.steps.foreground import Foreground

Activity = Literal["compute", "an earlier collective", "copy", "data loading", "host"]
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)
"""host: nothing of the others."""

_KINDS: Mapping[Activity, tuple[Kind, ...]] = {
    "compute": ("compute",),
    "an earlier collective": ("communication",),
    "copy": ("copy",),
    "data loading": ("host",),
    "host": ("host", "launch", "wait"),
}
_BUSY: tuple[Activity, ...] = ("compute", "an earlier collective", "copy", "data loading")


class Activities:
    """Those of one rank, at any time of its own clock."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._rows = {activity: _rows(timeline, activity) for activity in ACTIVITIES}
        self._ends_ns = {activity: np.sort(timeline.end_ns[self._rows[activity]]) for activity in _BUSY}
        self._busy = {
            activity: union(timeline.start_ns[self._rows[activity]], timeline.end_ns[self._rows[activity]])
            for activity in _BUSY
        }

    def by_last_end(self, start_ns: int, end_ns: int) -> list[Activity]:
        """All but the host, that which ended last in the window first."""
        order = sorted(_BUSY, key=lambda activity: -self._last_end_ns(activity, start_ns, end_ns))
        if not self._timeline.is_device:
            order.sort(key=lambda activity: activity != "data loading")
        return order

    def spent_ns(self, order: Sequence[Activity], start_ns: int, end_ns: int) -> dict[Activity, int]:
        """How much of the window each took; the parts add up to it. order: of what runs at once, the first counts."""
        spent_ns: dict[Activity, int] = {}
        covered = np.empty((0, 2), dtype=np.int64)
        for activity in order:
            wider = _together(covered, _clipped(self._busy[activity], start_ns, end_ns))
            spent_ns[activity] = length_ns(wider) - length_ns(covered)
            covered = wider
        spent_ns["host"] = end_ns - start_ns - length_ns(covered)
        return spent_ns

    def names_ns(self, activity: Activity, windows: Times) -> Counter[str]:
        """By name, how long events of the activity ran in these windows; of nested ones the innermost.

        windows: disjoint and in order. Of the host, only while it did nothing else.
        """
        timeline, rows = self._timeline, self._rows[activity]
        if activity == "host":
            windows = without(windows, reduce(_together, self._busy.values()))
        run_ns = np.zeros(len(timeline.names), dtype=np.int64)
        for stream in np.unique(timeline.stream[rows]):
            of_stream = rows[timeline.stream[rows] == stream]
            pieces = Foreground(timeline.start_ns[of_stream], timeline.end_ns[of_stream]).pieces()
            inside_ns = _until_ns(windows, pieces.end_ns) - _until_ns(windows, pieces.start_ns)
            np.add.at(run_ns, timeline.name[of_stream[pieces.owner]], inside_ns)
        return Counter({timeline.names[number]: int(run_ns[number]) for number in np.flatnonzero(run_ns)})

    def _last_end_ns(self, activity: Activity, start_ns: int, end_ns: int) -> int:
        """When the last of the activity's spans that ended in the window did; its start where none did."""
        ends_ns = self._ends_ns[activity]
        behind = int(np.searchsorted(ends_ns, end_ns, side="right"))
        return max(int(ends_ns[behind - 1]), start_ns) if behind else start_ns


def _rows(timeline: Timeline, activity: Activity) -> NDArray[np.int64]:
    """The rows of the activity's spans."""
    chosen = np.logical_or.reduce([timeline.of_kind(kind) for kind in _KINDS[activity]])
    if activity == "data loading":
        numbers = [number for number, name in enumerate(timeline.names) if DATA_LOADING.match(name)]
        chosen &= np.isin(timeline.name, numbers)
    return np.flatnonzero(chosen)


def _clipped(intervals: Times, start_ns: int, end_ns: int) -> Times:
    """What of the set lies in the window; of a long set and a short window sooner than `clip`."""
    first = int(np.searchsorted(intervals[:, 1], start_ns, side="right"))
    last = int(np.searchsorted(intervals[:, 0], end_ns, side="left"))
    return np.clip(intervals[first:last], start_ns, end_ns)


def _together(one: Times, other: Times) -> Times:
    both = np.concatenate((one, other))
    return union(both[:, 0], both[:, 1])


def _until_ns(windows: Times, moments_ns: Times) -> Times:
    """How much of the windows lies before each moment."""
    lasting_ns = windows[:, 1] - windows[:, 0]
    before_ns = np.concatenate(([0], np.cumsum(lasting_ns)))
    place = np.searchsorted(windows[:, 0], moments_ns, side="right")
    # Of the window that began last, what lies behind the moment is not before it.
    end_ns = np.concatenate(([np.iinfo(np.int64).min], windows[:, 1]))
    after_ns: Times = np.maximum(end_ns[place], moments_ns) - moments_ns
    return before_ns[place] - after_ns
