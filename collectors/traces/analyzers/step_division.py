"""Divides the time of steps, or other intervals of a rank's trace, exactly among the work in them.

Computation has precedence, then communication that it does not cover (exposed), then copies that neither covers; the
rest is idle. If several spans of a kind overlap, the time belongs to the one that started last. The amounts add up to
the length of the intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from collectors.traces.analyzers.idle import idle_causes
from collectors.traces.event_names import collective_of
from collectors.traces.intervals import Times, intersection, union, without
from collectors.traces.operators import Foreground, launching_operators
from collectors.traces.steps import StepInterval, is_at_work
from collectors.traces.timeline import ABSENT, KINDS, SpanKind, Timeline

StepPart = Literal["compute", "exposed_communication", "exposed_copies", "idle"]
PARTS: tuple[StepPart, ...] = get_args(StepPart)

UNTIL_THE_END = "the end"
"""The name of the next work, for idle time that nothing follows."""

_PART_OF: Mapping[SpanKind, StepPart] = {
    "compute": "compute",
    "communication": "exposed_communication",
    "copy": "exposed_copies",
}
"""In order of precedence."""

Numbers = NDArray[np.int64]
Exact: TypeAlias = int | Fraction


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Item:
    """The key that an amount of time belongs to; a field is "" if the trace lacks it, or if it was summed over.

    name: of the kernel or operator; for idle time, of the next work.
    collective: of communication. operator: that launched it. shape: the sizes of the operator's inputs; for
        communication, the number and type of this rank's input elements. cause: of idle time.
    """

    part: StepPart
    name: str = ""
    collective: str = ""
    operator: str = ""
    shape: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTime:
    """The time of an item.

    exposed_ns: time of its own, not hidden behind others. count: number of its spans that started.
    work_ns: duration of its spans, minus that of spans of its kind nested inside them on the same stream.
    """

    exposed_ns: Exact
    work_ns: Exact
    count: Exact

    def __add__(self, other: ItemTime) -> ItemTime:
        return ItemTime(
            exposed_ns=self.exposed_ns + other.exposed_ns,
            work_ns=self.work_ns + other.work_ns,
            count=self.count + other.count,
        )

    def __mul__(self, share: Fraction) -> ItemTime:
        return ItemTime(exposed_ns=self.exposed_ns * share, work_ns=self.work_ns * share, count=self.count * share)


NOTHING = ItemTime(exposed_ns=0, work_ns=0, count=0)


def amounts_of(timeline: Timeline, parts: Sequence[StepInterval]) -> dict[Item, ItemTime]:
    """Return the amounts of all these intervals together, by item."""
    window = union(
        np.array([part.start_ns for part in parts], dtype=np.int64),
        np.array([part.end_ns for part in parts], dtype=np.int64),
    )
    exposed_ns, work_ns = np.zeros((2, timeline.name.size), dtype=np.int64)
    # The time that each kind leaves is available to the next; the rest is idle.
    free = window
    for kind in _PART_OF:
        rows = np.flatnonzero(timeline.of_kind(kind))
        _add_owned(timeline, rows, free, exposed_ns)
        for stream in np.unique(timeline.stream[rows]):
            _add_owned(timeline, rows[timeline.stream[rows] == stream], window, work_ns)
        free = without(free, timeline.intervals(kind))
    rows = np.flatnonzero(is_at_work(timeline))
    # A span started in the window if the nanosecond after its start lies in it.
    started = length_before(window, timeline.start_ns + 1) > length_before(window, timeline.start_ns)
    involved = rows[started[rows] | (exposed_ns[rows] > 0) | (work_ns[rows] > 0)]
    return _by_item(timeline, involved, exposed_ns, work_ns, started) | _idle(timeline, free)


def _add_owned(timeline: Timeline, rows: Numbers, within: Times, amounts_ns: Numbers) -> None:
    """Add to each row's amount the time within the set that the row owns among these rows."""
    pieces = Foreground(timeline.start_ns[rows], timeline.end_ns[rows]).pieces()
    lengths_ns = length_before(within, pieces.end_ns) - length_before(within, pieces.start_ns)
    np.add.at(amounts_ns, rows[pieces.owner], lengths_ns)


def length_before(intervals: Times, moments_ns: Times) -> Times:
    """Return how much of the set lies before each moment.

    Example: intervals [0, 4) and [10, 12), moments 2, 7, 11 give 2, 4, 5.
    """
    if not intervals.size:
        return np.zeros(moments_ns.size, dtype=np.int64)
    begun = np.searchsorted(intervals[:, 0], moments_ns, side="left")
    lengths_ns = np.append(0, (intervals[:, 1] - intervals[:, 0]).cumsum())
    to_come_ns = np.maximum(intervals[begun - 1, 1] - moments_ns, 0)
    return np.where(begun > 0, lengths_ns[begun] - to_come_ns, 0)


def _by_item(
    timeline: Timeline, rows: Numbers, exposed_ns: Numbers, work_ns: Numbers, started: NDArray[np.bool_]
) -> dict[Item, ItemTime]:
    """Return the rows' amounts, added up over rows of the same item."""
    operator = launching_operators(timeline)[rows]
    # If a row has no operator, its index is -1, which selects the `ABSENT` appended to the column.
    operators, shapes = (np.append(column, ABSENT)[operator] for column in (timeline.name, timeline.shape))
    _, first, alike = np.unique(
        _joint(timeline.kind[rows], timeline.name[rows], timeline.call[rows], operators, shapes),
        return_index=True,
        return_inverse=True,
    )
    totals = np.zeros((first.size, 3), dtype=np.int64)
    np.add.at(totals, alike, np.stack((exposed_ns[rows], work_ns[rows], started[rows]), axis=1))
    amounts: dict[Item, ItemTime] = {}
    for index, total in zip(first.tolist(), totals.tolist(), strict=True):
        item = _item(timeline, int(rows[index]), int(operators[index]), int(shapes[index]))
        amounts[item] = amounts.get(item, NOTHING) + ItemTime(exposed_ns=total[0], work_ns=total[1], count=total[2])
    return amounts


def _joint(*columns: NDArray[np.signedinteger[Any]]) -> Numbers:
    """Return a number for each row, equal if all columns are equal. Columns contain `ABSENT` and larger numbers.

    Each column is a digit of a mixed-radix number: (2, 1) in columns up to 9 and 4 is (2 + 1) * 6 + (1 + 1). Before
    the number exceeds 64 bits, the joint values so far are renumbered from 0.
    """
    joint = np.zeros(columns[0].size, dtype=np.int64)
    below = 1
    for column in columns:
        width = int(column.max(initial=ABSENT)) + 2
        if below * width > np.iinfo(np.int64).max:
            keys, joint = np.unique(joint, return_inverse=True)
            below = keys.size
        joint = joint * width + column + 1
        below *= width
    return joint


def _item(timeline: Timeline, row: int, operator: int, shape: int) -> Item:
    kind, name, call = KINDS[timeline.kind[row]], timeline.names[timeline.name[row]], timeline.call[row]
    collective = size = ""
    if call != ABSENT:
        collective = timeline.calls[call].collective
        size_and_dtype = (timeline.calls[call].given_elements, timeline.calls[call].dtype)
        size = " ".join(str(word) for word in size_and_dtype if word is not None)
    elif kind == "communication":
        collective = collective_of(name)
    return Item(
        part=_PART_OF[kind],
        name=name,
        collective=collective,
        operator="" if operator == ABSENT else timeline.names[operator],
        shape=size if kind == "communication" else "" if shape == ABSENT else timeline.shapes[shape],
    )


def _idle(timeline: Timeline, free: Times) -> dict[Item, ItemTime]:
    """Return the time in which nothing ran, by cause and by the next work."""
    amounts: dict[Item, ItemTime] = {}
    if not free.size:
        return amounts
    rows = np.flatnonzero(is_at_work(timeline) & (timeline.end_ns > timeline.start_ns))
    # The next work starts as the gap ends. A gap that is cut by the end of its interval has none.
    following = np.searchsorted(timeline.start_ns[rows], free[:, 1], side="left")
    is_followed = np.append(timeline.start_ns[rows], np.iinfo(np.int64).max)[following] == free[:, 1]
    next_name = np.append(timeline.name[rows], ABSENT)[np.where(is_followed, following, rows.size)]
    # Causes belong to whole gaps, which an interval may cut.
    causes = idle_causes(
        timeline,
        int(timeline.start_ns.min(initial=free[0, 0])),
        int(timeline.end_ns.max(initial=free[-1, 1])),
    )
    for cause, times in causes.by_cause.items():
        pieces = np.empty((0, 2), dtype=np.int64) if times is None else intersection(free, times)
        names, alike = np.unique(
            next_name[np.searchsorted(free[:, 0], pieces[:, 0], side="right") - 1], return_inverse=True
        )
        totals = np.zeros((names.size, 2), dtype=np.int64)
        np.add.at(totals, alike, np.stack((pieces[:, 1] - pieces[:, 0], np.ones_like(alike)), axis=1))
        for name, (length_ns, count) in zip(names.tolist(), totals.tolist(), strict=True):
            item = Item(part="idle", cause=cause, name=UNTIL_THE_END if name == ABSENT else timeline.names[name])
            amounts[item] = ItemTime(exposed_ns=length_ns, work_ns=length_ns, count=count)
    return amounts
