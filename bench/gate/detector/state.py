"""State of a series between two nights: all that is kept of its past, as JSON of a bounded size."""

from __future__ import annotations

import msgspec

from bench.gate.detector.hypotheses import Hypotheses
from bench.gate.detector.level_filter import Filter, NightValue
from bench.gate.detector.placements import PlacementOffset

SCHEMA_VERSION = 2


class KeptNight(msgspec.Struct, array_like=True, frozen=True):
    """A night as the noise is learned from it.

    log_value: with reruns, where there were some. spread: variance among its trials, None of one. mad: the trials' own,
    their median.
    """

    number: int
    log_value: float
    variance: float
    spread: float | None
    trials: int
    mad: float


class SeriesAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a series that stood in its reruns (tier 1) or in the nights after it (tier 2, a page).

    onset: the first night of the new level, with a 95 % range. direction: +1 where the metric rose, -1 where it fell.
    log_change: of the logarithm, with a 95 % interval. raised: the night on which this tier was reached.
    """

    onset: int
    onset_low: int
    onset_high: int
    direction: int
    log_change: float
    log_change_low: float
    log_change_high: float
    raised: int
    tier: int


class Suspected(msgspec.Struct, frozen=True, kw_only=True):
    """What reruns are judged from: the night's value, and the hypotheses before it."""

    value: NightValue
    hypotheses: Hypotheses | None = None


class SeriesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the detector knows of a series.

    nights: the newest, from which the noise is learned. regime_starts: night numbers on which regimes began.
    unchanged: what is known of the present regime's level, None before there are enough nights. hypotheses: after the
    last night; None before that, and in states of version 1, whose hypotheses are made again from the nights.
    likely_onset: of a change that is likely, but not confirmed. past_levels: mean and variance of the levels of earlier
    regimes, newest first. alert: the one that is open, of tier 1.
    """

    schema_version: int = SCHEMA_VERSION
    nights: tuple[KeptNight, ...] = ()
    regime_starts: tuple[int, ...] = ()
    unchanged: Filter | None = None
    hypotheses: Hypotheses | None = None
    likely_onset: int | None = None
    past_levels: tuple[tuple[float, float], ...] = ()
    placements: dict[str, PlacementOffset] = {}
    alert: SeriesAlert | None = None
    suspected: Suspected | None = None
