"""The critical path of each step across its ranks, and what a step would cost if a kind of work were free.

The path is the chain of kernels, launches, operators and collectives that made the step end when it did: from its end
backwards, at each moment to what came last of all that the moment was bound to. Its parts add up to the step exactly.
A collective begins to transfer when its last rank arrives, so that the path leaves a rank that waits, and goes on with
the one that was waited for.

Not covered: waits for a rank whose trace is not there, or whose clock is not compared; they count as communication.
Source: Kelley and Walker 1959 (the path); Zhu et al. 2020, Daydream (what a change of one kind of work would do).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectors.traces.intervals import Times
from collectors.traces.path.joined_graph import JoinedGraph, joined_graph
from collectors.traces.path.moments import PATH_KINDS, replay
from collectors.traces.path.one_clock import left_out, matched_within, of_ranks, ranks_on_one_clock
from collectors.traces.path.path_tables import path_tables
from collectors.traces.path.path_walk import PathWalk
from collectors.traces.path.step_path import StepPath
from collectors.traces.ranks.clocks import Alignment, align
from collectors.traces.ranks.common_steps import bounds_ns, common_steps, last_moment
from collectors.traces.ranks.matching import ROOTED, Matching, match
from collectors.traces.spans import Timeline
from collectors.traces.table import Table

WHOLE_TRACE = "whole trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The paths of all steps, on the clock that the ranks' were aligned to.

    notes: what was assumed, and what was left out.
    """

    steps: tuple[StepPath, ...]
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """The steps by kind of work, what they would cost without it, the ranks, the names, and one step's path."""
        return path_tables(self.steps)


def critical_path(timelines: Sequence[Timeline]) -> CriticalPath:
    """The critical path of these ranks' steps.

    Raises:
        ValueError: two Timelines are of one rank.
    """
    matching = match(timelines)
    return path_of(align(timelines, matching), matching)


def path_of(alignment: Alignment, matching: Matching) -> CriticalPath:
    """The critical path of ranks whose collectives are matched and whose clocks are aligned already.

    Where not all clocks are compared, that of the largest set of ranks whose are.
    """
    present = [timeline.rank for timeline in alignment.timelines if timeline.kind.size]
    if not present:
        return CriticalPath(steps=(), notes=("no span in any trace",))
    chosen = ranks_on_one_clock(alignment, present)
    aligned, within = of_ranks(alignment, chosen), matched_within(matching, chosen)
    ranks = aligned.applied()
    common = common_steps(ranks)
    joined = joined_graph(ranks, within.matched, common.marks)
    notes = [
        *left_out(chosen, present),
        *common.notes,
        *alignment.notes,
        *_of_matching(within, len(ranks)),
        *_of_moved(aligned),
    ]
    if not common.names:
        notes.append("no step is marked on every rank: the path is that of the whole trace")
    return CriticalPath(steps=_paths(joined, ranks, common.names or (WHOLE_TRACE,)), notes=tuple(notes))


def _paths(joined: JoinedGraph, ranks: Sequence[Timeline], names: Sequence[str]) -> tuple[StepPath, ...]:
    graph = joined.graph
    if not graph.time_ns.size:
        return ()
    walk = PathWalk(graph, ranks, joined.ranks)
    bounds = _bounds_ns(joined, graph.time_ns)
    present = [kind for number, kind in enumerate(PATH_KINDS) if kind == "delay" or graph.work_ns[:, number].any()]
    free = {kind: _bounds_ns(joined, replay(graph, kind)) for kind in present}
    return tuple(
        StepPath(
            step=name,
            start_ns=start_ns,
            end_ns=end_ns,
            parts=walk.back(_last(joined, step, end_ns), start_ns),
            free_ns={kind: int(changed[step, 1] - changed[step, 0]) for kind, changed in free.items()},
        )
        for step, (name, (start_ns, end_ns)) in enumerate(zip(names, bounds.tolist(), strict=True))
    )


def _bounds_ns(joined: JoinedGraph, came_ns: Times) -> Times:
    """Start and end of each step, where moments come at these times; where none is marked, of everything.

    Both move when work is free: the first step, too, begins when what was asked for before it is done. Everything
    begins with a moment that is bound to nothing, and so when it did.
    """
    if joined.marks[0].size:
        return bounds_ns(joined.graph, came_ns, joined.marks)
    return np.array([[came_ns.min(), came_ns.max()]], dtype=np.int64)


def _last(joined: JoinedGraph, step: int, end_ns: int) -> int:
    """The moment with which the step ended."""
    if joined.marks[0].size:
        return last_moment(joined.graph, step, end_ns, joined.marks)
    return int(np.argmax(joined.graph.time_ns))


def _of_moved(alignment: Alignment) -> list[str]:
    """How well clocks that were moved agree."""
    if not any(alignment.offset_ns.values()):
        return []
    if alignment.residual_ns is None:
        return ["the ranks' clocks were moved onto one by a single collective: how well they agree is not known"]
    return [
        f"the ranks' clocks, moved onto one, agree within {alignment.residual_ns / 1e3:g} us: so far the ends of one"
        " collective lie apart in the median"
    ]


def _of_matching(matching: Matching, ranks: int) -> list[str]:
    """What could not be matched, so that waiting for others counts as communication."""
    notes = list(matching.notes)
    if ranks == 1 and matching.unmatched:
        return [*notes, "one rank alone: what its communication waited for is not known, and counts as communication"]
    reasons = Counter(one.reason for one in matching.unmatched)
    notes += [
        f"{count} spans of communication were not matched, and count whole: {reason}"
        for reason, count in reasons.items()
    ]
    missing = sorted({rank for one in matching.matched for rank in one.missing})
    if missing:
        notes.append(
            f"no trace of rank {', '.join(map(str, missing))}: what others waited for there counts as communication"
        )
    if any(one.missing_count > len(one.missing) for one in matching.matched):
        notes.append(
            "process groups have more ranks than traces are here: what was waited for there counts as communication"
        )
    if any(one.collective in ROOTED for one in matching.matched):
        notes.append(
            "ranks of a rooted collective need not wait for all others: the path goes through the last to come"
            " wherever a rank left after that, as if it had to wait"
        )
    return notes
