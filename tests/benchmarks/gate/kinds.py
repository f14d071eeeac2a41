"""Kinds of series that the detector is stressed with, one entry each: what differs from plain normal noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tests.benchmarks.gate.made_series import (
    NIGHT_SD,
    RERUNS,
    TRIAL_SD,
    Change,
    Draw,
    Recipe,
    exponential,
    log_normal,
    student_3,
)

Generator = np.random.Generator
Kind = Callable[[Generator, Recipe], None]
EARLIEST, SETTLED = 40, 30
"""First night of a change that is scored, and the nights that are left after one."""


def _plain(_: Generator, __: Recipe) -> None:
    pass


def _sized(percent: float) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        recipe.night_sd, recipe.trial_sd = percent / 100, 0.8 * percent / 100

    return kind


def _two_noisy_trials(_: Generator, recipe: Recipe) -> None:
    recipe.night_sd, recipe.trial_sd, recipe.trials = 0.02, 0.05, 2


def _noisier_from(night: int, *, of_trials: bool = True) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        factor = np.where(np.arange(recipe.nights) >= night, 3.0, 1.0)
        recipe.night_sd = NIGHT_SD * factor
        if of_trials:
            recipe.trial_sd = TRIAL_SD * factor

    return kind


def _gradual(first: float, last: float) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        factor = np.geomspace(first, last, recipe.nights)
        recipe.night_sd, recipe.trial_sd = NIGHT_SD * factor, TRIAL_SD * factor

    return kind


def _drawn(draw: Draw) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        recipe.draw, recipe.night_sd, recipe.trial_sd = draw, 0.01, 0.008

    return kind


def _correlated(phi: float) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        recipe.phi = phi

    return kind


def _weekly(generator: Generator, recipe: Recipe) -> None:
    day = (np.arange(recipe.nights) + generator.integers(7)) % 7
    recipe.level += np.where(day >= 5, 2 * NIGHT_SD, 0.0)


def _missing_nights(generator: Generator, recipe: Recipe) -> None:
    is_run = generator.random(2 * recipe.nights + 60) < 0.7
    recipe.numbers = np.flatnonzero(is_run)[: recipe.nights].tolist()


def _missing_weeks(generator: Generator, recipe: Recipe) -> None:
    gaps = np.where(generator.random(recipe.nights) < 0.03, generator.integers(7, 36, recipe.nights), 1)
    recipe.numbers = (np.cumsum(gaps) - gaps[0]).tolist()


def _trials(count: int) -> Kind:
    def kind(_: Generator, recipe: Recipe) -> None:
        recipe.trials = count

    return kind


def _bad_trials(_: Generator, recipe: Recipe) -> None:
    recipe.broken = 0.1


def _rounded(generator: Generator, recipe: Recipe) -> None:
    recipe.base_s, recipe.rounded_s = generator.uniform(0.0197, 0.0203), 0.001
    recipe.night_sd, recipe.trial_sd = 0.008, 0.006


def _placed(recipe: Recipe, hosts: np.ndarray, slower: np.ndarray) -> None:
    """Run each trial on a pair of hosts, as slow as the slower one; hosts: (night, night or reruns, pair)."""
    of_trial = [0] * recipe.trials + [1] * RERUNS
    names = [[" ".join(f"node{host}" for host in night[place]) for place in of_trial] for night in hosts.tolist()]
    recipe.placements, recipe.slower = names, slower[hosts].max(axis=2)[:, of_trial]


def _new_hosts(generator: Generator, recipe: Recipe) -> None:
    hosts = np.arange(4 * recipe.nights).reshape(recipe.nights, 2, 2)
    _placed(recipe, hosts, 0.01 * generator.standard_normal(hosts.size))


def _drawn_hosts(generator: Generator, recipe: Recipe) -> None:
    hosts = np.argsort(generator.random((recipe.nights, 2, 8)), axis=2)[:, :, :2]
    _placed(recipe, hosts, 0.01 * generator.standard_normal(8))


def _new_fleet(generator: Generator, recipe: Recipe) -> None:
    """All hosts replaced at once, and the new ones differ by some 2 %: placements' doing, and not to be paged."""
    fleet = (np.arange(recipe.nights) >= generator.integers(70, 110)).astype(int)
    hosts = np.stack([2 * fleet, 2 * fleet + 1], axis=1)[:, None, :].repeat(2, axis=1)
    offset = generator.choice([-0.02, 0.02])
    _placed(recipe, hosts, np.array([0.0, 0.0, offset, offset]))


def _spikes(length: int) -> Kind:
    def kind(generator: Generator, recipe: Recipe) -> None:
        night = int(generator.integers(15, 40))
        while night < recipe.nights:
            recipe.spikes[night] = length, math.log1p(generator.uniform(0.05, 0.5))
            night += length + int(generator.integers(25, 55))

    return kind


def _onset(generator: Generator, recipe: Recipe) -> int:
    return int(generator.integers(EARLIEST, recipe.nights - SETTLED))


def _changed(recipe: Recipe, change: Change) -> None:
    passed = np.arange(recipe.nights) - change.onset + 1
    recipe.level += change.log_size * np.clip(passed / max(change.ramp_nights, 1), 0, 1)
    recipe.changes.append(change)


def _step(generator: Generator, recipe: Recipe) -> None:
    size = math.log1p(generator.choice([2, 3, 5, 10, 30, 100]) / 100)
    _changed(recipe, Change(onset=_onset(generator, recipe), log_size=size * generator.choice([1, 1, 1, -1])))


def _ramp(generator: Generator, recipe: Recipe) -> None:
    size = math.log1p(generator.choice([5, 10, 30]) / 100)
    _changed(recipe, Change(onset=_onset(generator, recipe), log_size=size, ramp_nights=10))


def _in_modes(generator: Generator, recipe: Recipe, size: float, share: np.ndarray) -> None:
    """Let this share of nights be slow. Half of the time the reruns find the night's mode, else they draw their own."""
    is_slow = generator.random(recipe.nights) < share
    again = np.where(generator.random(recipe.nights) < 0.5, is_slow, generator.random(recipe.nights) < share)
    recipe.slower = size * np.repeat(np.stack([is_slow, again], axis=1), [recipe.trials, RERUNS], axis=1)


def _mixture(generator: Generator, recipe: Recipe) -> None:
    """Nights in two modes, 10 to 50 % apart; of one night in ten, nine in ten are slow from the onset on."""
    size, onset = math.log1p(generator.choice([10, 20, 50]) / 100), _onset(generator, recipe)
    _in_modes(generator, recipe, size, np.where(np.arange(recipe.nights) >= onset, 0.9, 0.1))
    recipe.changes.append(Change(onset=onset, log_size=0.8 * size))


def _two_modes(generator: Generator, recipe: Recipe) -> None:
    _in_modes(generator, recipe, math.log1p(0.03), np.full(recipe.nights, 0.3))


def _sticky_levels(generator: Generator, recipe: Recipe) -> None:
    """A level 3.5 % up that comes for weeks, goes, and comes back."""
    night, is_up = int(generator.integers(35, 50)), False
    while night < recipe.nights - 14:
        size = math.log1p(0.035) * (-1 if is_up else 1)
        _changed(recipe, Change(onset=night, log_size=size, is_return=len(recipe.changes) > 0))
        is_up = not is_up
        night += int(generator.integers(20, 40))


def _step_with_noise(generator: Generator, recipe: Recipe) -> None:
    _step(generator, recipe)
    factor = np.where(np.arange(recipe.nights) >= recipe.changes[0].onset, 3.0, 1.0)
    recipe.night_sd, recipe.trial_sd = NIGHT_SD * factor, TRIAL_SD * factor


def _drift(generator: Generator, recipe: Recipe) -> None:
    start, total = int(generator.integers(35, 60)), generator.uniform(0.02, 0.05)
    recipe.level += np.clip((np.arange(recipe.nights) - start) / 100, 0, 1) * total * generator.choice([1, -1])
    recipe.is_neutral = True


KINDS: dict[str, Kind] = {
    # Without a change: each alarm is false.
    "plain": _plain,
    "sd 0.3 %": _sized(0.3),
    "sd 1 %": _sized(1),
    "sd 3 %": _sized(3),
    "sd 10 %": _sized(10),
    "sd 40 %": _sized(40),
    "noise x3 from night 80": _noisier_from(80),
    "noise x3 from night 100": _noisier_from(100),
    "nights x3 from night 100": _noisier_from(100, of_trials=False),
    "growing noise": _gradual(1, 4),
    "shrinking noise": _gradual(4, 1),
    "Student's t, 3": _drawn(student_3),
    "exponential": _drawn(exponential),
    "log-normal": _drawn(log_normal),
    "correlation 0.5": _correlated(0.5),
    "correlation 0.8": _correlated(0.8),
    "correlation -0.4": _correlated(-0.4),
    "weekly": _weekly,
    "missing nights": _missing_nights,
    "missing weeks": _missing_weeks,
    "1 trial": _trials(1),
    "2 trials": _trials(2),
    "2 noisy trials": _two_noisy_trials,
    "bad trials": _bad_trials,
    "rounded": _rounded,
    "two modes of nights": _two_modes,
    "new hosts": _new_hosts,
    "drawn hosts": _drawn_hosts,
    "new fleet": _new_fleet,
    "spikes of 1 night": _spikes(1),
    "spikes of 2 nights": _spikes(2),
    "spikes of 3 nights": _spikes(3),
    "spikes of 4 nights": _spikes(4),
    # With changes, which are to be reported.
    "steps": _step,
    "ramps": _ramp,
    "mixtures": _mixture,
    "sticky levels": _sticky_levels,
    "steps with noise": _step_with_noise,
    # Neither right nor wrong.
    "drift": _drift,
}
POWER_KINDS = (
    "plain",
    "sd 1 %",
    "sd 3 %",
    "sd 10 %",
    "sd 40 %",
    "2 noisy trials",
    "Student's t, 3",
    "exponential",
    "correlation 0.5",
    "1 trial",
    "bad trials",
    "rounded",
    "growing noise",
)
"""Kinds whose power is measured: one of each that a user can tell his own series by."""
