"""Whether a series' noise has changed: larger noise for judging the next night, and a report of either change.

The noise of a series is learned slowly, from a hundred nights. `growth` compares it with the differences of
neighbouring nights and the scatter of trials among the newest nights. If these are larger, nights are judged with the
larger noise long before the slow estimate shows it. A changed level makes one difference large; grown noise makes all
of them large.

`noise_change` decides nothing; it gives readers a date for what the nightly rule already allows for. It compares how
far nights lie from their neighbourhood before and after each place, so that levels and slow drift do not matter.

Source: Klotz 1962 (a rank test of scale).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bench.gate.detector.night import CLIP_SDS, RESOLUTION, SeriesNoise, robust_sd
from bench.gate.detector.rank_scan import best_split, neighbour_inflation, ranks
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

_FACTORS = np.array([2.0, 2.8, 4.0, 5.6, 8.0])
"""Candidate factors of a deviation, each sqrt(2) times the previous one."""
_OUTLIER_RATE = 0.05
_OUTLIER_SD = 10.0
"""One difference in twenty may belong to an outlier, of any size up to about ten deviations."""

FEWEST_NIGHTS = 12
"""Nights on each side: with fewer, the error of their deviation is more than a fifth."""
LIMIT = 4.0
"""Score from which a change is reported: it pages nobody, so one report in a few thousand nights may be false."""
_HALF_WIDTH = 7
"""Nights on each side whose median gives the level around a night: a week."""
SMALLEST_FACTOR = 1.5
"""Smallest factor that is reported: nobody acts on less, and the nightly rule adapts by itself."""
RANGE_SDS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much larger the deviations are now than the slow estimate says; 1.0 if they are not.

    nights, trials: factors by which the deviations of nights and trials have grown, averaged by probability; 1 unless
    growth is likelier than no growth. factors, shares: factors of the nights' deviation, with their probabilities.
    """

    nights: float
    trials: float
    factors: NDArray[np.float64]
    shares: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseChange:
    """Since `onset`, nights differ `factor` times as much, with its 95 % interval. nights: number since then."""

    onset: int
    factor: float
    low: float
    high: float
    nights: int

    @property
    def reason(self) -> str:
        """The change in words; `{night}` in them stands for the onset, which only the caller can date."""
        word = "increased" if self.factor > 1 else "decreased"
        return f"noise has {word} since {{night}}: x {self.factor:.2g} [{self.low:.2g}, {self.high:.2g}]"


def growth(state: SeriesState, slow: SeriesNoise, usual: float, settings: DetectorSettings) -> Growth:
    """Return how much the newest nights' noise exceeds the slow estimate. usual: variance of a trial's error."""
    nights = state.nights[-settings.growth_nights :]
    starts = {*state.regime_starts, state.likely_onset}
    numbers = np.array([night.number for night in nights])
    values = np.array([night.log_value for night in nights])
    errors = np.array([night.variance for night in nights])
    faded = slow.correlation ** (numbers[1:] - numbers[:-1])
    variances = 2 * slow.night_variance * (1 - faded) + errors[:-1] + errors[1:]
    differences = np.empty(len(nights))
    differences[0] = math.nan
    differences[1:] = (values[1:] - values[:-1]) / np.sqrt(variances)
    for place, night in enumerate(nights):
        if night.number in starts:
            differences[place] = math.nan
    # The newest night may have a new level, so only its trials count.
    differences[-1] = math.nan
    freedom = np.array([0 if night.spread is None else night.trials - 1 for night in nights])
    ratios = np.array([1.0 if night.spread is None else night.spread / usual for night in nights])
    return _growth_of(_gain(differences), _gain_of_variance(ratios, freedom), settings)


def _growth_of(of_nights: NDArray[np.float64], of_trials: NDArray[np.float64], settings: DetectorSettings) -> Growth:
    """Return how the noise has grown, given the evidence of each night and its trials, (night, factor)."""
    # Sums from each night to the newest: the evidence that the noise has been larger since that night.
    nights = np.cumsum(of_nights[::-1], axis=0)[::-1]
    trials = np.cumsum(of_trials[::-1], axis=0)[::-1]
    prior = math.log(settings.noise_changes_per_night / (3 * len(_FACTORS)))
    # (what grew, since, factor): nights alone, trials alone, or both.
    odds = np.exp(np.minimum(prior + np.stack([nights, trials, nights + trials]), 500.0))
    total = 1.0 + odds.sum()
    shares = odds / total
    # Nights may have grown alone, or with their trials.
    of_factors = (shares[0] + shares[2]).sum(axis=0)
    is_likely = total >= 2.0
    logs = np.log(_FACTORS)
    return Growth(
        nights=math.exp(float(of_factors @ logs)) if is_likely else 1.0,
        trials=math.exp(float(((shares[1] + shares[2]) @ logs).sum())) if is_likely else 1.0,
        factors=np.concatenate([[1.0], _FACTORS]),
        shares=np.concatenate([[1.0 - of_factors.sum()], of_factors]),
    )


def grown(noise: SeriesNoise, increase: Growth) -> SeriesNoise:
    """Return the noise scaled up for nights that differ more than those it was learned from."""
    factor = increase.nights**2
    if factor == 1.0:
        return noise
    errors = noise.long_run_variances - noise.night_variances * (1 + noise.phis) / (1 - noise.phis)
    night_variances = factor * noise.night_variances
    long_run = night_variances * (1 + noise.phis) / (1 - noise.phis) + increase.trials**2 * errors
    return replace(
        noise,
        night_variance=factor * noise.night_variance,
        long_run_variance=float(noise.weights @ long_run),
        outlier_variance=factor * noise.outlier_variance,
        night_variances=night_variances,
        long_run_variances=long_run,
    )


def _gain(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each difference's log-likelihood at each factor relative to factor 1; 0 if there is no difference."""
    square = np.minimum(differences * differences, 1e4)[:, None]
    outlier = _OUTLIER_RATE / _OUTLIER_SD * np.exp(-0.5 * square / _OUTLIER_SD**2) + 1e-100
    usual = (1 - _OUTLIER_RATE) * np.exp(-0.5 * square) + outlier
    grown = (1 - _OUTLIER_RATE) / _FACTORS * np.exp(-0.5 * square / _FACTORS**2) + outlier
    result: NDArray[np.float64] = np.log(grown / usual)
    result[np.isnan(differences)] = 0.0
    return result


def _gain_of_variance(ratios: NDArray[np.float64], freedom: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the same for variances among trials, up to a limit, since a broken trial may have made one large."""
    squares = 0.5 * np.minimum(ratios, 16.0)[:, None] * (1 - _FACTORS**-2.0)
    result: NDArray[np.float64] = np.minimum(freedom[:, None] * (squares - np.log(_FACTORS)), 3.0)
    return result


def noise_change(
    state: SeriesState, *, reported: int | None = None, settings: DetectorSettings = SETTINGS
) -> NoiseChange | None:
    """Return when the noise of the stored nights changed, and by how much; None if it has not changed.

    reported: onset of a change already reported; only nights from then on are compared, so it is not reported again.
    """
    from scipy.special import ndtri  # Imported here: reading states needs no scipy.

    nights = [night for night in state.nights if reported is None or night.number >= reported]
    if len(nights) < 2 * FEWEST_NIGHTS:
        return None
    values = np.array([night.log_value for night in nights])
    # Mirrored at both ends; numpy's own padding takes as long as everything else together.
    mirrored = np.concatenate((values[_HALF_WIDTH:0:-1], values, values[-2 : -_HALF_WIDTH - 2 : -1]))
    around = sliding_window_view(mirrored, 2 * _HALF_WIDTH + 1)
    deviations = np.abs(values - np.partition(around, _HALF_WIDTH, axis=1)[:, _HALF_WIDTH])
    # Klotz's scores: as efficient for normal noise as a ratio of variances, and as robust to its shape as ranks.
    scores = ndtri(0.5 + (ranks(deviations) + 0.5) / (2 * len(nights))) ** 2
    split = best_split(scores, FEWEST_NIGHTS)
    if split is None or abs(split.score) < LIMIT:
        return None
    if abs(split.score) < LIMIT * math.sqrt(neighbour_inflation(scores, split.place)):
        return None
    parts = deviations[: split.place], deviations[split.place :]
    # Outlying nights are clipped to the range of ordinary ones, so that a few spikes do not count as noise.
    before, after = (np.minimum(part, CLIP_SDS * robust_sd(part)) for part in parts)
    log_factor = math.log(max(float(after.mean()), RESOLUTION) / max(float(before.mean()), RESOLUTION))
    # Variance of the logarithm of a mean, to first order.
    variance = sum(
        float(part.var(ddof=1)) / len(part) / max(float(part.mean()), RESOLUTION) ** 2 for part in (before, after)
    )
    if abs(log_factor) < math.log(SMALLEST_FACTOR):
        return None
    half_width = RANGE_SDS * math.sqrt(variance)
    return NoiseChange(
        onset=nights[split.place].number,
        factor=math.exp(log_factor),
        low=math.exp(log_factor - half_width),
        high=math.exp(log_factor + half_width),
        nights=len(nights) - split.place,
    )
