"""The detector against series whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from bench.gate.detector.detector import confirm_by_rerun, creep, judge, level
from bench.gate.detector.night import Night, TrialSample, trial_sample
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesState
from tests.bench.gate.detector.made_nights import (
    QUIET,
    Noise,
    alerts,
    at,
    judged,
    made,
    pages,
    same_again,
    trial,
    trials_of,
)

STEP = math.log(1.05)


def test_a_noiseless_shift_is_an_alert_on_its_first_night_and_a_page_two_nights_later() -> None:
    found = judged(made([0.0] * 30 + [STEP] * 10, QUIET))
    assert alerts(found) == [(30, 1)]
    assert pages(found) == [(30, 1, 32)]
    page = found[32].alert
    assert page is not None
    assert (page.onset_low, page.onset_high, page.tier) == (30, 30, 2)
    assert page.log_change == pytest.approx(STEP, rel=0.01)
    assert page.log_change_low < STEP < page.log_change_high


def test_after_a_page_the_new_level_is_the_regime() -> None:
    found = judged(made([0.0] * 30 + [STEP] * 20, QUIET))
    assert found[-1].verdict == "no change"
    now = level(found[-1].state)
    assert now is not None
    assert now.low < STEP < now.high
    assert now.nights == 20


def test_a_shift_of_one_percent_is_found_within_two_weeks_though_no_night_shows_it() -> None:
    noise = Noise(night_sd=0.004, trial_sd=0.003)
    found = [judged(made([0.0] * 60 + [0.01] * 14, noise, seed), reruns=None) for seed in range(8)]
    assert sum(any(onset >= 55 and up == 1 for onset, up, _ in pages(one)) for one in found) >= 6


def test_series_without_change_alarm_no_more_often_than_stated() -> None:
    series, length = 12, 100
    nights = [made([0.0] * length, Noise(), seed) for seed in range(series)]
    # Reruns of another seed are as good as the night's own trials, with another night's effect.
    fresh = [made([0.0] * length, Noise(), 100 + seed) for seed in range(series)]
    found = [judged(one, trials_of(again)) for one, again in zip(nights, fresh, strict=True)]
    alone = [one for series_nights in nights for one in judged(series_nights, reruns=None)]
    judged_nights = series * (length - SETTINGS.fewest_nights + 1)

    def limit(rate: float) -> float:
        return float(binom.ppf(0.999, judged_nights, rate))

    assert sum(one.verdict == "suspicion" for one in alone) <= limit(SETTINGS.suspicion_p)
    assert sum(len(alerts(one)) for one in found) <= limit(SETTINGS.alert_p)
    assert sum(len(pages(one)) for one in found) <= limit(0.0006)


def test_a_spike_that_its_reruns_do_not_show_raises_nothing() -> None:
    nights = made([0.0] * 40, Noise())
    nights[30] = Night(number=30, trials=(trial(0.1), trial(0.101), trial(0.1)))
    found = judged(nights, at(0.0))
    assert found[30].verdict == "no change"
    assert "reruns" in found[30].reason
    assert not alerts(found)
    assert not pages(found)


@pytest.mark.parametrize("length", [1, 2])
def test_a_spike_that_recovers_closes_itself(length: int) -> None:
    found = judged(made([0.0] * 40 + [0.08] * length + [0.0] * 10, Noise()))
    assert alerts(found) == [(40, 1)]
    closed = [one for one in found if one.verdict == "recovered"]
    assert len(closed) == 1
    assert closed[0].alert is not None
    assert closed[0].state.alert is None
    assert pages(found) == []


def test_a_change_that_goes_back_within_the_window_is_paged_once_and_recovers() -> None:
    found = judged(made([0.0] * 40 + [0.08] * 6 + [0.0] * 10, Noise()))
    assert [onset for onset, _, _ in pages(found)] == [40]
    assert found[48].verdict == "recovered"
    assert found[48].state.regime_starts[-1] == 46


def test_a_suspicion_that_nobody_reran_is_no_alert() -> None:
    found = judged(made([0.0] * 40 + [0.08], Noise()), reruns=None)
    assert found[-1].verdict == "suspicion"
    assert found[-1].reruns_wanted == SETTINGS.reruns
    assert found[-1].state.alert is None


def test_a_placement_that_is_slower_raises_nothing() -> None:
    generator = random.Random(1)
    nights = []
    for number in range(120):
        middle = generator.gauss(0, 0.004)
        slow = number > 20 and generator.random() < 0.3
        trials = tuple(trial(middle + generator.gauss(0, 0.003) + 0.035 * slow, "ba"[not slow]) for _ in range(3))
        nights.append(Night(number=number, trials=trials))
    found = judged(nights)
    assert not alerts(found)
    assert not pages(found)
    assert found[-1].state.placements["b"].offset == pytest.approx(0.035, abs=0.005)


def test_a_change_is_found_on_a_placement_whose_offset_is_known() -> None:
    nights = made([0.0] * 60, Noise(night_sd=0.003, trial_sd=0.003))
    for number in range(60):
        slow = number % 3 == 0
        offset = 0.035 * slow + (STEP if number >= 50 else 0.0)
        trials = tuple(
            replace(one, log_median=one.log_median + offset, placement="ba"[not slow]) for one in nights[number].trials
        )
        nights[number] = Night(number=number, trials=trials)
    found = judged(nights)
    assert [(onset, up) for onset, up, _ in pages(found)] == [(50, 1)]


def test_hosts_that_come_and_go_do_not_fill_the_state() -> None:
    nights = [
        Night(number=number, trials=tuple(replace(one, placement=f"host{number}") for one in night.trials))
        for number, night in enumerate(made([0.0] * 100, Noise()))
    ]
    found = judged(nights)
    assert len(found[-1].state.placements) == SETTINGS.most_placements
    assert "host0" in found[-1].state.placements
    assert pages(found) == []


def test_a_state_that_was_written_and_read_judges_the_same() -> None:
    state: SeriesState | None = None
    for night, whole in zip(
        nights := made([0.0] * 40 + [0.02] * 10, Noise()), judged(nights, reruns=None), strict=True
    ):
        one = judge(state, night)
        state = msgspec.json.decode(msgspec.json.encode(one.state), type=SeriesState)
        assert replace(one, state=state) == replace(whole, state=state)
        assert state == one.state


def test_a_suspicion_that_was_written_and_read_takes_its_reruns() -> None:
    suspected = judged(made([0.0] * 40 + [0.08], Noise()), reruns=None)[-1]
    again = msgspec.json.decode(msgspec.json.encode(suspected.state), type=SeriesState)
    reruns = at(0.08)(Night(number=40, trials=()))
    assert confirm_by_rerun(again, reruns) == confirm_by_rerun(suspected.state, reruns)
    assert confirm_by_rerun(again, reruns).verdict == "alert"


def test_a_state_does_not_grow_with_the_history() -> None:
    found = judged(made([0.0, 0.05] * 0 + [0.06 * (number // 30 % 2) for number in range(400)], Noise()))
    sizes = [len(msgspec.json.encode(one.state)) for one in found]
    assert max(sizes[200:]) < 1.3 * max(sizes[:200])
    assert len(found[-1].state.nights) == SETTINGS.memory_nights


def _changes(night_values: list[float], factor: float, sign: int) -> list[tuple[str, int]]:
    nights = [
        Night(
            number=number,
            trials=tuple(trial(factor + sign * (value + offset)) for offset in (-0.002, 0.0, 0.001)),
        )
        for number, value in enumerate(night_values)
    ]
    return [(one.verdict, sign * one.alert.direction if one.alert else 0) for one in judged(nights)]


night_values = st.lists(st.floats(-0.02, 0.02), min_size=15, max_size=30).flatmap(
    lambda first: st.floats(-0.05, 0.05).map(lambda step: first + [value + step for value in first[:6]])
)


@settings(max_examples=15, deadline=None)
@given(values=night_values, factor=st.floats(-5, 5))
def test_scale_changes_nothing(values: list[float], factor: float) -> None:
    assert _changes(values, factor, 1) == _changes(values, 0.0, 1)


@settings(max_examples=15, deadline=None)
@given(values=night_values)
def test_reciprocal_values_give_mirrored_verdicts(values: list[float]) -> None:
    assert _changes(values, 0.0, -1) == _changes(values, 0.0, 1)


@settings(max_examples=25, deadline=None)
@given(
    values=st.lists(st.lists(st.floats(-30, 30), min_size=1, max_size=5), min_size=1, max_size=25),
    gaps=st.lists(st.integers(1, 40), min_size=25, max_size=25),
)
def test_any_finite_series_is_judged(values: list[list[float]], gaps: list[int]) -> None:
    number, nights = 0, []
    for trials, gap in zip(values, gaps, strict=False):
        number += gap
        nights.append(Night(number=number, trials=tuple(trial(value) for value in trials)))
    for one in judged(nights):
        assert one.p_value is None or 0 <= one.p_value <= 1
        assert one.score is None or math.isfinite(one.score)
        msgspec.json.encode(one.state)


def test_rounded_values_of_which_most_are_equal_raise_no_page() -> None:
    generator = random.Random(0)
    nights = [
        Night(number=number, trials=(trial(math.log(round(generator.gauss(100, 0.6)))),)) for number in range(150)
    ]
    found = judged(nights, reruns=None)
    assert not pages(found)
    assert sum(one.verdict == "suspicion" for one in found) <= 8  # In a quarter of nights where the guard is missing.


def test_few_nights_are_insufficient_data_with_the_reason() -> None:
    found = judged(made([0.0] * 12, Noise()))
    assert {one.verdict for one in found[: SETTINGS.fewest_nights - 1]} == {"insufficient data"}
    assert found[0].reason == f"1 night so far, and a verdict needs {SETTINGS.fewest_nights}"
    assert found[3].reason == f"4 nights so far, and a verdict needs {SETTINGS.fewest_nights}"
    assert found[SETTINGS.fewest_nights - 1].verdict != "insufficient data"


def test_an_alert_rests_on_three_trials() -> None:
    nights = made([0.0] * 40 + [0.08], Noise(), trials=1)
    found = judged(nights, lambda night: night.trials)
    assert found[-1].verdict == "insufficient data"
    assert "2 trials" in found[-1].reason
    found = judged(nights, lambda night: night.trials * 3)
    assert found[-1].verdict == "alert"


def test_a_series_of_one_trial_a_night_is_paged() -> None:
    found = judged(made([0.0] * 40 + [STEP] * 6, Noise(), trials=1), reruns=None)
    assert [(onset, up) for onset, up, _ in pages(found)] == [(40, 1)]


def test_one_broken_trial_of_three_moves_nothing() -> None:
    nights = made([0.0] * 40, Noise())
    first, second, _ = nights[35].trials
    nights[35] = Night(number=35, trials=(first, second, trial(0.2)))
    found = judged(nights)
    assert found[35].verdict == "no change"
    assert found[35].log_value == pytest.approx((first.log_median + second.log_median) / 2, abs=0.001)


def test_nights_that_are_missing_change_nothing_but_the_numbers() -> None:
    nights = made([0.0] * 40 + [STEP] * 6, QUIET)
    kept = [night for night in nights if night.number % 4 != 1]
    onset, up, raised = pages(judged(kept))[0]
    assert (onset, up) == (40, 1)
    assert raised == 43  # The third night that was measured since: 40, 42, 43.


def test_a_night_whose_steps_scatter_more_is_trusted_less() -> None:
    nights = made([0.0] * 40, Noise(night_sd=0.001, trial_sd=0.005))
    calm = Night(number=40, trials=tuple(trial(0.01 + offset) for offset in (-0.004, 0.0, 0.004)))
    busy = Night(number=40, trials=tuple(replace(one, mad=4 * one.mad) for one in calm.trials))
    state = judged(nights)[-1].state
    calm_p, busy_p = judge(state, calm).p_value, judge(state, busy).p_value
    assert calm_p is not None
    assert busy_p is not None
    assert calm_p < busy_p / 2


def test_slow_creep_is_found_though_no_night_is_an_alert() -> None:
    noise = Noise(night_sd=0.008, trial_sd=0.004)
    levels = [0.0] * 40 + [0.00015 * night for night in range(120)]
    found = judged(made(levels, noise), trials_of(made(levels, noise, seed=50)))
    assert not alerts(found)
    accepted = level(found[39].state)
    assert accepted is not None
    before, after = creep(found[39].state, accepted.log_level), creep(found[-1].state, accepted.log_level)
    assert before is not None
    assert after is not None
    assert not before.has_crept
    assert after.has_crept
    assert after.low < 0.00015 * 115 < after.high


def test_a_state_without_a_verdict_has_no_level_and_no_creep() -> None:
    state = judged(made([0.0] * 3, Noise()))[-1].state
    assert level(state) is None
    assert creep(state, 0.0) is None
    with pytest.raises(ValueError, match="accepted level is nan"):
        creep(state, math.nan)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_samples_that_are_not_positive_and_finite_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        trial_sample([1.0, value])


@pytest.mark.parametrize(
    "bad",
    [
        TrialSample(log_median=math.nan, mad=0.1, steps=3),
        TrialSample(log_median=0.0, mad=math.inf, steps=3),
        TrialSample(log_median=0.0, mad=-0.1, steps=3),
        TrialSample(log_median=0.0, mad=0.1, steps=0),
    ],
)
def test_trials_that_hold_no_measurement_are_refused(bad: TrialSample) -> None:
    with pytest.raises(ValueError, match="a trial"):
        judge(None, Night(number=0, trials=(bad,)))


def test_a_night_out_of_order_or_without_trials_is_refused() -> None:
    state = judge(None, Night(number=5, trials=(trial(0.0),))).state
    with pytest.raises(ValueError, match="night 5 is not after night 5"):
        judge(state, Night(number=5, trials=(trial(0.0),)))
    with pytest.raises(ValueError, match="night 6 has no trial"):
        judge(state, Night(number=6, trials=()))


def test_reruns_without_a_suspicion_are_refused() -> None:
    state = judged(made([0.0] * 20, Noise()))[-1].state
    with pytest.raises(ValueError, match="no suspicion"):
        confirm_by_rerun(state, same_again(Night(number=19, trials=(trial(0.0),))))


def test_a_trial_is_reduced_to_the_median_of_its_logarithms() -> None:
    found = trial_sample([math.exp(1.0), math.exp(2.0), math.exp(4.0)], "pool")
    assert found.log_median == pytest.approx(2.0)
    assert found.mad == pytest.approx(1.0)
    assert (found.steps, found.placement) == (3, "pool")
