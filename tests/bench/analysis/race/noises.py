"""Noise of simulated races: costs of cases' trials, round by round, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bench.analysis.race.looks import MOST_ROUNDS

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]
"""Gives the logarithms of the noise of MOST_ROUNDS rounds of so many cases, a row a round, in the cases' order."""


def _autoregressive(random: np.random.Generator, shape: tuple[int, int], share: float) -> Floats:
    """Rows of unit variance, each of which keeps this share of the row before."""
    rows = random.normal(size=shape)
    for row in range(1, shape[0]):
        rows[row] = share * rows[row - 1] + (1 - share**2) ** 0.5 * rows[row]
    return rows


def _in_time(random: np.random.Generator, cases: int, share: float) -> Floats:
    """Noise of the machine that keeps this share from trial to trial; every other round takes the cases in reverse."""
    trials = _autoregressive(random, (MOST_ROUNDS * cases, 1), share).reshape(MOST_ROUNDS, cases)
    trials[1::2] = trials[1::2, ::-1]
    return trials


def _modes(random: np.random.Generator, cases: int, slow: float, share: float) -> Floats:
    """Two modes, one slower by this factor and with this share of the trials, and a jitter of 1 %."""
    modes: Floats = (random.random((MOST_ROUNDS, cases)) < share) * np.log(slow)
    return modes + 0.01 * random.normal(size=modes.shape)


def _sticky_modes(random: np.random.Generator, cases: int, slow: float, stays: float) -> Floats:
    """Two modes of each case, which a trial keeps from the one before with this chance, or else draws."""
    modes = random.random((MOST_ROUNDS, cases)) < 0.5
    for row in range(1, MOST_ROUNDS):
        modes[row] = np.where(random.random(cases) < stays, modes[row - 1], modes[row])
    levels: Floats = modes * np.log(slow)
    return levels + 0.01 * random.normal(size=levels.shape)


KINDS: dict[str, Noise] = {
    "normal, 5 %": lambda random, cases: 0.05 * random.normal(size=(MOST_ROUNDS, cases)),
    "heavy tails, Student's t of 2": lambda random, cases: 0.03 * random.standard_t(2, size=(MOST_ROUNDS, cases)),
    "heavy tails, Cauchy": lambda random, cases: 0.02 * random.standard_cauchy(size=(MOST_ROUNDS, cases)),
    "only slower, exponential 5 %": lambda random, cases: 0.05 * random.exponential(size=(MOST_ROUNDS, cases)),
    "normal, 1 % of one case and 5 % of the others": lambda random, cases: (
        random.normal(size=(MOST_ROUNDS, cases)) * np.where(np.arange(cases) == 0, 0.01, 0.05)
    ),
    "machine autocorrelated in time, 0.9": lambda random, cases: 0.05 * _in_time(random, cases, 0.9),
    "two modes, 30 % of trials 1.2x": lambda random, cases: _modes(random, cases, 1.2, 0.3),
    "two modes, 50 % of trials 1.2x": lambda random, cases: _modes(random, cases, 1.2, 0.5),
    "two modes, 50 % of trials 2x": lambda random, cases: _modes(random, cases, 2.0, 0.5),
    "each case autocorrelated, 0.3": lambda random, cases: 0.05 * _autoregressive(random, (MOST_ROUNDS, cases), 0.3),
    "each case autocorrelated, 0.6": lambda random, cases: 0.05 * _autoregressive(random, (MOST_ROUNDS, cases), 0.6),
    "two modes 1.2x, a case stays in 50 %": lambda random, cases: _sticky_modes(random, cases, 1.2, 0.5),
}
HELD = tuple(KINDS)[:9]
"""For these the promise of a race holds. The others are noise of a case that lasts from round to round."""


def costs_of(kind: str, ratios: Sequence[float], seed: int) -> dict[str, list[float]]:
    """Return the costs of cases c0, c1, ... whose true costs have these ratios, round by round."""
    random = np.random.default_rng([seed, len(ratios), list(KINDS).index(kind)])
    costs = np.asarray(ratios) * np.exp(np.clip(KINDS[kind](random, len(ratios)), -5, 5))
    return {f"c{case}": costs[:, case].tolist() for case in range(len(ratios))}
