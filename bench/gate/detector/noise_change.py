"""Whether a series' noise has changed: since which night its neighbours differ more or less, and by which factor.

Two scales are compared: how much one night differs from the next, before and after each place. Levels and slow
wandering do not enter. It decides nothing; it dates what the nightly rule already allows for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bench.gate.detector.night import RESOLUTION
from bench.gate.detector.rank_scan import best_split, neighbour_inflation, ranks
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState

FEWEST_NIGHTS = 12
"""On each side: the deviation of fewer is known to no better than a fifth."""
LIMIT = 3.5
SMALLEST_FACTOR = 1.5
"""Nobody acts on less, and the nightly rule follows it by itself."""
RANGE_SDS = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseChange:
    """Since `onset` neighbouring nights differ `factor` times as much, with its 95 % interval. nights: since then."""

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
    nights = [night for night in state.nights if reported is None or night.number >= reported]
    if len(nights) < 2 * FEWEST_NIGHTS + 1:
        return None
    starts = set(state.regime_starts)
    values = np.array([night.log_value for night in nights])
    # The difference across the beginning of a regime is the change of its level.
    is_within = np.array([night.number not in starts for night in nights[1:]])
    differences = np.abs(np.diff(values))[is_within]
    ranked = ranks(differences)
    split = best_split(ranked, FEWEST_NIGHTS)
    if split is None or abs(split.score) < LIMIT:
        return None
    if abs(split.score) < LIMIT * math.sqrt(neighbour_inflation(ranked, split.place)):
        return None
    logs = np.log(np.maximum(differences, RESOLUTION))
    before, after = logs[: split.place], logs[split.place :]
    log_factor = float(after.mean() - before.mean())
    # Neighbouring differences share a night: a third more variance of their mean than of as many independent ones.
    variance = 4 / 3 * (float(before.var(ddof=1)) / len(before) + float(after.var(ddof=1)) / len(after))
    if abs(log_factor) < math.log(SMALLEST_FACTOR):
        return None
    half_width = RANGE_SDS * math.sqrt(variance)
    seconds = [night.number for night, is_in in zip(nights[1:], is_within, strict=True) if is_in]
    onset = seconds[split.place]
    return NoiseChange(
        onset=onset,
        factor=math.exp(log_factor),
        low=math.exp(log_factor - half_width),
        high=math.exp(log_factor + half_width),
        nights=sum(night.number >= onset for night in nights),
    )
