"""The joined ranks of all trials of a run: Estimates of who waits for whom, with a reason for what is absent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.case import Case
from bench.errors import Misuse
from bench.joined_ranks import Joined, join_ranks
from bench.judgement.estimate import Estimate, estimate, estimate_part, estimate_share
from bench.judgement.held_up import held_up
from bench.kept_windows import window_path
from bench.trace_reading import read_files
from bench.trial_notes import said_once
from bench.window_counts import windows_by_trial
from collectors.catalogue.joined_ranks import METRICS
from collectors.metric import Metric

_METRICS = {metric.name: metric for metric in METRICS}


def joined_estimates(case: Case, folder: Path, trials: int) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """What the windows of the run's ranks say together; what is absent, with its reason; and who the straggler is.

    folder: the run's. trials: so many are complete, the first ones; those of which a rank's window is missing or cannot
    be read or joined are left out and named. A run that traces nothing, of one rank or of a probe says nothing.
    """
    if case.model is None or case.ranks == 1 or not case.trace_steps or not trials:
        return (), ()
    joined: dict[int, Joined] = {}
    notes = []
    for trial in range(trials):
        paths = [window_path(folder, trial, rank) for rank in range(case.ranks)]
        if missing := [str(rank) for rank, path in enumerate(paths) if not path.exists()]:
            why = f"no window of rank {' and '.join(missing)} was kept"
        else:
            try:
                joined[trial] = join_ranks(read_files(paths))
                continue
            except (Misuse, ValueError) as error:
                why = str(error)
        notes.append(f"trial {trial} is left out of waits and stragglers: {why}")
    if not joined:
        return (), (*notes, "waits and stragglers are absent: of no trial can the windows of all ranks be joined")
    windows = windows_by_trial(folder)
    if (most := max(windows.get(trial, 1) for trial in joined)) > 1:
        notes.append(f"waits and stragglers are of the last of {most} windows of each trial; earlier ones are not kept")
    notes += said_once({trial: one.notes for trial, one in joined.items()})
    found = list(_estimates(joined, notes))
    straggler, said = held_up([one.lateness for one in joined.values()])
    if straggler is not None:
        found.append(straggler)
    return tuple(found), (*notes, said)


def _estimates(joined: Mapping[int, Joined], notes: list[str]) -> Iterator[Estimate]:
    """Of what all trials have; what a trial does not have is noted.

    joined: by trial.
    """
    by_trial = {
        trial: {(sample.metric, tuple(sample.labels.items())): sample.value for sample in one.samples}
        for trial, one in joined.items()
    }
    lacking: dict[str, list[str]] = {}
    for name, labels in dict.fromkeys(key for of_trial in by_trial.values() for key in of_trial):
        without = [str(trial) for trial, of_trial in by_trial.items() if (name, labels) not in of_trial]
        if without:
            of = f" of {' '.join(' '.join(label) for label in labels)}" if labels else ""
            lacking.setdefault(name, []).append(f"that{of} of trial {' and '.join(without)}")
        else:
            yield _estimate(_METRICS[name], [of_trial[name, labels] for of_trial in by_trial.values()], dict(labels))
    notes.extend(
        f"{name} is left out where a trial's traces do not tell it: {', '.join(told)}" for name, told in lacking.items()
    )


def _estimate(metric: Metric, values: Sequence[float], labels: Mapping[str, str]) -> Estimate:
    if metric.unit == "ratio":
        return estimate_share(metric, values, **labels)
    if min(values) > 0:
        return estimate(metric, values, **labels)
    # Nothing has no logarithm, so that the interval is of the values themselves; none is below nothing.
    found = estimate_part(metric, values, middle=median(values), **labels)
    return found if found.low is None else replace(found, low=max(0.0, found.low))
