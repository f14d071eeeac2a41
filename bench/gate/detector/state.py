"""State of a series between two nights: everything stored about its past, as JSON of a bounded size."""

from __future__ import annotations

import msgspec

from bench.gate.detector.hypotheses import Hypotheses
from bench.gate.detector.level_filter import Filter, NightValue
from bench.gate.detector.placements import PlacementOffset

SCHEMA_VERSION = 2


class KeptNight(msgspec.Struct, array_like=True, frozen=True):
    """A night, as used to learn the noise.

    log_value: includes reruns if there were any. spread: variance among its trials, None if there is only one. mad:
    median of the trials' own deviations.
    """

    number: int
    log_value: float
    variance: float
    spread: float | None
    trials: int
    mad: float


class SeriesAlert(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a series, confirmed by reruns (tier 1) or by later nights (tier 2, a page).

    onset: the first night of the new level, with a 95 % range. direction: +1 if the metric rose, -1 if it fell.
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
    """The basis for judging reruns: the night's value, and the hypotheses before it."""

    value: NightValue
    hypotheses: Hypotheses | None = None


class SeriesState(msgspec.Struct, frozen=True, kw_only=True):
    """What the detector knows about a series.

    nights: the newest ones, from which the noise is learned. regime_starts: night numbers on which regimes began.
    unchanged: estimate of the present regime's level, None before there are enough nights. hypotheses: after the last
    night; None before that, and in states of version 1, whose hypotheses are rebuilt from the nights. likely_onset:
    onset of a likely but unconfirmed change. past_levels: mean and variance of the levels of earlier regimes, newest
    first. alert: the open alert, of tier 1.
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
