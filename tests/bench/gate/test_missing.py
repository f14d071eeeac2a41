"""Missing data is an alert: a suite, a case or a figure that is not there is named."""

from __future__ import annotations

import pytest

from bench.gate import missing as missing_module
from bench.gate.check import SuiteCheck, check_suite
from bench.gate.missing import NIGHTS_SEEN
from bench.rank.messages import FailureCause
from bench.store.history import History
from bench.store.suite_record import CHOICE, CaseOutcome
from bench.store.summary import Summary
from dashboards.thresholds import shipped
from tests.bench.made.examples import make_case
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill


def _check(history: History, number: int, hours: float = 6) -> SuiteCheck:
    """The state so many hours after this night began."""
    now_ns = FIRST_NS + number * DAY_NS + round(hours / 24 * DAY_NS)
    return check_suite(history, "nightly", history.suite_runs(99), since_ns=None, now_ns=now_ns)


def _said(check: SuiteCheck) -> list[tuple[str, str]]:
    return [(one.kind, one.what) for one in check.missing]


def test_a_night_with_all_that_it_should_have_misses_nothing(history: History) -> None:
    fill(FakeNights(history), 5)
    assert _check(history, 4).missing == ()


def test_a_suite_that_did_not_run_is_named_with_how_long(history: History) -> None:
    fill(FakeNights(history), 5)
    (missing,) = _check(history, 4, hours=31).missing
    assert (missing.kind, missing.what) == ("not_run", "nightly")
    assert missing.reason == "it last began 31 h ago, but should begin every 24 h"
    assert _check(history, 4, hours=30).missing == ()  # 1.25 periods.
    assert _said(_check(history, 4, hours=30.01)) == [("not_run", "nightly")]


def test_gate_and_alert_call_a_suite_late_at_the_same_time() -> None:
    assert 1 + shipped().suites.late_ratio == missing_module.LATE_RATIO


def test_a_case_that_vanished_is_named(history: History) -> None:
    fill(FakeNights(history), 5, lambda number: {"ddp": STEP_S, "fsdp": STEP_S} if number < 4 else {"ddp": STEP_S})
    assert _said(_check(history, 4)) == [("vanished", "fsdp")]
    assert _check(history, 4).is_missing


def test_a_case_that_a_budget_left_out_is_told_and_no_alert(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5, lambda number: {"ddp": STEP_S, "fsdp": STEP_S})
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=1, cases={"done": 1, "left_out": 1}, left_out=("fsdp",))
    check = _check(history, 5)
    assert _said(check) == [("left_out", "fsdp")]
    assert not check.is_missing


def test_a_case_that_failed_is_named_with_its_cause(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    cause = FailureCause(kind="killed", rank=1, step=3, text="rank 1 was killed by SIGKILL")
    nights.add_run(5, "ddp", (STEP_S,), outcome="failed", cause=cause)
    nights.add_record(5, done=0, outcome="failed", cases={"failed": 1})
    (missing,) = _check(history, 5).missing
    assert (missing.kind, missing.what) == ("failed", "ddp")
    assert missing.reason == "failed: rank 1 was killed by SIGKILL"


def test_a_fire_drill_that_failed_as_expected_is_not_named(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_run(5, "drill", (STEP_S,), outcome="failed")
    nights.add_record(5, done=2)
    assert _check(history, 5).missing == ()


def _with_a_failed_case_between_drills(nights: FakeNights, failed: tuple[str, ...] | None) -> None:
    fill(nights, 5)
    nights.add_run(5, "drill", (STEP_S,), outcome="failed")
    nights.add_run(5, "ddp", (STEP_S,), outcome="failed")
    nights.add_run(5, "other drill", nights.trials(STEP_S))
    counts: dict[CaseOutcome, int] = {"done": 1, "failed": 2, "timed_out": 1}
    nights.add_record(5, done=1, outcome="failed", cases=counts, failed=failed)


def test_of_a_night_with_fire_drills_the_cases_that_failed_are_named(history: History) -> None:
    _with_a_failed_case_between_drills(FakeNights(history), ("ddp", "other drill", "fsdp"))
    reasons = {one.what: one.reason for one in _check(history, 5).missing}
    assert reasons == {
        "ddp": "failed",
        "other drill": "its run is done, which is not how it should end; `observatory suite show night0005` shows why",
        "nightly": "1 more case failed without a run in the history (fsdp)",
    }


def test_a_record_without_names_has_all_that_may_have_failed(history: History) -> None:
    _with_a_failed_case_between_drills(FakeNights(history), None)
    reasons = {one.what: one.reason for one in _check(history, 5).missing}
    assert reasons == {
        "drill": "failed",
        "ddp": "failed",
        "nightly": "1 more case failed without a run in the history",
    }


def test_a_figure_that_stopped_is_named(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 4)
    run = nights.add_run(4, "ddp", nights.trials(STEP_S))
    _without_mean_step(history, run)
    nights.add_record(4, done=1)
    (missing,) = _check(history, 4).missing
    assert missing.kind == "stopped"
    assert missing.what == "ddp: observatory_run_mean_step_seconds"
    assert missing.reason == "it was last measured on 2024-10-07"


@pytest.mark.parametrize("nights_ago", range(1, NIGHTS_SEEN + 2))
def test_a_figure_that_stopped_is_named_for_as_many_nights_as_are_looked_at(nights_ago: int, history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 6)
    for number in range(6, 6 + nights_ago):
        _without_mean_step(history, nights.add_run(number, "ddp", nights.trials(STEP_S)))
        nights.add_record(number, done=1)
    missing = _check(history, 5 + nights_ago).missing
    assert [each.kind for each in missing] == (["stopped"] if nights_ago <= NIGHTS_SEEN else [])


def _without_mean_step(history: History, run: Summary) -> None:
    from dataclasses import replace

    from tests.bench.made.examples import make_machine

    kept = tuple(one for one in run.estimates if one.metric != "observatory_run_mean_step_seconds")
    history.add(replace(run, estimates=kept), make_machine())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": "AMD EPYC, 4 cores"}, "machine AMD EPYC, 2 cores -> AMD EPYC, 4 cores"),
        ({"case": make_case("ddp", 2, version=99)}, "version of the strategy 2 -> 99"),
        ({"case": make_case("ddp", 2, threads=2)}, "threads 1 -> 2"),
    ],
    ids=["hardware", "version", "options"],
)
def test_a_case_of_another_series_is_judged_anew_and_said(
    history: History, changes: dict[str, object], reason: str
) -> None:
    nights = FakeNights(history)
    fill(nights, 12)
    nights.add_run(12, "ddp", nights.trials(2 * STEP_S), **changes)  # type: ignore[arg-type]
    nights.add_record(12, done=1)
    check = _check(history, 12)
    (new,) = check.missing
    assert new.kind == "new_series"
    assert not check.is_missing
    assert new.reason == f"it is judged from the start: its definition changed ({reason})"


def test_a_baseline_that_was_pruned_is_said(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 12)
    _check(history, 11)
    history.forget("run0011-ddp")
    nights.add_run(12, "ddp", nights.trials(STEP_S), hardware="AMD EPYC, 4 cores")
    nights.add_record(12, done=1)
    (new,) = _check(history, 12).missing
    assert new.reason.endswith("run run0011-ddp, the last of the nights before, is no longer in the history)")


def test_a_night_whose_clock_went_back_is_named_for_some_nights(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 19)
    assert _check(history, 18).missing == ()
    started_ns = FIRST_NS + 14 * DAY_NS + 7
    nights.add_run(19, "ddp", nights.trials(1.3 * STEP_S), started_ns=started_ns)
    nights.add_record(19, done=1, started_ns=started_ns, progress_ns=started_ns, ended_ns=started_ns)
    check = _check(history, 18)
    (missing,) = check.missing
    assert (missing.kind, missing.what) == ("late", "ddp")
    assert missing.reason == (
        "run0019-ddp began on 2024-10-18, before a night that is already judged; a clock was set back"
    )
    assert check.is_missing
    said = []
    for number in range(19, 24):
        nights.add_run(number, "ddp", nights.trials(STEP_S), run=f"later{number}")
        nights.add_record(number, done=1, id=f"later{number}")
        said.append("late" in [one.kind for one in _check(history, number).missing])
    assert said == [True, True, False, False, False]


def test_a_night_whose_clock_went_back_is_named_no_more_once_its_series_has_ended(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 19)
    _check(history, 18)
    started_ns = FIRST_NS + 14 * DAY_NS + 7
    nights.add_run(19, "ddp", nights.trials(1.3 * STEP_S), started_ns=started_ns)
    nights.add_record(19, done=1, started_ns=started_ns, progress_ns=started_ns, ended_ns=started_ns)
    said = []
    for number in range(19, 24):
        nights.add_run(number, "ddp", nights.trials(STEP_S), run=f"moved{number}", hardware="AMD EPYC, 4 cores")
        nights.add_record(number, done=1, id=f"moved{number}")
        said.append("late" in [one.kind for one in _check(history, number).missing])
    assert said == [True, True, False, False, False]


def test_a_suite_run_that_goes_on_is_not_judged_yet_and_one_that_stands_still_is_named(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=0, outcome="running")
    check = _check(history, 5, hours=1.5)
    assert check.night is not None
    assert check.night.id == "night0004"
    assert check.missing == ()
    stalled = _check(history, 5, hours=2)  # An hour after its last progress.
    assert _said(stalled) == [("stalled", "nightly")]
    assert stalled.is_missing


def test_an_interrupted_choice_names_its_own_command(history: History) -> None:
    FakeNights(history, suite=CHOICE).add_record(0, done=0, outcome="interrupted", period_s=None)
    check = check_suite(history, CHOICE, history.suite_runs(99), since_ns=None, now_ns=FIRST_NS + DAY_NS)
    assert [one.reason for one in check.missing] == [
        "night0000 was interrupted; `observatory choose --resume night0000` with the same options continues it"
    ]


def test_an_interrupted_night_names_the_command_that_goes_on(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=1, outcome="interrupted")
    (missing,) = _check(history, 5).missing
    assert missing.reason == (
        "night0005 was interrupted; `observatory suite run nightly --resume night0005` continues it"
    )


@pytest.mark.parametrize(("period_s", "hours"), [(None, 24), (7200.0, 2)])
def test_an_interrupted_night_is_judged_when_its_period_is_over(
    history: History, period_s: float | None, hours: int
) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=1, outcome="interrupted", period_s=period_s)
    waiting = _check(history, 5, hours=hours - 0.01).night
    assert waiting is not None
    assert waiting.id == "night0004"
    over = _check(history, 5, hours=hours).night
    assert over is not None
    assert over.id == "night0005"


def test_an_interrupted_night_is_judged_once_a_later_one_has_begun(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=1, outcome="interrupted")
    started_ns = FIRST_NS + 5 * DAY_NS + DAY_NS // 8
    nights.add_record(6, done=0, outcome="running", started_ns=started_ns, progress_ns=started_ns)
    night = _check(history, 5, hours=3.5).night
    assert night is not None
    assert night.id == "night0005"
