"""Series of nights whose truth is known, by kind of noise and of change: what the detector is stressed with.

A value is level + night effect + placement + trial effect, all natural logarithms. Night effects are a first-order
autoregression. Reruns are fresh trials of the same night, hours later: seven tenths of the night's effect and three
spikes of ten are still there.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.gate.detector.night import Night, TrialSample

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
RERUNS = 3
STEPS = 30
NIGHT_SD, TRIAL_SD = 0.005, 0.004
STEPS_SCATTER = 3.0
"""How many times wider the steps of a trial scatter than the trials of a night."""
EFFECT_LEFT, SPIKES_LEFT = 0.7, 0.3
MAD_OF_NORMAL = 0.6745


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return generator.standard_normal(shape)


def student_3(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Student's t with 3 degrees of freedom, of deviation 1."""
    return generator.standard_t(3, shape) / math.sqrt(3)


def exponential(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Only ever slower than the fastest: mean 0, deviation 1."""
    return generator.exponential(1.0, shape) - 1


def log_normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Only ever slower, with a long tail: the exponential of a standard normal, less its mean, of deviation 1."""
    return (generator.lognormal(0.0, 1.0, shape) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the level: its first night, and the nights until all of it is there. log_size: with its sign.

    is_return: the level has been there before.
    """

    onset: int
    log_size: float
    ramp_nights: int = 0
    is_return: bool = False


@dataclass(slots=True, kw_only=True)
class Recipe:
    """What a series is made of; fields of one number hold for all nights.

    level: of each night. spikes: the first night of each disturbance, with its length and size. broken: share of trials
    that something broke. numbers: of the nights, where some are missing. slower: by how much each trial is slower,
    reruns after the night's own. placements: what each of them ran on. rounded_s: to what trials are rounded, where
    level 0 is base_s. is_neutral: an alarm is neither right nor wrong.
    """

    nights: int
    level: Array
    night_sd: Array | float = NIGHT_SD
    trial_sd: Array | float = TRIAL_SD
    draw: Draw = normal
    phi: float = 0.0
    trials: int = 3
    broken: float = 0.0
    spikes: dict[int, tuple[int, float]] = field(default_factory=dict)
    numbers: Sequence[int] = ()
    slower: Array | float = 0.0
    placements: list[list[str]] | None = None
    base_s: float = 0.5
    rounded_s: float | None = None
    changes: list[Change] = field(default_factory=list)
    is_neutral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeSeries:
    """A series with its truth. values, mads: of a night's trials, then of its reruns. spiked: the disturbed nights."""

    values: Array
    mads: Array
    trials: int
    numbers: Sequence[int]
    placements: list[list[str]] | None
    base_s: float
    rounded_s: float | None
    changes: Sequence[Change]
    spiked: frozenset[int]
    is_neutral: bool

    def night(self, position: int, added: float = 0.0) -> Night:
        """Return a night as the gate takes it; added: to its level."""
        return Night(number=self.numbers[position], trials=self._trials(position, 0, self.trials, added))

    def reruns(self, position: int, added: float = 0.0) -> tuple[TrialSample, ...]:
        """Return fresh trials of the same night."""
        return self._trials(position, self.trials, self.trials + RERUNS, added)

    def _trials(self, position: int, start: int, stop: int, added: float) -> tuple[TrialSample, ...]:
        values, mads = self.values[position, start:stop].tolist(), self.mads[position, start:stop].tolist()
        places = ["pool"] * len(values) if self.placements is None else self.placements[position][start:stop]
        return tuple(
            TrialSample(log_median=self._rounded(value + added), mad=mad, steps=STEPS, placement=place)
            for value, mad, place in zip(values, mads, places, strict=True)
        )

    def _rounded(self, value: float) -> float:
        if self.rounded_s is None:
            return value
        seconds = round(self.base_s * math.exp(value) / self.rounded_s) * self.rounded_s
        return math.log(max(seconds, self.rounded_s) / self.base_s)


def made(
    kinds: dict[str, Callable[[np.random.Generator, Recipe], None]], kind: str, *keys: int, nights: int
) -> MadeSeries:
    """Return the series of a kind that belongs to these keys: a seed and the series' number."""
    generator = np.random.default_rng([*keys, zlib.crc32(kind.encode())])
    recipe = Recipe(nights=nights, level=np.zeros(nights))
    kinds[kind](generator, recipe)
    return _filled(generator, recipe)


def _filled(generator: np.random.Generator, recipe: Recipe) -> MadeSeries:
    nights, trials = recipe.nights, recipe.trials
    night_sd = np.broadcast_to(recipe.night_sd, nights)
    trial_sd = np.broadcast_to(recipe.trial_sd, nights)[:, None]
    fresh = recipe.draw(generator, (nights, 2))
    effects, effect = np.empty(nights), 0.0
    for night in range(nights):
        kept = recipe.phi if night else 0.0
        effect = kept * effect + math.sqrt(1 - kept**2) * fresh[night, 0]
        effects[night] = effect
    again = EFFECT_LEFT * effects + math.sqrt(1 - EFFECT_LEFT**2) * fresh[:, 1]
    both = np.repeat(np.stack([night_sd * effects, night_sd * again], axis=1), [trials, RERUNS], axis=1)
    shape = (nights, trials + RERUNS)
    values = recipe.level[:, None] + recipe.slower + both + trial_sd * recipe.draw(generator, shape)
    values += (generator.random(shape) < recipe.broken) * generator.uniform(math.log(1.05), math.log(2), shape)
    spiked = set()
    for start, (length, log_size) in recipe.spikes.items():
        for night in range(start, min(start + length, nights)):
            values[night, :trials] += log_size
            values[night, trials:] += log_size * (generator.random() < SPIKES_LEFT)
            spiked.add(night)
    mads = MAD_OF_NORMAL * STEPS_SCATTER * trial_sd * np.exp(0.1 * generator.standard_normal(shape))
    return MadeSeries(
        values=values,
        mads=mads,
        trials=trials,
        numbers=list(recipe.numbers) or list(range(nights)),
        placements=recipe.placements,
        base_s=recipe.base_s,
        rounded_s=recipe.rounded_s,
        changes=recipe.changes,
        spiked=frozenset(spiked),
        is_neutral=recipe.is_neutral,
    )
