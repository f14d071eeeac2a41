"""Nights that are not as they should be: one clear line each, and no later night is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.main import run
from bench.gate.check import SuiteCheck, check_suite
from bench.gate.nightly import judge_nights
from bench.gate.report import check_lines
from bench.gate.standing import judged_suites
from bench.gate.verdicts import Verdict
from bench.results.estimate import estimate
from bench.store.history import History
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill

LATER_NS = 300 * DAY_NS


def _check(history: History, now_ns: int) -> SuiteCheck:
    return check_suite(history, "nightly", history.suite_runs(999), since_ns=None, now_ns=now_ns)


def _noon(number: int) -> int:
    return FIRST_NS + number * DAY_NS + DAY_NS // 4


def _steps(check: SuiteCheck) -> list[Verdict]:
    return [each for each in check.verdicts if each.key.metric == RUN_STEP_SECONDS.name]


def test_a_clock_that_jumped_ahead_for_a_night_loses_no_later_night(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 20)
    _check(history, _noon(19))
    started_ns = FIRST_NS + 20 * DAY_NS + LATER_NS
    nights.add_run(20, "ddp", nights.trials(STEP_S), started_ns=started_ns)
    nights.add_record(20, done=1, started_ns=started_ns, progress_ns=started_ns, ended_ns=started_ns)
    assert len(_steps(_check(history, started_ns + DAY_NS // 4))) == 1  # Judged while the clock was wrong.
    outcomes = []
    for number in range(21, 27):
        nights.add(number, {"ddp": STEP_S * (1.08 if number > 22 else 1.0)})
        check = _check(history, _noon(number))
        assert check.night is not None
        assert check.night.id == f"night{number:04}"
        outcomes += [each.outcome for each in _steps(check)]
    assert outcomes[:2] == ["same"] * 2
    assert outcomes[-1] == "confirmed"
    assert [(each.kind, each.what) for each in check.missing] == [("clock", "nightly")]
    assert check.missing[0].reason == (
        "night0020 began in the future, on 2025-08-20, by the clock of its runner; it was judged by that clock, and the"
        " nights after it are judged"
    )
    assert judged_suites(history, _noon(26))["nightly"].suite_run == "night0026"


@pytest.mark.parametrize(("level", "outcome"), [(1.0, "same"), (1.3, "insufficient_data")])
def test_a_night_of_one_trial_says_so(history: History, level: float, outcome: str) -> None:
    nights = FakeNights(history)
    fill(nights, 20)
    nights.add_run(20, "ddp", nights.trials(STEP_S * level, count=1))
    nights.add_run(20, "ddp", nights.trials(STEP_S * level, count=1), is_rerun=True)
    nights.add_record(20, done=1)
    check = _check(history, _noon(20))
    assert [each.outcome for each in _steps(check)] == [outcome]
    lines = check_lines(check)
    assert "2 figures with one trial only (ddp): a broken trial would not be noticed" in lines
    if level > 1:
        assert any("2 trials in all; an alert needs 3" in line for line in lines)


def test_a_figure_that_is_the_same_to_the_last_digit_is_judged(history: History) -> None:
    nights = FakeNights(history)
    for number in range(26):
        memory = estimate(RUN_PEAK_MEMORY_BYTES, [2**30 * (1.05 if number >= 20 else 1.0)] * 3, account="allocated")
        nights.add_run(number, "ddp", nights.trials(STEP_S), parts=(memory,))
        nights.add_record(number, done=1)
    verdicts = [each for each in judge_nights(history, "nightly") if each.key.metric == RUN_PEAK_MEMORY_BYTES.name]
    assert {each.outcome for each in verdicts[10:20]} == {"same"}
    assert verdicts[-1].outcome == "confirmed"
    assert verdicts[-1].change_ratio == pytest.approx(1.05, abs=0.005)


def _with_memory(nights: FakeNights, number: int, memory_bytes: float) -> None:
    memory = estimate(RUN_PEAK_MEMORY_BYTES, [2.0**30] * 3, account="allocated")
    memory = replace(memory, trials=(memory_bytes, 2.0**30, 2.0**30))  # What is measured now is refused if it is 0.
    nights.add_run(number, "ddp", nights.trials(STEP_S), parts=(memory,))
    nights.add_record(number, done=1)


def test_a_figure_that_is_zero_on_this_night_is_named(history: History) -> None:
    nights = FakeNights(history)
    for number in range(12):
        _with_memory(nights, number, 2.0**30 if number < 11 else 0.0)
    check = _check(history, _noon(11))
    (missing,) = check.missing
    assert (missing.kind, missing.what) == ("stopped", f'ddp: {RUN_PEAK_MEMORY_BYTES.name} {{"account":"allocated"}}')
    assert missing.reason == (
        "one of its trials is not positive and cannot be judged; it was last measured on 2024-10-14"
    )
    assert len(_steps(check)) == 1


def test_a_figure_that_is_always_zero_is_named_without_a_code(history: History) -> None:
    nights = FakeNights(history)
    for number in range(12):
        _with_memory(nights, number, 0.0)
    check = _check(history, _noon(11))
    (missing,) = check.missing
    assert (missing.kind, missing.is_alert) == ("not_positive", False)
    assert missing.reason == "one of its trials is 0 or less, which has no logarithm, so it is not judged"


def test_a_rate_of_zero_leaves_out_the_efficiency_alone(history: History) -> None:
    nights = FakeNights(history)
    for number in range(3):
        made = nights.add_run(number, "ddp", nights.trials(STEP_S), baseline_rate=600.0)
        nights.add_record(number, done=1)
    rates = tuple(
        replace(each, trials=(0.0, *each.trials[1:])) if "tokens_per_second" in each.metric else each
        for each in made.estimates
    )
    nights.add_run(3, "ddp", nights.trials(STEP_S), baseline_rate=600.0, estimates=rates)
    nights.add_record(3, done=1)
    last = [each for each in judge_nights(history, "nightly") if each.suite_run == "night0003"]
    assert not any(each.is_efficiency for each in last)
    assert any(each.key.metric == RUN_STEP_SECONDS.name for each in last)


def test_a_commit_that_is_gone_costs_one_clause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - 39 * DAY_NS - DAY_NS // 12)
        for number in range(40):
            is_bad = number >= 30
            nights.add(number, {"ddp": STEP_S * (1.08 if is_bad else 1.0)}, commit=("d" if is_bad else "a") * 40)
    assert run(["check", "--store", url]) == 5
    words = " ".join(capsys.readouterr().out.split())
    assert f"commit {'a' * 12}..{'d' * 12} (" in words
