"""Whether a series' noise has changed: since which night its nights differ more or less, and by which factor.

Two scales are compared: how far nights lie from those around them, before and after each place. Levels and slow
wandering do not enter. It decides nothing; it dates what the nightly rule already allows for.

Source: Klotz 1962 (a rank test of scale).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bench.gate.detector.night import CLIP_SDS, RESOLUTION, robust_sd
from bench.gate.detector.rank_scan import best_split, neighbour_inflation, ranks
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

FEWEST_NIGHTS = 12
"""On each side: the deviation of fewer is known to no better than a fifth."""
LIMIT = 4.0
"""Score from which a change is reported: it pages nobody, so once in some thousand nights may be false."""
_HALF_WIDTH = 7
"""Nights on each side whose median is the level around a night: a week."""
SMALLEST_FACTOR = 1.5
"""Nobody acts on less, and the nightly rule follows it by itself."""
RANGE_SDS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseChange:
    """Since `onset` nights differ `factor` times as much, with its 95 % interval. nights: since then."""

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


def noise_change(
    state: SeriesState, *, reported: int | None = None, settings: DetectorSettings = SETTINGS
) -> NoiseChange | None:
    """Return since when the noise of the kept nights is another, None where it is the same.

    reported: onset of a change that was reported; only nights from it on are compared, so that it is reported once.
    """
    from scipy.special import ndtri  # Imported here: what only reads states needs no scipy.

    nights = [night for night in state.nights if reported is None or night.number >= reported]
    if len(nights) < 2 * FEWEST_NIGHTS:
        return None
    values = np.array([night.log_value for night in nights])
    around = sliding_window_view(np.pad(values, _HALF_WIDTH, mode="reflect"), 2 * _HALF_WIDTH + 1)
    deviations = np.abs(values - np.partition(around, _HALF_WIDTH, axis=1)[:, _HALF_WIDTH])
    # Klotz's scores: as exact for normal noise as a ratio of variances, and as indifferent to its shape as ranks.
    scores = ndtri(0.5 + (ranks(deviations) + 0.5) / (2 * len(nights))) ** 2
    split = best_split(scores, FEWEST_NIGHTS)
    if split is None or abs(split.score) < LIMIT:
        return None
    if abs(split.score) < LIMIT * math.sqrt(neighbour_inflation(scores, split.place)):
        return None
    parts = deviations[: split.place], deviations[split.place :]
    # Nights far off are cut where ordinary ones end, so that a few spikes are not taken for noise.
    before, after = (np.minimum(part, CLIP_SDS * robust_sd(part)) for part in parts)
    log_factor = math.log(max(float(after.mean()), RESOLUTION) / max(float(before.mean()), RESOLUTION))
    # Of the logarithm of a mean, in the first order.
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
