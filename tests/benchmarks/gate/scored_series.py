"""Judges made series night by night as the gate does, and counts what is right and wrong of what is told."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from scipy.stats import chi2

from bench.gate.detector.detector import JudgedNight
from bench.gate.detector.known_levels import returned_to
from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate import judged_series
from tests.benchmarks.gate.made_series import RERUNS, Change, MadeSeries

EARLY_NIGHTS = 60
"""The first nights, which are reported apart: little is known of the noise."""
HORIZON = 14
"""Nights within which a change must be told, from the night on which all of it is there."""
NEAR = 7
"""Nights by which the onset of what is told again may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is new on a night: an alert (tier 1), a page (tier 2), or a page that the level is back. onset: a position.

    is_first: no alert of the same direction was open before. is_known: the gate says that the series has been on this
    level before.
    """

    position: int
    tier: int
    direction: int
    onset: int
    is_first: bool
    is_return: bool = False
    is_known: bool = False


def whole_night(
    state: SeriesState | None, series: MadeSeries, position: int, added: float = 0.0
) -> tuple[JudgedNight, bool]:
    """Judge a night of a made series as the gate does; return also whether it was run again. added: to its level."""
    judged, reruns = judged_series.whole_night(
        state, series.night(position, added), lambda: series.reruns(position, added)
    )
    return judged, reruns > 0


def told_on(series: MadeSeries, position: int, before: SeriesState | None, judged: JudgedNight) -> Told | None:
    """Return what the verdict tells that was not told before. An alert that closes itself tells of no change."""
    alert = judged.alert
    is_return = judged.verdict == "recovered" and alert is not None and alert.tier == 2
    if alert is None or not (judged.is_new or is_return):
        return None
    is_open = before is not None and before.alert is not None and before.alert.direction == alert.direction
    onset = sum(number < alert.onset for number in series.numbers[: position + 1])
    return Told(
        position=position,
        tier=alert.tier,
        direction=alert.direction,
        onset=onset,
        is_first=not is_open,
        is_return=is_return,
        is_known=is_return or returned_to(judged.state, alert.onset) is not None,
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts over series. Pairs hold tier 1 and tier 2; a page with no alert before it counts in both.

    early, late: false alarms in the first nights and after them. on_spikes: alarms on disturbed nights and the two
    nights after, which are not among these: a disturbance that reruns or later nights show is there, though it goes
    again. hits: changes that were told. again: further alarms of a change that was told already. back: changes
    back to a known level that were told as such, of `returns`. delays: nights until the page, a change each.
    """

    series: int = 0
    early_nights: int = 0
    late_nights: int = 0
    early: list[int] = field(default_factory=lambda: [0, 0])
    late: list[int] = field(default_factory=lambda: [0, 0])
    on_spikes: list[int] = field(default_factory=lambda: [0, 0])
    spikes: int = 0
    changes: int = 0
    hits: list[int] = field(default_factory=lambda: [0, 0])
    again: int = 0
    returns: int = 0
    back: int = 0
    delays: list[int] = field(default_factory=list)
    trials: int = 0
    reruns: int = 0
    cpu_s: float = 0.0

    def add(self, other: Tally) -> None:
        for name in (one.name for one in fields(self)):
            mine, new = getattr(self, name), getattr(other, name)
            if name == "delays":
                mine += new
            elif isinstance(mine, list):
                mine[:] = [left + right for left, right in zip(mine, new, strict=True)]
            else:
                setattr(self, name, mine + new)


def tally_of(series: MadeSeries) -> Tally:
    """Judge a series, and count."""
    tally, began_s = Tally(series=1), time.process_time()
    tally.spikes = sum(night - 1 not in series.spiked for night in series.spiked)
    state: SeriesState | None = None
    news: list[Told] = []
    for position in range(len(series.values)):
        judged, is_rerun = whole_night(state, series, position)
        told = told_on(series, position, state, judged)
        if told is not None:
            news.append(told)
        tally.trials += series.trials
        tally.reruns += RERUNS * is_rerun
        if judged.score is not None:
            if position < EARLY_NIGHTS:
                tally.early_nights += 1
            else:
                tally.late_nights += 1
        state = judged.state
    _count(series, news, tally)
    tally.cpu_s = time.process_time() - began_s
    return tally


def _count(series: MadeSeries, news: Sequence[Told], tally: Tally) -> None:
    windows = list(_windows(series.changes, len(series.values)))
    tally.changes += len(windows)
    tally.returns += sum(change.is_return for change, _ in windows)
    hit_1, hit_2 = set[int](), set[int]()
    for told in news:
        tiers = (0, 1) if told.tier == 2 and told.is_first else (told.tier - 1,)
        matching = [
            place
            for place, (change, end) in enumerate(windows)
            if change.onset <= told.position < end and told.direction * change.log_size > 0
        ]
        if matching:
            place = matching[-1]
            change = windows[place][0]
            if told.tier == 2:
                tally.again += place in hit_2
                if place not in hit_2:
                    tally.delays.append(told.position - change.onset)
                    tally.back += change.is_return and told.is_known
                hit_2.add(place)
            hit_1.add(place)
        elif any(_is_near(told, change) for change in series.changes):
            tally.again += told.tier == 2
        elif not (told.is_return or series.is_neutral):
            _count_false(series, told, tiers, tally)
    tally.hits[0] += len(hit_1)
    tally.hits[1] += len(hit_2)


def _count_false(series: MadeSeries, told: Told, tiers: Sequence[int], tally: Tally) -> None:
    counts = tally.early if told.position < EARLY_NIGHTS else tally.late
    if series.spiked & set(range(told.position - 2, told.position + 1)):
        counts = tally.on_spikes
    for tier in tiers:
        counts[tier] += 1


def _windows(changes: Sequence[Change], nights: int) -> Iterator[tuple[Change, int]]:
    """Yield each change with the first night that is too late to tell of it."""
    onsets = [*(change.onset for change in changes), nights]
    for change, following in zip(changes, onsets[1:], strict=True):
        yield change, min(change.onset + change.ramp_nights + HORIZON, following)


def _is_near(told: Told, change: Change) -> bool:
    last = change.onset + change.ramp_nights + NEAR
    return (
        told.direction * change.log_size > 0
        and told.position >= change.onset
        and change.onset - NEAR <= told.onset <= last
    )


def upper_bound(count: int) -> float:
    """Return the one-sided 95 % upper bound of a Poisson mean."""
    return float(chi2.ppf(0.95, 2 * (count + 1)) / 2)


def per_thousand(count: int, nights: int) -> str:
    """Return a rate and its upper bound in one cell."""
    if not nights:
        return "-"
    return f"{1000 * count / nights:.2f} (<= {1000 * upper_bound(count) / nights:.2f})"


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927)."""
    share, square = hits / count, 1.96**2 / count
    middle = (share + square / 2) / (1 + square)
    half_width = (square * share * (1 - share) + square**2 / 4) ** 0.5 / (1 + square)
    return max(middle - half_width, 0.0), min(middle + half_width, 1.0)
