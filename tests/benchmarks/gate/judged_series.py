"""Labelled series of the judge's generator, each judged by the detector, with what apache-otava needs to judge them.

The judge is a folder with `core.py` (scores) and `synth.py` (series), loaded by path: it is no part of this project.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from bench.gate.detector.detector import JudgedNight, confirm_by_rerun, judge
from bench.gate.detector.look_back import begun_again, look_back
from bench.gate.detector.night import Night, TrialSample, trial_sample
from bench.gate.detector.state import SeriesAlert, SeriesState

FILES = ("core.py", "synth.py", "detectors.py")
Alerts = list[dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSeries:
    """A series' alerts by rule, its labelled events, and how many trials were run beside the nightly ones.

    values, reruns: the median of all samples of each night and of its fresh trials, for rules that see only these;
    reruns are None where there were none.
    """

    name: str
    profile: str
    events: list[dict[str, Any]]
    nights: int
    trials: int
    extra_trials: int
    alerts: dict[str, Alerts]
    values: list[float]
    reruns: list[float] | None


def load(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Return the judge's core and synth.

    Raises:
        FileNotFoundError: the folder has no judge.
    """
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} has no {', '.join(missing)}; name the judge's folder with --judge FOLDER")
    sys.path.insert(0, str(folder))
    return importlib.import_module("core"), importlib.import_module("synth")


def fingerprint(folder: Path) -> str:
    """Return the first letters of the SHA-256 of the judge's files."""
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in FILES)).hexdigest()[:12]


def trials_of(samples: Sequence[float], trial: Sequence[int], host: Sequence[object]) -> tuple[TrialSample, ...]:
    """Return a night's trials from its samples, each with the number of its trial, and each trial's host."""
    values, numbers = np.asarray(samples), np.asarray(trial)
    return tuple(trial_sample(values[numbers == number].tolist(), str(place)) for number, place in enumerate(host))


def whole_night(
    state: SeriesState | None, night: Night, rerun: Callable[[], tuple[TrialSample, ...]] | None
) -> tuple[JudgedNight, int]:
    """Judge a night as `bench.gate.figure` does, with reruns where they are asked for; return also how many there were.

    What stands when looking back is a page, after which the regime begins again.
    """
    judged, reruns = judge(state, night), 0
    if judged.verdict == "suspicion" and rerun is not None:
        trials = rerun()
        judged, reruns = confirm_by_rerun(judged.state, trials), len(trials)
    standing = None if judged.state.unchanged is None else look_back(judged.state)
    if standing is None:
        return judged, reruns
    page = SeriesAlert(
        onset=standing.onset,
        onset_low=standing.onset_low,
        onset_high=standing.onset_high,
        direction=standing.direction,
        log_change=standing.log_change,
        log_change_low=standing.log_change_low,
        log_change_high=standing.log_change_high,
        raised=night.number,
        tier=2,
    )
    after = begun_again(judged.state, standing)
    return replace(judged, state=after, verdict="page", is_new=True, alert=page, reason=standing.reason), reruns


def judged(series: Mapping[str, Any]) -> JudgedSeries:
    """Judge a series night by night, with reruns where the detector asks for them."""
    state: SeriesState | None = None
    tiers: dict[str, Alerts] = {"tier 1": [], "tier 2": []}
    trials = extra = 0
    values, reruns = [], []
    for position, night in enumerate(series["history"]):
        # The generator's reruns are drawn once, so that all rules are given the same ones.
        again = night["rerun"](3)
        values.append(float(np.median(night["samples"])))
        reruns.append(float(np.median(again[0])))
        samples = Night(number=position, trials=trials_of(night["samples"], night["trial"], night["host"]))
        found, reruns_of_night = whole_night(state, samples, lambda again=again: trials_of(*again))  # type: ignore[misc]
        trials += len(night["host"])
        extra += reruns_of_night
        state = found.state
        if found.is_new and found.alert is not None:
            alert = {"index": found.alert.onset, "direction": found.alert.direction, "raised_at": position}
            # A page is an alert, too; one that was already open is no new one, as the score counts it.
            tiers["tier 1"].append(alert)
            if found.verdict == "page":
                tiers["tier 2"].append(alert)
    return JudgedSeries(
        name=series["name"],
        profile=series["profile"],
        events=series["events"],
        nights=len(series["history"]),
        trials=trials,
        extra_trials=extra,
        alerts=tiers,
        values=values,
        reruns=reruns,
    )


def judged_seed(folder: Path, seed: int, series_per_seed: int | None) -> list[JudgedSeries]:
    """Judge the series of a seed, or so many of them, evenly spread over its list."""
    _, synth = load(folder)
    suite = synth.suite(seed0=seed)
    return [judged(series) for series in evenly(suite, series_per_seed)]


def evenly(items: Sequence[Any], count: int | None) -> list[Any]:
    """Return so many of the items, evenly spread, all where count is None."""
    if count is None or count >= len(items):
        return list(items)
    return [items[number * len(items) // count] for number in range(count)]
