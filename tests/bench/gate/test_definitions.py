"""A case whose definition changes: its first nights are held against the last level of the series before."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cli.main import run
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import Verdict
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_case
from tests.bench.made.fake_nights import DAY_NS, STEP_S, FakeNights, fill

USUAL = 20
OLD = make_case("ddp", 2)


def _changed_by(**options: Any) -> dict[str, Any]:
    return {"case": replace(OLD, options={**OLD.options, **options})}


def _judged(history: History, changes: Mapping[str, Any], *levels: float, commit: str = "c" * 40) -> list[Verdict]:
    """The verdicts on the step of twenty usual nights, and of one night of the new series for each level."""
    nights = FakeNights(history)
    fill(nights, USUAL)
    for number, level in enumerate(levels, USUAL):
        nights.add(number, {"ddp": STEP_S * level}, **{"commit": commit, **changes})
    verdicts = [each for each in judge_nights(history, "nightly") if each.key.metric == RUN_STEP_SECONDS.name]
    return verdicts[USUAL:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"case": replace(OLD, threads=2)}, "threads 1 -> 2"),
        ({"case": replace(OLD, version=99)}, "version of the strategy 2 -> 99"),
        (_changed_by(bucket_mb=50.0), "bucket mb 25.0 -> 50.0"),
        ({"case": replace(OLD, precision="bf16", threads=3)}, "precision fp32 -> bf16, threads 1 -> 3"),
    ],
    ids=["threads", "version", "option", "two"],
)
def test_the_first_night_is_worse_by_definition_and_names_what_changed(
    history: History, changes: dict[str, Any], words: str
) -> None:
    (first,) = _judged(history, changes, 1.3)
    assert (first.outcome, first.is_new, first.definition) == ("redefined", True, words)
    assert first.reason == f"since the case definition changed ({words})"
    assert first.change_ratio == pytest.approx(1.3, abs=0.02)
    assert first.low is not None
    assert first.high is not None
    assert 1.2 < first.low < 1.3 < first.high < 1.4
    assert (first.good_run, first.bad_run) == ("run0019-ddp", "run0020-ddp")
    assert first.cause is not None
    assert first.cause.startswith(f"likely {words}")


def test_it_stays_beyond_the_first_nights_and_is_new_once(history: History) -> None:
    verdicts = _judged(history, {"case": replace(OLD, threads=2)}, *[1.3] * 14)
    assert {each.outcome for each in verdicts} == {"redefined"}
    assert [each.is_new for each in verdicts] == [True, *[False] * 13]
    assert len({each.cause for each in verdicts}) == 1
    assert verdicts[-1].change_ratio == pytest.approx(1.3, abs=0.02)
    assert verdicts[-1].reason == "since the case definition changed (threads 1 -> 2)"


def test_a_new_definition_of_the_same_speed_is_no_change(history: History) -> None:
    verdicts = _judged(history, {"case": replace(OLD, threads=2)}, *[1.0] * 12)
    assert {each.outcome for each in verdicts[:9]} == {"insufficient_data"}
    assert verdicts[0].reason.endswith("; nothing is worse since the case definition changed (threads 1 -> 2)")
    assert not {each.outcome for each in verdicts} & {"redefined", "regression", "confirmed"}


def test_a_faster_definition_is_an_improvement_of_its_first_nights(history: History) -> None:
    verdicts = _judged(history, {"case": replace(OLD, threads=2)}, *[0.7] * 12)
    assert [each.outcome for each in verdicts[:4]] == [*["improvement"] * 3, "insufficient_data"]
    assert verdicts[0].reason == "since the case definition changed (threads 1 -> 2)"


def test_one_slow_night_of_a_new_definition_closes_itself(history: History) -> None:
    verdicts = _judged(history, {"case": replace(OLD, threads=2)}, 1.1, *[1.0] * 8)
    outcomes = [each.outcome for each in verdicts]
    assert outcomes[0] == "redefined"
    assert "recovered" in outcomes
    assert outcomes[-1] == "insufficient_data"


def test_another_machine_is_held_against_the_old_one_after_three_nights(history: History) -> None:
    verdicts = _judged(history, {"hardware": "AMD EPYC, 4 cores"}, *[1.3] * 4)
    assert [each.outcome for each in verdicts] == [*["insufficient_data"] * 2, *["redefined"] * 2]
    assert verdicts[-1].definition == "machine AMD EPYC, 2 cores -> AMD EPYC, 4 cores"


def test_machines_that_take_turns_are_not_held_against_each_other(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, USUAL)
    for number in range(USUAL, USUAL + 14):
        is_other = number % 2 == 0
        hardware = "AMD EPYC, 4 cores" if is_other else "AMD EPYC, 2 cores"
        nights.add(number, {"ddp": STEP_S * (1.3 if is_other else 1.0)}, hardware=hardware)
    assert not {each.outcome for each in judge_nights(history, "nightly")} & {"redefined", "confirmed"}


# Through the command


@pytest.fixture
def store(tmp_path: Path) -> list[str]:
    """A history whose case is 30 % slower with two threads, on its newest three nights; the option of the store."""
    url = f"sqlite:///{tmp_path / 'history.sqlite'}"
    with History(url) as history:
        _nights(history, range(USUAL + 3))
    return ["--store", url]


def _nights(history: History, numbers: range) -> None:
    nights = FakeNights(history, first_ns=time.time_ns() - (USUAL + 2) * DAY_NS - DAY_NS // 12, seed=numbers.start)
    for number in numbers:
        is_new = number >= USUAL
        case = replace(OLD, threads=2) if is_new else OLD
        nights.add(number, {"ddp": STEP_S * (1.3 if is_new else 1.0)}, case=case)


def test_check_ends_with_the_code_of_a_regression_and_says_how_much_since_what(
    store: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", *store]) == 5
    text = " ".join(capsys.readouterr().out.split())
    assert "worse by definition" in text
    assert "ddp: step, mean step: +" in text or "ddp: mean step, step: +" in text
    assert "since the case definition changed (threads 1 -> 2)" in text
    assert "likely threads 1 -> 2" in text
    assert run(["check", "--format", "json", *store]) == 5
    (document,) = json.loads(capsys.readouterr().out)
    step = next(each for each in document["verdicts"] if each["metric"] == RUN_STEP_SECONDS.name)
    assert (step["outcome"], step["is_bad"], step["definition"]) == ("redefined", True, "threads 1 -> 2")
    assert step["low"] < 1.3 < step["high"]


def test_an_accepted_definition_is_not_repeated(store: list[str], tmp_path: Path) -> None:
    assert run(["check", *store]) == 5
    assert run(["check", "--accept", "ddp", "--because", "two threads on purpose", *store]) == 0
    assert run(["check", *store]) == 0
    with History(store[1]) as history:
        _nights(history, range(USUAL + 3, USUAL + 16))
        verdicts = judge_nights(history, "nightly", now_ns=time.time_ns() + 30 * DAY_NS)
    assert not {each.outcome for each in verdicts} & {"redefined", "regression", "confirmed", "creep"}


def test_a_definition_that_is_taken_back_stays_open_no_longer(store: list[str]) -> None:
    assert run(["check", *store]) == 5
    with History(store[1]) as history:
        nights = FakeNights(history, first_ns=time.time_ns() - (USUAL + 3) * DAY_NS - DAY_NS // 24)
        nights.add(USUAL + 3, {"ddp": STEP_S})
    assert run(["check", *store]) == 0
