"""Joins the traces of a watched run's window: overlap, waiting, the critical path, and the late rank and its phase.

The figures are those of `observatory analyse`. The phase comes from the times that the ranks recorded with their
traces: it is the one in which, after both left a collective, the late rank spent more time than the rank that arrived
before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from bench.errors import InfrastructureFailed, plural
from bench.results.timelines import read_traces, save_timeline
from bench.results.watched.details import Late, TracedWindow
from bench.results.watched.rank_files import PHASES
from bench.results.watched.still import BEFORE_BACKWARD, phase_words
from bench.results.watched.windows import RESULT, RankPhases, WindowFolder, missed, phases_of, window_folder
from collectors.files import replace_file
from collectors.traces.analyzers.collectives import Collectives, collectives
from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.analyzers.lateness import (
    Activities,
    Activity,
    LateArrival,
    late_arrivals,
    own_delays_ns,
    traced_lateness,
)
from collectors.traces.analyzers.stragglers import NoStraggler, Straggler, verdict
from collectors.traces.breakdown import breakdowns
from collectors.traces.cross_rank.matching import ROOTED
from collectors.traces.intervals import clip, length_ns, union
from collectors.traces.steps import launches
from collectors.traces.timeline import Timeline

LATE_RATIO = 0.05
"""A rank is named if it costs the others at least this share of the traced time; the same as for untraced steps."""
PHASE_RATIO = 0.6
"""A phase is named if it explains at least this share of the rank's delay."""
LEFT_LATER: Activity = "an earlier collective"
"""Activity of a rank that did no more work than the others, but left the previous collective later."""
NAMES = (*PHASES, BEFORE_BACKWARD)
"""Phases that a rank records with its trace."""
MOST_PARTS = 3
KEPT_TRACES = 4
"""Newest windows of a run whose traces are kept; of older windows, only the results are."""

PhaseTimes = Mapping[str, Sequence[tuple[int, int]]]


def join_window(run: Path, number: int) -> TracedWindow:
    """Join the traces of a window, keep them as the run's Timelines, and write its result.

    A window that a rank missed is dropped: its traces are removed.

    Raises:
        InfrastructureFailed: the run's folder cannot be written.
    """
    window = window_folder(run, number)
    try:
        result = _join(run, window)
        replace_file(window.path / RESULT, msgspec.json.encode(result))
    except OSError as error:
        raise InfrastructureFailed(f"{run} cannot be written: {error.strerror}; make room") from None
    _clear(window.path)
    _remove_old_traces(run)
    return result


def drop_window(run: Path, number: int, why: str) -> TracedWindow:
    """Write why a window has no result, and remove its traces.

    Raises:
        InfrastructureFailed: the run's folder cannot be written.
    """
    window = window_folder(run, number)
    result = _dropped(window, why)
    try:
        replace_file(window.path / RESULT, msgspec.json.encode(result))
    except OSError as error:
        raise InfrastructureFailed(f"{run} cannot be written: {error.strerror}; make room") from None
    _clear(window.path)
    return result


def trace_paths(window: WindowFolder) -> dict[int, Path]:
    """Return the completely written traces, by rank."""
    paths = {path.stem.removeprefix("rank"): path for path in window.path.glob("rank*.json")}
    return dict(sorted((int(rank), path) for rank, path in paths.items() if rank.isdecimal()))


def _join(run: Path, window: WindowFolder) -> TracedWindow:
    agreed = window.agreed
    if agreed is None:
        return _dropped(window, "no rank took the request")
    if agreed.dropped is not None:
        return _dropped(window, agreed.dropped)
    if lacking := missed(window):
        return _dropped(window, lacking[min(lacking)])
    paths = trace_paths(window)
    if absent := [rank for rank in range(agreed.world_size or 1) if rank not in paths]:
        return _dropped(window, f"{plural(len(absent), 'rank')} left no trace, for example rank {absent[0]}")
    read = read_traces(tuple(paths.values()))
    unreadable = [text for text in read if isinstance(text, str)]
    if unreadable:
        return _dropped(window, unreadable[0])
    timelines = [timeline for timeline in read if isinstance(timeline, Timeline)]
    if [timeline.rank for timeline in timelines] != list(paths):
        return _dropped(window, "a trace belongs to another rank than its file")
    phases = {rank: phases_of(window, rank) for rank in paths}
    timelines = [_with_last_step(timeline, phases[timeline.rank].steps) for timeline in timelines]
    for timeline in timelines:
        save_timeline(timeline, run, window.number)
    return analyse_window(window, timelines, phases)


def _with_last_step(timeline: Timeline, steps: Sequence[tuple[int, int]]) -> Timeline:
    """Return the Timeline with the true length of its last step, which in the trace lasts until the profiler stopped.

    steps: the traced steps that the rank recorded; empty if its file cannot be read.
    """
    rows = np.flatnonzero(timeline.of_kind("step"))
    if not steps or not len(rows):
        return timeline
    end_ns = timeline.end_ns.copy()
    began_ns, ended_ns = steps[-1]
    end_ns[rows[-1]] = min(end_ns[rows[-1]], timeline.start_ns[rows[-1]] + max(0, ended_ns - began_ns))
    return replace(timeline, end_ns=end_ns)


def _dropped(window: WindowFolder, why: str) -> TracedWindow:
    agreed = window.agreed
    if agreed is None:
        return TracedWindow(number=window.number, dropped=why)
    return TracedWindow(
        number=window.number,
        why=agreed.why,
        first=agreed.first,
        last=agreed.last,
        unix_s=agreed.unix_s,
        dropped=why,
    )


def analyse_window(
    window: WindowFolder, timelines: Sequence[Timeline], phases: Mapping[int, RankPhases]
) -> TracedWindow:
    """Return the figures of a window from the traces of all ranks. phases: by rank."""
    agreed = window.agreed
    assert agreed is not None, "the ranks agreed on steps that they traced"
    by_step = [each for timeline in timelines for each in breakdowns(timeline)]
    communicating = sum(each.communication_ns or 0 for each in by_step)
    steps_ns = sum(each.step_ns for each in by_step)
    exposed = sum(each.exposed_communication_ns or 0 for each in by_step)
    analysis = collectives(timelines)
    late, doing = find_late_rank(analysis, {rank: of_rank.phases for rank, of_rank in phases.items()})
    return TracedWindow(
        number=window.number,
        why=agreed.why,
        first=agreed.first,
        last=agreed.last,
        unix_s=agreed.unix_s,
        step_s=median(each.step_ns for each in by_step) / 1e9 if by_step else None,
        overlap_ratio=sum(each.overlap_ns or 0 for each in by_step) / communicating if communicating else None,
        exposed_ratio=exposed / steps_ns if communicating else None,
        waiting_ratio=analysis.waiting_ratio,
        late=late,
        doing=doing,
        path=_path(timelines),
        cost_s=max((of_rank.cost_ns for of_rank in phases.values()), default=0) / 1e9,
        notes=tuple(line for timeline in timelines for line in timeline.about.left_out)[:4],
    )


def find_late_rank(analysis: Collectives, phases: Mapping[int, PhaseTimes]) -> tuple[Late, str | None]:
    """Return the late rank and its phase, or why no rank is named; and the activity that makes it late.

    The rank is the one that `observatory analyse stragglers` names, if it costs at least `LATE_RATIO` of the traced
    time.
    phases: by rank, each phase's times on the rank's own clock.
    """
    lateness = traced_lateness(analysis)
    if len(analysis.alignment.timelines) < 2:
        return Late(verdict="unsure", reason="a single rank waits for nobody"), None
    judged = verdict([lateness], by="step")
    if isinstance(judged, NoStraggler):
        more = "" if judged.more is None else f"; trace at least {judged.more} more steps"
        return Late(verdict="unsure", reason=f"{judged.why}{more}"), None
    if judged.cause == LEFT_LATER:
        reason = (
            f"rank {judged.rank} arrives last because it leaves the previous collective later than the others: a slower"
            " link, or a busy host; no phase explains it"
        )
        return Late(verdict="unsure", reason=reason), None
    arrivals = _arrivals(analysis, judged.rank)
    cost_ratio = min(1.0, judged.delay_ns / max(1, lateness.traced_ns))
    if cost_ratio < LATE_RATIO:
        reason = (
            f"the costliest rank, {judged.rank}, delays the others for {100 * cost_ratio:.1f} % of the traced"
            f" time, and {100 * LATE_RATIO:.0f} % is needed"
        )
        return Late(verdict="unsure", reason=reason), None
    spent_ns = _phases_of_delay(analysis, judged, arrivals, phases)
    return _late(judged, spent_ns, cost_ratio, judged.delay_ns / max(1, lateness.delays_ns.shape[0])), judged.cause


def _late(judged: Straggler, spent_ns: Mapping[str, float], cost_ratio: float, late_ns: float) -> Late:
    phase = max(spent_ns, key=lambda name: spent_ns[name], default=None)
    share = 0.0 if phase is None else spent_ns[phase] / judged.delay_ns
    if share < PHASE_RATIO:
        phase = None
    where = (
        "no single phase explains the delay"
        if phase is None
        else f"{100 * min(1.0, share):.0f} % of the delay is {phase_words(phase)}"
    )
    return Late(
        verdict="late",
        reason=(
            f"the others wait for rank {judged.rank} for {100 * cost_ratio:.0f} % of the traced time; {where}"
            f" (activity: {judged.cause})"
        ),
        rank=judged.rank,
        phase=phase,
        late_s=late_ns / 1e9,
        step_ratio=cost_ratio,
    )


def _arrivals(analysis: Collectives, rank: int) -> list[LateArrival]:
    """Return the collectives at which this rank arrived last."""
    alignment = analysis.alignment
    activities = {timeline.rank: Activities(timeline) for timeline in alignment.timelines}
    times = [time for time in analysis.times if time.matched.collective not in ROOTED]
    late = late_arrivals(times, activities, alignment.offset_ns, alignment.residual_ns or 0)
    return [arrival for arrival in late if arrival.rank == rank]


def _phases_of_delay(
    analysis: Collectives, judged: Straggler, arrivals: Sequence[LateArrival], phases: Mapping[int, PhaseTimes]
) -> dict[str, float]:
    """Return how much longer the late rank spent in each phase than the rank that arrived before it, in nanoseconds.

    Of overlapping delays each counts only by what it adds, as in the rank's delay.
    """
    alignment = analysis.alignment
    by_rank = {timeline.rank: timeline for timeline in alignment.timelines}
    # If the device's own work made the rank late, the host's phases ended long before; each kernel's launch gives its
    # phase.
    is_device = by_rank[judged.rank].is_device and judged.cause not in ("host", "data loading")
    spent_ns = dict.fromkeys(NAMES, 0.0)
    launched = (
        {rank: _Launched(timeline, phases.get(rank, {})) for rank, timeline in by_rank.items()} if is_device else {}
    )
    for arrival, own_ns in zip(arrivals, own_delays_ns(arrivals), strict=True):
        other, windows = _windows(arrival, alignment.offset_ns)
        for rank, sign in ((arrival.rank, 1), (other, -1)):
            for name in NAMES:
                if is_device:
                    within_ns = launched[rank].within_ns(name, windows[rank])
                else:
                    within_ns = _within_ns(phases.get(rank, {}).get(name, ()), windows[rank])
                spent_ns[name] += sign * within_ns * own_ns / arrival.delay_ns
    return spent_ns


def _windows(arrival: LateArrival, offset_ns: Mapping[int, int]) -> tuple[int, dict[int, tuple[int, int]]]:
    """Return the rank that arrived just before the late one, and the window to compare, on the clock of each."""
    other = min(arrival.waits_ns, key=lambda rank: arrival.waits_ns[rank])
    began_ns = arrival.window_ns[0] + offset_ns[arrival.rank]
    came_ns = arrival.arrival_ns - arrival.waits_ns[other]
    return other, {
        arrival.rank: arrival.window_ns,
        other: (began_ns - offset_ns[other], max(began_ns, came_ns) - offset_ns[other]),
    }


def _within_ns(times: Sequence[tuple[int, int]], window_ns: tuple[int, int]) -> int:
    if not times:
        return 0
    columns = np.array(times, dtype=np.int64)
    return length_ns(clip(union(columns[:, 0], columns[:, 1]), *window_ns))


class _Launched:
    """A device's computation, grouped by the phase in which the host launched it."""

    def __init__(self, timeline: Timeline, phases: PhaseTimes) -> None:
        rows = np.flatnonzero(timeline.of_kind("compute"))
        launched_ns = launches(timeline).start_ns[rows]
        self._busy = {}
        for name in NAMES:
            edges = np.array(phases.get(name, ()), dtype=np.int64).reshape(-1, 2)
            place = np.searchsorted(edges[:, 0], launched_ns, side="right") - 1
            is_inside = (place >= 0) & (launched_ns < edges[np.maximum(place, 0), 1]) if len(edges) else place >= 0
            chosen = rows[is_inside]
            self._busy[name] = union(timeline.start_ns[chosen], timeline.end_ns[chosen])

    def within_ns(self, name: str, window_ns: tuple[int, int]) -> int:
        return length_ns(clip(self._busy[name], *window_ns))


def _path(timelines: Sequence[Timeline]) -> tuple[tuple[int, str, float], ...]:
    """Return the longest parts of the critical path through the traced steps: rank, kind and share."""
    lasting_ns: Counter[tuple[int, str]] = Counter()
    for step in critical_path(timelines).steps:
        for part in step.parts:
            lasting_ns[part.rank, part.kind] += part.lasting_ns
    total_ns = sum(lasting_ns.values())
    return tuple((rank, kind, part_ns / total_ns) for (rank, kind), part_ns in lasting_ns.most_common(MOST_PARTS))


def _clear(folder: Path) -> None:
    """Remove the ranks' own files, which the result and the Timelines replace; what cannot be removed stays."""
    for path in folder.glob("rank*"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _remove_old_traces(run: Path) -> None:
    """Remove the Timelines of all but the newest windows; what cannot be removed, and other files, stay."""
    numbers = sorted(int(path.name[5:]) for path in run.glob("trial*") if path.name[5:].isdecimal())
    for number in numbers[:-KEPT_TRACES]:
        folder = run / f"trial{number}"
        for path in folder.glob("rank*.timeline.npz"):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()
