"""A case whose definition changed: what changed, and how the new series' first nights compare with the old level.

An option, the number of threads, the strategy's version or the machine may start a new series for the same figure of
the same case. The new series has no level of its own yet, so its first nights are compared with the old series' level.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.errors import Misuse, printable
from bench.gate.detector.detector import RANGE_SDS, level
from bench.gate.detector.night import CLIP_SDS, learn
from bench.gate.detector.placements import PlacementOffset, prior_variance
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesState
from bench.gate.verdicts import KnownSeries, SeriesKey
from bench.store.history import History
from bench.store.summary import Summary, series_of

PARTS_SHOWN = 3
_LONGEST_VALUE = 40
OTHER_MACHINE_NIGHTS = 3
"""Nights after which another machine is taken for the successor, and not for a machine that takes turns with it."""
_PARTS = {
    "version": "version of the strategy",
    "ranks": "ranks",
    "bind": "binding to cores",
    "save_mode": "mode of checkpoints",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The series that a figure had before its case's definition changed.

    words: what changed: `threads 4 -> 8`. nights: nights that the new series needs before it is compared.
    """

    series: KnownSeries
    words: str
    nights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstNights:
    """The first nights of a new series compared with the last level of the old one, as logarithms.

    log_level, half_width: the old level, with half of its 95 % interval. change_half_width: half width of the change's
    interval. own_half_width: half width of the interval of the new nights' mean. p_value: of no change.
    """

    log_level: float
    half_width: float
    log_change: float
    change_half_width: float
    own_half_width: float
    p_value: float


FindBefore = Callable[[SeriesKey, Summary, int], Before | None]
"""Takes a figure, its run and the Unix time of its series' first night; returns the previous series."""


def series_before(history: History, known: Mapping[SeriesKey, KnownSeries]) -> FindBefore:
    """Return a function that finds the last series with a level that ended before a new series began."""
    of_figure: dict[tuple[str, str, str], list[SeriesKey]] = defaultdict(list)
    for known_key in known:
        of_figure[known_key.case, known_key.metric, known_key.labels].append(known_key)
    words: dict[tuple[str, str], tuple[str, int]] = {}

    def find(key: SeriesKey, summary: Summary, first_ns: int) -> Before | None:
        others = [
            series
            for series in map(known.__getitem__, of_figure[key.case, key.metric, key.labels])
            if series.key.series != key.series
            and series.last_ns < first_ns
            and series.state.detector.unchanged is not None
        ]
        if not others:
            return None
        last = max(others, key=lambda series: series.last_ns)
        runs = (last.last_run, series_of(summary.case, summary.hardware))
        if runs not in words:
            words[runs] = _since(history, last.last_run, summary)
        return Before(series=last, words=words[runs][0], nights=words[runs][1])

    return find


def _since(history: History, last_run: str, now: Summary) -> tuple[str, int]:
    try:
        before = history.find(last_run)
    except Misuse:
        return f"what is unknown: run {last_run}, the last before, is no longer in the history", OTHER_MACHINE_NIGHTS
    return definition_words(before, now), 1 if before.hardware == now.hardware else OTHER_MACHINE_NIGHTS


def definition_words(before: Summary, now: Summary) -> str:
    """Return the differences between the definitions of two runs that put them into different series."""
    parts = list(_differences(json.loads(before.case.key()), json.loads(now.case.key())))
    if before.hardware != now.hardware:
        parts.insert(0, f"machine {before.hardware} -> {now.hardware}")
    shown = ", ".join(parts[:PARTS_SHOWN])
    more = f" and {len(parts) - PARTS_SHOWN} more" if len(parts) > PARTS_SHOWN else ""
    return printable(f"{shown}{more}") if parts else "nothing that is recorded"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new)
        else:
            yield f"{_PARTS.get(name, name.replace('_', ' '))} {_value(old)} -> {_value(new)}"


def _value(value: Any) -> str:
    text = "not set" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def compare_first_nights(before: SeriesState, now: SeriesState) -> FirstNights | None:
    """Compare a new series' first nights with the last level of the old one; None if the old one has no level.

    The new nights are assumed to vary as the old ones did.
    """
    from scipy.special import stdtr, stdtrit  # Imported here: reading states needs no scipy.

    old = level(before)
    if old is None or not now.nights:
        return None
    own = [night for night in before.nights if night.number >= before.regime_starts[-1]] or before.nights[-1:]
    usual_error = median(night.variance for night in own)
    noise = learn([[night.log_value for night in own]], usual_error, SETTINGS)
    # The variance of a series' first night includes its placement, whose offset is not known yet.
    error = usual_error * median(night.trials for night in own) / median(night.trials for night in now.nights)
    # The new series counts from the placement that it began on, the old series from a different one.
    began_on = next((name for name, offset in now.placements.items() if offset.variance == 0), None)
    unseen = PlacementOffset(0.0, prior_variance(before.placements, SETTINGS), 0)
    place = before.placements.get(began_on or "", unseen)
    log_level, level_variance = old.log_level + place.offset, ((old.high - old.low) / 2 / RANGE_SDS) ** 2
    level_variance += place.variance
    values = [night.log_value for night in now.nights]
    middle, limit = median(values), CLIP_SDS * math.sqrt(noise.night_variance + error)
    mean = sum(min(max(value, middle - limit), middle + limit) for value in values) / len(values)
    # Variance of a mean of correlated nights: each pair `lag` apart shares correlation^lag of the night variance.
    count = len(values)
    pairs = sum((count - lag) * noise.correlation**lag for lag in range(1, count))
    own_variance = (noise.night_variance * (1 + 2 * pairs / count) + error) / count
    deviation = math.sqrt(own_variance + level_variance)
    freedom = max(noise.nights - 1, 3)
    quantile = float(stdtrit(freedom, 0.975))
    return FirstNights(
        log_level=log_level,
        half_width=quantile * math.sqrt(level_variance),
        log_change=mean - log_level,
        change_half_width=quantile * deviation,
        own_half_width=quantile * math.sqrt(own_variance),
        p_value=2 * float(stdtr(freedom, -abs(mean - log_level) / deviation)),
    )
