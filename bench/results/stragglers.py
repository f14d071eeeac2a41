"""Waits and stragglers of a run: estimates from the profiler windows of all its ranks, joined trial by trial.

In each trial the ranks' windows are matched to show which rank waited for which in a collective. The trials then give
estimates, the straggler, and a reason for what is absent.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import get_args

from bench.case import Case
from bench.errors import Misuse
from bench.machine.placement import read_placement
from bench.results.estimate import Estimate, estimate, estimate_part, estimate_share
from bench.results.timelines import read_files, window_path, windows_by_trial
from collectors.metrics import results as results_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.results import RUN_STRAGGLER_RATIO
from collectors.rank.rank_list import listed
from collectors.traces.analyzers.collectives import Collectives, collectives
from collectors.traces.analyzers.lateness import TracedLateness, traced_lateness
from collectors.traces.analyzers.stragglers import NoStraggler, verdict
from collectors.traces.cross_rank.clock_sync import Alignment
from collectors.traces.cross_rank.collective_times import CollectiveTime
from collectors.traces.cross_rank.matching import Matching
from collectors.traces.timeline import Timeline
from workloads.cost_models.terms import Collective

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTrial:
    """One trial's joined windows. samples: of the run's metrics. notes: what was left out or assumed, no duplicates."""

    samples: tuple[Sample, ...]
    lateness: TracedLateness
    notes: tuple[str, ...]


def join_ranks(timelines: Sequence[Timeline]) -> JoinedTrial:
    """Join the windows of all ranks of a trial.

    Raises:
        ValueError: two Timelines have the same rank.
    """
    joined = collectives(timelines)
    lateness = traced_lateness(joined)
    samples = list(_of_collectives(joined))
    for rank_lateness in lateness.ranks:
        rank = str(rank_lateness.rank)
        samples.append(results_metrics.RUN_LAST_RATIO.at(rank_lateness.last / rank_lateness.collectives, rank=rank))
        if lateness.traced_ns:
            delay_ratio = min(1.0, rank_lateness.delay_ns / lateness.traced_ns)
            samples.append(results_metrics.RUN_HELD_UP_RATIO.at(delay_ratio, rank=rank))
    # Collectives that move data and have a time, but no bandwidth.
    timed, with_bandwidth = (
        {rank_lateness.labels["collective"] for rank_lateness in samples if rank_lateness.metric == metric.name}
        for metric in (results_metrics.RUN_COLLECTIVE_TRANSFER_SECONDS, results_metrics.RUN_TRACED_BUS_BANDWIDTH)
    )
    notes = list(_left_out(joined.matching, timelines))
    if absent := sorted((timed - with_bandwidth) & set(get_args(Collective))):
        names = ", ".join(absent)
        notes.append(f"traced bus bandwidth of {names} is left out; `observatory analyse collectives` shows why")
    notes += (*joined.notes, *joined.matching.notes, *joined.alignment.notes)
    return JoinedTrial(samples=tuple(samples), lateness=lateness, notes=tuple(dict.fromkeys(notes)))


def _left_out(matching: Matching, timelines: Sequence[Timeline]) -> Iterator[str]:
    if not matching.unmatched:
        return
    events = sum(int(timeline.of_kind("communication").sum()) for timeline in timelines)
    counts = sorted(
        Counter(unmatched.reason for unmatched in matching.unmatched).items(), key=lambda item: (-item[1], item[0])
    )
    reasons = [f"{count} ({reason})" for reason, count in counts[:_REASONS_SHOWN]]
    if remaining := sum(count for _, count in counts[_REASONS_SHOWN:]):
        reasons.append(f"{remaining} (for other reasons; `observatory analyse collectives` lists them)")
    yield f"waits leave out {len(matching.unmatched)} of {events} events of communication: {', '.join(reasons)}"


def _of_collectives(collectives_of_trial: Collectives) -> Iterator[Sample]:
    if collectives_of_trial.waiting_ratio is not None:
        yield results_metrics.RUN_WAITING_RATIO.at(collectives_of_trial.waiting_ratio)
    by_name: dict[str, list[CollectiveTime]] = defaultdict(list)
    for time in collectives_of_trial.times:
        if not time.matched.is_first:
            by_name[time.matched.collective].append(time)
    for name, times in sorted(by_name.items()):
        wait_ns = fmean(ns for time in times for ns in time.wait_ns)
        transfer_ns = fmean(ns for time in times for ns in time.transfer_ns)
        yield results_metrics.RUN_COLLECTIVE_WAIT_SECONDS.at(wait_ns / 1e9, collective=name)
        yield results_metrics.RUN_COLLECTIVE_TRANSFER_SECONDS.at(transfer_ns / 1e9, collective=name)
        # The mean bandwidth of all calls, weighted by their time; absent if that of any call is unknown.
        elapsed_ns = [max(time.end_ns) - max(time.arrival_ns) for time in times]
        speeds = [time.bus_bandwidth for time in times if time.bus_bandwidth is not None]
        if len(speeds) == len(times):
            moved = sum(speed * ns for speed, ns in zip(speeds, elapsed_ns, strict=True))
            yield results_metrics.RUN_TRACED_BUS_BANDWIDTH.at(moved / sum(elapsed_ns), collective=name)
    if (residual_ns := _residual_ns(collectives_of_trial.alignment)) is not None:
        yield results_metrics.RUN_CLOCK_RESIDUAL_SECONDS.at(residual_ns / 1e9)


def _residual_ns(alignment: Alignment) -> int | None:
    """Return how far times of different clocks may be off; None if unknown, or if the ranks share one clock."""
    host_of = {timeline.rank: timeline.about.host for timeline in alignment.timelines}
    residuals_ns = []
    for agreement in alignment.agreements:
        hosts = {host_of[rank] for rank in agreement.ranks}
        # Within one host a residual of 0 is a definition and not a measurement. A positive one counts: the host's ranks
        # then have several clocks.
        if agreement.residual_ns is not None and (agreement.residual_ns or None in hosts or len(hosts) > 1):
            residuals_ns.append(agreement.residual_ns)
    return max(residuals_ns, default=None)


# The straggler over all trials, by the rule of `collectors.traces.analyzers.stragglers`


def find_straggler(
    trials: Sequence[TracedLateness], node_of: Callable[[int], str | None] = lambda rank: None
) -> tuple[Estimate | None, str]:
    """Return the straggler's share of the traced time, None if there is no straggler; and the verdict in words.

    node_of: returns the name of a rank's node; None if there is only one node, or if it is unknown.

    The unit of evidence is the trial: a rank that is late in only one trial may be late by chance, however many steps
    were traced.
    """
    result = verdict(trials)
    if isinstance(result, NoStraggler):
        more = "" if result.more is None else f"; use --trials {len(trials) + result.more} or more"
        certainty = "no straggler" if result.likely is None else f"straggler: {result.likely}, not certain"
        return None, f"{certainty}: {result.why}{more}"
    doing = f" ({', '.join(result.names)})" if result.names else ""
    where = "" if (node := node_of(result.rank)) is None else f" on {node}"
    note = (
        f"rank {result.rank}{where} holds the others up by {result.cause}{doing}: it has"
        f" {100 * result.delay_ratio:.0f} % of"
        " the lateness in traced steps"
    )
    return estimate_share(RUN_STRAGGLER_RATIO, result.cost_ratios, rank=str(result.rank), cause=result.cause), note


# Notes of several trials, without repetition

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def merge_trials(notes_by_trial: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """Yield each note of the trials once, with its trial if not all trials have it.

    Of notes that differ only in their numbers, yield those of the trial with the largest numbers:
        {0: ["2 of 40 events"], 1: ["7 of 40 events"]}  ->  "trial 1, the worst of 2: 7 of 40 events"
    """
    # Keyed by the note without its numbers: its forms in each trial.
    forms_of: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for trial, notes in notes_by_trial.items():
        for note in dict.fromkeys(notes):
            of_trial = forms_of[_NUMBER.sub("0", note)]
            of_trial[trial] = (*of_trial.get(trial, ()), note)
    for of_trial in forms_of.values():
        worst = max(
            of_trial,
            key=lambda trial: [[float(number) for number in _NUMBER.findall(note)] for note in of_trial[trial]],
        )
        if len(set(of_trial.values())) > 1:
            where = f"trial {worst}, the worst of {len(of_trial)}: "
        elif len(of_trial) < len(notes_by_trial):
            where = f"trial {' and '.join(map(str, of_trial))}: "
        else:
            where = ""
        yield from (f"{where}{note}" for note in of_trial[worst])


# Estimates over the joined trials of a run

_METRICS = {metric.name: metric for metric in results_metrics.METRICS}


def joined_estimates(case: Case, folder: Path, trials: int) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the estimates of waits and stragglers, and notes on what is absent and on the straggler.

    Both are empty for a run that traced nothing, a run of one rank, and a probe's run. folder: the run's. trials: the
    number of complete trials, counted from the first; a note names each trial that is left out because a rank's window
    is missing, or cannot be read or joined.
    """
    if case.model is None or case.ranks == 1 or not case.trace_steps or not trials:
        return (), ()
    joined: dict[int, JoinedTrial] = {}
    left_out: dict[str, list[int]] = defaultdict(list)  # Trials by reason.
    for trial in range(trials):
        paths = [window_path(folder, trial, rank) for rank in range(case.ranks)]
        if missing := [rank for rank, path in enumerate(paths) if not path.exists()]:
            why = f"no window of rank{'s' * (len(missing) > 1)} {listed(missing)} was kept"
        else:
            try:
                joined[trial] = join_ranks(read_files(paths))
                continue
            except (Misuse, ValueError) as error:
                why = str(error)
        left_out[why].append(trial)
    if not joined and len(left_out) == 1:
        return (), (f"waits and stragglers are absent: in each trial {why}",)
    notes = [
        f"trial {' and '.join(map(str, numbers))} is left out of waits and stragglers: {why}"
        for why, numbers in left_out.items()
    ]
    if not joined:
        return (), (*notes, "waits and stragglers are absent: the windows of all ranks can be joined in no trial")
    windows = windows_by_trial(folder)
    if (most := max(windows.get(trial, 1) for trial in joined)) > 1:
        notes.append(f"waits and stragglers are of the last of {most} windows of each trial; earlier ones are not kept")
    notes += merge_trials({trial: joined_trial.notes for trial, joined_trial in joined.items()})
    estimates = list(_estimates(joined, notes))
    placement = read_placement(folder)
    straggler, note = find_straggler(
        [joined_trial.lateness for joined_trial in joined.values()],
        (lambda rank: None) if placement is None else placement.node_of,
    )
    if straggler is not None:
        estimates.append(straggler)
    return tuple(estimates), (*notes, note)


def _estimates(joined: Mapping[int, JoinedTrial], notes: list[str]) -> Iterator[Estimate]:
    """Estimate each metric that all trials have; add a note for each that a trial lacks.

    joined: by trial.
    """
    by_trial = {
        trial: {(sample.metric, tuple(sample.labels.items())): sample.value for sample in joined_trial.samples}
        for trial, joined_trial in joined.items()
    }
    lacking: dict[str, list[str]] = {}
    for name, labels in dict.fromkeys(key for of_trial in by_trial.values() for key in of_trial):
        lacking_trials = [str(trial) for trial, of_trial in by_trial.items() if (name, labels) not in of_trial]
        if lacking_trials:
            of = f" of {' '.join(' '.join(label) for label in labels)}" if labels else ""
            lacking.setdefault(name, []).append(f"that{of} of trial {' and '.join(lacking_trials)}")
        else:
            yield _estimate(_METRICS[name], [of_trial[name, labels] for of_trial in by_trial.values()], dict(labels))
    notes.extend(
        f"{name} is left out where a trial's traces do not show it: {', '.join(labels)}"
        for name, labels in lacking.items()
    )


def _estimate(metric: Metric, values: Sequence[float], labels: Mapping[str, str]) -> Estimate:
    if metric.unit == "ratio":
        return estimate_share(metric, values, **labels)
    if min(values) > 0:
        return estimate(metric, values, **labels)
    # A value of 0 has no logarithm, so the interval is that of the values themselves, clipped at 0.
    plain = estimate_part(metric, values, middle=median(values), **labels)
    return plain if plain.low is None else replace(plain, low=max(0.0, plain.low))
