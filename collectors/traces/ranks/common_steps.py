"""The steps that all ranks have whole, and from when to when each lasts for all of them together.

A step is over when what any rank asked for until its end is done on every rank; it begins where the one before was
over, but not before it begins on the first rank (`stretches`). So no moment is in two steps, and while ranks go from
step to step none is lost, however far the devices are behind their hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.intervals import Times
from collectors.traces.path.moments import Graph, Numbers
from collectors.traces.path.rank_moments import Marks
from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import LONG_AGO
from collectors.traces.steps.stretches import steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSteps:
    """Steps in order. marks: per rank the moments of its host at which steps begin and end, in turn.

    notes: which steps were left out.
    """

    names: tuple[str, ...]
    marks: tuple[Marks, ...]
    notes: tuple[str, ...]


def common_steps(timelines: Sequence[Timeline]) -> CommonSteps:
    """Steps with a number in their name are the same if their names are; others if they come in the same place."""
    rows = [_rows_of_whole(timeline) for timeline in timelines]
    names = tuple(name for name in rows[0] if all(name in mine for mine in rows)) if rows else ()
    notes = [note for timeline in timelines for note in _cut(timeline)]
    if others := len(set().union(*rows)) - len(names):
        notes.append(f"{others} of the steps are left out: not every rank's trace holds them whole")
    return CommonSteps(
        names=names,
        marks=tuple(
            _marks(timeline, [mine[name] for name in names]) for timeline, mine in zip(timelines, rows, strict=True)
        ),
        notes=tuple(notes),
    )


def bounds_ns(graph: Graph, came_ns: Times, marks: Sequence[Numbers]) -> Times:
    """Start and end of each step, where moments come at these times.

    marks: per rank the moments of its marks.
    """
    reached = np.stack([_reached_ns(graph, came_ns, trace, numbers) for trace, numbers in enumerate(marks)])
    starts_ns, ends_ns = reached[:, ::2].min(axis=0), reached[:, 1::2].max(axis=0)
    ends_ns = np.maximum.accumulate(np.maximum(ends_ns, starts_ns[0]))
    starts_ns[1:] = np.clip(starts_ns[1:], ends_ns[:-1], ends_ns[1:])
    return np.stack((starts_ns, ends_ns), axis=1)


def last_moment(graph: Graph, step: int, end_ns: int, marks: Sequence[Numbers]) -> int:
    """The moment with which the step ended: a mark, or the end of what was asked for before it."""
    ending = np.flatnonzero(graph.time_ns == end_ns)
    asked = ending[(graph.mark[ending] != ABSENT) & (graph.mark[ending] <= 2 * step + 1)]
    marked = np.array([numbers[: 2 * step + 2] for numbers in marks], dtype=np.int64).ravel()
    return int(np.concatenate((asked, marked[graph.time_ns[marked] == end_ns]))[0])


def _rows_of_whole(timeline: Timeline) -> dict[str, int]:
    """By name the place in the Timeline of each step that it holds whole."""
    rows = np.flatnonzero(timeline.of_kind("step")).tolist()
    return {step.name: row for row, step in zip(rows, steps(timeline), strict=True) if step.part == "step"}


def _cut(timeline: Timeline) -> list[str]:
    """Why steps that are not whole are left out."""
    return [
        f"rank {timeline.rank}: {step.name} is left out: {step.why}" for step in steps(timeline) if step.part != "step"
    ]


def _reached_ns(graph: Graph, came_ns: Times, trace: int, marks: Numbers) -> Times:
    """When a rank had done all that it asked for before each mark; the mark itself where that was later."""
    chosen = np.flatnonzero((graph.trace == trace) & (graph.mark != ABSENT))
    done_ns = np.full(marks.size, LONG_AGO, dtype=np.int64)
    np.maximum.at(done_ns, graph.mark[chosen], came_ns[chosen])
    return np.maximum(np.maximum.accumulate(done_ns), came_ns[marks])


def _marks(timeline: Timeline, rows: Sequence[int]) -> Marks:
    row = np.array(rows, dtype=np.int64)
    times_ns = np.stack((timeline.start_ns[row], timeline.end_ns[row]), axis=1).ravel()
    return Marks(time_ns=times_ns, thread=np.repeat(timeline.stream[row], 2))
