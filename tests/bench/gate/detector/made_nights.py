"""Nights of series whose truth is known, and how the detector judges them one after another."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.gate.detector.detector import JudgedNight, confirm_by_rerun, judge
from bench.gate.detector.night import Night, TrialSample
from bench.gate.detector.state import SeriesState

Reruns = Callable[[Night], tuple[TrialSample, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of logarithms: of nights, and of trials."""

    night_sd: float = 0.005
    trial_sd: float = 0.004


QUIET = Noise(night_sd=0.0, trial_sd=0.0)


def trial(log_median: float, placement: str = "pool") -> TrialSample:
    return TrialSample(log_median=log_median, mad=0.01, steps=30, placement=placement)


def made(levels: Sequence[float], noise: Noise, seed: int = 0, trials: int = 3) -> list[Night]:
    """Return a night at each level, with effects of night and trial."""
    generator = random.Random(seed)
    nights = []
    for number, level in enumerate(levels):
        middle = level + generator.gauss(0, noise.night_sd)
        values = tuple(trial(middle + generator.gauss(0, noise.trial_sd)) for _ in range(trials))
        nights.append(Night(number=number, trials=values))
    return nights


def same_again(night: Night) -> tuple[TrialSample, ...]:
    return night.trials


def at(level: float) -> Reruns:
    """Return what reruns at this level show."""
    return lambda night: tuple(trial(level + offset) for offset in (-0.001, 0.0, 0.001))


def trials_of(nights: Sequence[Night]) -> Reruns:
    """Return reruns that are the trials of another series' nights."""
    return lambda night: nights[night.number].trials


def judged(nights: Sequence[Night], reruns: Reruns | None = same_again) -> list[JudgedNight]:
    """Return the last verdict on each night, after its reruns where they were asked for and can be had."""
    state: SeriesState | None = None
    found = []
    for night in nights:
        one = judge(state, night)
        if one.reruns_wanted and reruns is not None:
            one = confirm_by_rerun(one.state, reruns(night))
        state = one.state
        found.append(one)
    return found


def pages(found: Sequence[JudgedNight]) -> list[tuple[int, int, int]]:
    """Return onset, direction and night of each page."""
    return [
        (one.alert.onset, one.alert.direction, one.alert.raised)
        for one in found
        if one.verdict == "page" and one.alert is not None
    ]


def alerts(found: Sequence[JudgedNight]) -> list[tuple[int, int]]:
    """Return onset and direction of each new alert of tier 1."""
    return [
        (one.alert.onset, one.alert.direction)
        for one in found
        if one.verdict == "alert" and one.is_new and one.alert is not None
    ]
