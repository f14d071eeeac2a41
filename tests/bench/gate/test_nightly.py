"""Nights of a history are judged: a change is found on its night, confirmed, stays open, and is closed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.gate.missing import day_of
from bench.gate.nightly import judge_nights, suspected_cases
from bench.gate.verdicts import Verdict, load_states, load_verdicts
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill


def _steps(verdicts: list[Verdict]) -> list[Verdict]:
    return [one for one in verdicts if one.key.metric == RUN_STEP_SECONDS.name]


def test_nights_that_are_alike_are_the_same(history: History) -> None:
    fill(FakeNights(history), 30)
    found = _steps(judge_nights(history, "nightly"))
    assert len(found) == 30
    assert [one.outcome for one in found[:3]] == ["insufficient_data"] * 3
    assert {one.outcome for one in found[15:]} == {"same"}


def test_a_shift_is_suspected_rerun_an_alert_and_then_confirmed(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 30)
    judge_nights(history, "nightly")
    nights.add(30, {"ddp": 1.05 * STEP_S})
    assert suspected_cases(history, "nightly", "night0030") == {"ddp": False}
    nights.add_run(30, "ddp", nights.trials(1.05 * STEP_S), is_rerun=True)
    (first,) = _steps(judge_nights(history, "nightly"))
    assert (first.outcome, first.is_new, first.reruns) == ("regression", True, 3)
    assert first.change_ratio == pytest.approx(1.05, abs=0.01)
    for number in range(31, 36):
        nights.add(number, {"ddp": 1.05 * STEP_S})
    later = _steps(judge_nights(history, "nightly"))
    assert "confirmed" in {one.outcome for one in later}
    last = later[-1]
    assert last.outcome == "confirmed"
    assert last.since_ns is not None
    assert abs(last.since_ns - (FIRST_NS + 30 * DAY_NS)) <= DAY_NS
    assert last.low is not None
    assert last.high is not None
    assert last.low < 1.05 < last.high


def test_a_suspicion_that_the_rerun_does_not_show_is_no_alert(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 30)
    nights.add(30, {"ddp": 1.05 * STEP_S})
    nights.add_run(30, "ddp", nights.trials(STEP_S), is_rerun=True)
    found = [one for one in _steps(judge_nights(history, "nightly")) if one.suite_run == "night0030"]
    assert [one.outcome for one in found] == ["same"]
    assert found[0].reruns == 3


def test_a_confirmed_change_stays_open_until_the_level_is_back(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 60, lambda number: {"ddp": STEP_S * (1.08 if 30 <= number < 45 else 1.0)})
    outcomes = [one.outcome for one in _steps(judge_nights(history, "nightly"))]
    assert outcomes[40] == outcomes[44] == "confirmed"
    assert "recovered" in outcomes[45:55]
    assert outcomes[-1] == "same"


def test_judging_each_night_or_all_at_once_is_the_same(history: History, tmp_path: Path) -> None:
    def level(number: int) -> dict[str, float]:
        return {"ddp": STEP_S * (1.03 if number >= 25 else 1.0)}

    with History(f"sqlite:///{tmp_path / 'other.sqlite'}") as other:
        fill(FakeNights(other), 35, level)
        at_once = judge_nights(other, "nightly")
    nights = FakeNights(history)
    by_night = []
    for number in range(35):
        nights.add(number, level(number))
        by_night += judge_nights(history, "nightly")
    assert by_night == at_once
    assert load_verdicts(history, "nightly") == sorted(at_once, key=lambda one: (one.started_ns, one.key))


def test_what_is_judged_is_not_judged_again(history: History) -> None:
    fill(FakeNights(history), 5)
    assert judge_nights(history, "nightly")
    before = load_states(history, "nightly")
    assert judge_nights(history, "nightly") == []
    assert load_states(history, "nightly") == before


def test_a_rate_that_falls_is_a_regression_and_one_that_rises_an_improvement(history: History) -> None:
    nights = FakeNights(history)
    fill(
        nights,
        40,
        lambda number: {
            "slower": STEP_S * (1.1 if number >= 30 else 1),
            "faster": STEP_S / (1.1 if number >= 30 else 1),
        },
    )
    found = _steps(judge_nights(history, "nightly"))
    last = {one.key.case: one for one in found}
    assert last["slower"].outcome == "confirmed"
    assert "improvement" in {one.outcome for one in found if one.key.case == "faster"}
    assert last["faster"].outcome == "same"


def test_a_run_that_came_late_is_left_out(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 12)
    judge_nights(history, "nightly")
    nights.add_run(9, "ddp", nights.trials(2 * STEP_S), started_ns=FIRST_NS + 9 * DAY_NS + 7, run="late")
    found = judge_nights(history, "nightly")
    assert {one.outcome for one in found} == {"late"}
    assert all("a clock was set back" in one.reason for one in found)
    assert judge_nights(history, "nightly") == []


def test_an_efficiency_that_falls_since_its_baseline_got_faster_says_so(history: History) -> None:
    nights = FakeNights(history)
    for number in range(40):
        rate = 600.0 * (1.1 if number >= 30 else 1.0)
        nights.add_run(number, "ddp", nights.trials(STEP_S), baseline_rate=rate)
        nights.add_record(number, done=1)
    found = [one for one in judge_nights(history, "nightly") if one.is_efficiency]
    said = [one for one in found if one.outcome == "faster_baseline"]
    assert said
    assert said[0].baseline_ratio == pytest.approx(1.1, abs=0.02)
    assert said[0].own_ratio == pytest.approx(1.0, abs=0.02)
    assert not {one.outcome for one in found} & {"regression", "confirmed"}


def test_an_efficiency_that_falls_by_itself_is_a_regression_with_its_legs(history: History) -> None:
    nights = FakeNights(history)
    for number in range(40):
        nights.add_run(number, "ddp", nights.trials(STEP_S * (1.1 if number >= 30 else 1)), baseline_rate=600.0)
        nights.add_record(number, done=1)
    found = [one for one in judge_nights(history, "nightly") if one.is_efficiency]
    assert found[-1].outcome == "confirmed"
    paged = next(one for one in found if one.outcome == "confirmed")
    assert paged.own_ratio == pytest.approx(1 / 1.1, abs=0.02)
    assert paged.baseline_ratio == pytest.approx(1.0, abs=0.02)


def test_a_confirmed_change_that_goes_back_within_two_weeks_is_closed(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 50, lambda number: {"ddp": STEP_S * (1.08 if 30 <= number < 38 else 1.0)})
    outcomes = [one.outcome for one in _steps(judge_nights(history, "nightly"))]
    assert outcomes[37] == "confirmed"
    assert "recovered" in outcomes[38:44]
    assert outcomes[-1] == "same"


def test_reasons_name_nights_by_their_dates(history: History) -> None:
    nights = FakeNights(history)
    for number in range(50):
        level = STEP_S * (1.08 if 30 <= number < 38 else 1.0)
        nights.add(number, {"ddp": level})
        if number == 30:
            nights.add_run(number, "ddp", nights.trials(level), is_rerun=True)
    found = _steps(judge_nights(history, "nightly"))
    began = day_of(found[30].started_ns)
    said = {one.outcome: one.reason for one in reversed(found[31:])}
    assert said["regression"].startswith(f"the change of {began} has probability ")
    assert said["confirmed"].endswith(f" since {began}")
    assert said["recovered"] == f"the level is back where it was before {began}"
    assert not [one.reason for one in found if re.search(r"night \d|\{night\}", one.reason)]


def test_an_improvement_that_is_lost_within_two_weeks_is_a_regression_and_no_recovery(history: History) -> None:
    nights = FakeNights(history)
    for number in range(45):
        level = STEP_S * (0.9 if 25 <= number < 36 else 1.0)
        nights.add(number, {"ddp": level})
        if number in (25, 36):
            nights.add_run(number, "ddp", nights.trials(level), is_rerun=True)
    found = _steps(judge_nights(history, "nightly"))
    outcomes = [one.outcome for one in found]
    assert "improvement" in outcomes[25:30]
    first = outcomes.index("confirmed")
    assert outcomes[36:first] == ["regression"] * (first - 36)
    assert outcomes[first:] == ["confirmed"] * (45 - first)
    paged = found[first]
    assert paged.is_new
    assert (
        paged.reason == f"an improvement is lost: the level is back where it was before {day_of(found[25].started_ns)}"
    )
    assert paged.since_ns == found[36].started_ns
    assert paged.low is not None
    assert paged.high is not None
    assert paged.low < 1 / 0.9 < paged.high
