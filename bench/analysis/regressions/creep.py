"""Slow drift away from an accepted level, which no single night shows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.analysis.regressions.detector import newest_mean
from bench.analysis.regressions.settings import SETTINGS, DetectorSettings
from bench.analysis.regressions.state import SeriesState


@dataclass(frozen=True, slots=True, kw_only=True)
class Creep:
    """How far the newest nights lie from an accepted level, on logarithms.

    low, high: interval with the settings' `creep_p` outside, in both directions together. nights: that were used.
    has_crept: the interval excludes no change, and the change is at least `smallest_creep`.
    """

    log_change: float
    low: float
    high: float
    nights: int
    has_crept: bool


def creep(state: SeriesState, accepted_log_level: float, settings: DetectorSettings = SETTINGS) -> Creep | None:
    """Compare the newest nights with a level that somebody accepted; None before the first verdict.

    The test is asked each night, so its interval is wider than 95 %. It takes the newest nights alone, since the level
    of a regime that creeps lags behind them.

    Raises:
        ValueError: the accepted level is not finite.
    """
    from scipy.special import stdtrit  # Imported here: what only reads states needs no scipy.

    if not math.isfinite(accepted_log_level):
        raise ValueError(f"the accepted level is {accepted_log_level}; it must be finite, a logarithm")
    mean = newest_mean(state, settings)
    if mean is None:
        return None
    change = mean.log_value - accepted_log_level
    half_width = float(stdtrit(mean.freedom, 1 - settings.creep_p / 2)) * math.sqrt(mean.variance)
    return Creep(
        log_change=change,
        low=change - half_width,
        high=change + half_width,
        nights=mean.nights,
        has_crept=abs(change) > max(half_width, settings.smallest_creep),
    )
