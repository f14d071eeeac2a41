"""The stress set: its series are what their kinds say, its scores count right, and the detector stands a small one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.gate.detector.detector import JudgedNight
from bench.gate.detector.state import SeriesAlert, SeriesState
from tests.benchmarks.gate.kinds import KINDS, POWER_KINDS
from tests.benchmarks.gate.made_series import RERUNS, MadeSeries, made
from tests.benchmarks.gate.power import power_of, power_rows
from tests.benchmarks.gate.scored_series import Tally, tally_of, told_on, upper_bound, wilson

NIGHTS = 160


def series(kind: str, number: int = 0, nights: int = NIGHTS) -> MadeSeries:
    return made(KINDS, kind, 7, number, nights=nights)


# The series


@pytest.mark.parametrize("kind", KINDS)
def test_a_series_is_the_same_on_each_call_and_each_number_has_its_own(kind: str) -> None:
    first, again, other = series(kind, nights=80), series(kind, nights=80), series(kind, 1, nights=80)
    assert np.array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)
    numbers = [first.night(position).number for position in range(80)]
    assert numbers == sorted(set(numbers))
    assert len(first.reruns(79)) == RERUNS


def test_noise_that_triples_leaves_the_level() -> None:
    values = np.concatenate([series("noise x3 from night 100", number).values[:, 0] for number in range(20)])
    before, after = (part.ravel() for part in np.split(values.reshape(20, NIGHTS), [100], axis=1))
    assert after.std() / before.std() == pytest.approx(3, rel=0.1)
    assert after.mean() == pytest.approx(0, abs=4 * after.std() / math.sqrt(len(after)))


def test_skewed_noise_is_only_ever_slower() -> None:
    values = np.concatenate([series("exponential", number).values[:, 0] for number in range(10)])
    assert values.min() > -0.02
    assert values.max() > 0.04


def test_rounded_trials_are_whole_milliseconds_and_most_are_equal() -> None:
    rounded = series("rounded")
    seconds = [
        rounded.base_s * math.exp(trial.log_median)
        for position in range(NIGHTS)
        for trial in rounded.night(position).trials
    ]
    assert all(math.isclose(value, round(value, 3)) for value in seconds)
    assert sum(math.isclose(value, 0.02) for value in seconds) / len(seconds) > 0.8


def test_a_step_is_added_before_values_are_rounded() -> None:
    rounded = series("rounded")
    (first, *_) = rounded.night(0, math.log(1.1)).trials
    assert rounded.base_s * math.exp(first.log_median) == pytest.approx(0.022)


def test_a_change_is_where_it_is_said_to_be() -> None:
    step = series("steps")
    (change,) = step.changes
    before, after = step.values[: change.onset].mean(), step.values[change.onset :].mean()
    assert after - before == pytest.approx(change.log_size, abs=0.003)


def test_a_new_fleet_shares_no_placement_with_the_old_one() -> None:
    fleet = series("new fleet")
    first, last = ({trial.placement for trial in fleet.night(position).trials} for position in (0, NIGHTS - 1))
    assert not first & last


# The scores


def judged(verdict: str, *, onset: int, direction: int, tier: int, is_new: bool = True) -> JudgedNight:
    alert = SeriesAlert(
        onset=onset,
        onset_low=onset,
        onset_high=onset,
        direction=direction,
        log_change=0.1 * direction,
        log_change_low=0.0,
        log_change_high=0.2,
        raised=onset + 2,
        tier=tier,
    )
    return JudgedNight(state=SeriesState(), verdict=verdict, reason="", is_new=is_new, alert=alert)  # type: ignore[arg-type]


def test_a_page_after_its_own_alert_is_no_first_one() -> None:
    gaps = series("missing nights")
    onset = gaps.numbers[30]
    alert = judged("alert", onset=onset, direction=1, tier=1)
    opened = SeriesState(alert=alert.alert)
    page = judged("page", onset=onset, direction=1, tier=2)
    for before, is_first in (
        (opened, False),
        (None, True),
        (SeriesState(alert=judged("alert", onset=onset, direction=-1, tier=1).alert), True),
    ):
        told = told_on(gaps, 32, before, page)
        assert told is not None
        assert (told.onset, told.tier, told.is_first) == (30, 2, is_first)
    assert told_on(gaps, 33, opened, judged("alert", onset=onset, direction=1, tier=1, is_new=False)) is None


def test_bounds_are_those_of_the_tables() -> None:
    # Poisson: with 0 seen the 95 % bound is ln 20; with 6 it is 11.84. Wilson 1927: 8 of 10 is 49 to 94 %.
    assert upper_bound(0) == pytest.approx(math.log(20))
    assert upper_bound(6) == pytest.approx(11.84, abs=0.01)
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=0.001)


# The detector on a small set: fixed seeds, so that nothing here depends on chance


CALM = ("plain", "noise x3 from night 100", "correlation 0.5", "missing nights", "drawn hosts")


@pytest.mark.slow
def test_noise_without_a_change_raises_next_to_nothing() -> None:
    tally = Tally()
    for kind in CALM:
        for number in range(3):
            tally.add(tally_of(series(kind, number)))
    assert tally.late_nights == 1500
    alerts, pages = (early + late for early, late in zip(tally.early, tally.late, strict=True))
    assert (alerts <= 5, pages <= 1) == (True, True)


def test_steps_are_paged_once_in_time() -> None:
    tally = Tally()
    for number in range(4):
        tally.add(tally_of(series("steps", number, nights=100)))
    assert (tally.changes, tally.hits[1], tally.again) == (4, 4, 0)
    assert max(tally.delays) <= 8


def test_power_grows_with_the_size_and_the_history() -> None:
    parts = [power_of("plain", 7, 14, number) for number in range(2)]
    rows = list(power_rows("plain", parts))
    assert [row.split("|")[2].strip() for row in rows] == ["12", "30", "60", "100"]
    assert all((part[history, 10] or math.inf) <= 4 for part in parts for history in (30, 60, 100))
    assert sum(part[100, 2] is not None for part in parts) >= sum(part[12, 1] is not None for part in parts)
    assert set(POWER_KINDS) <= set(KINDS)


def test_levels_that_come_back_are_reported_as_known() -> None:
    tallies = [tally_of(series("sticky levels", number, nights=180)) for number in range(2)]
    assert sum(tally.returns for tally in tallies) >= 4
    assert all(tally.back == tally.returns for tally in tallies)
