"""A regression stays until it recovers or is accepted, whatever else the newest suite run measured."""

from __future__ import annotations

import msgspec
import pytest

from bench.errors import Misuse
from bench.gate.accept import accept
from bench.gate.check import SuiteCheck, check_suite
from bench.gate.nightly import judge_nights, suspected_cases
from bench.gate.report import reason_of
from bench.gate.verdicts import Raced, Verdict, load_states, save_accepted, save_night
from bench.store.history import History
from bench.store.summary import series_of
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_case
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill


def _check(history: History, number: int) -> SuiteCheck:
    """The state some hours after this night."""
    now_ns = FIRST_NS + number * DAY_NS + DAY_NS // 4
    return check_suite(history, "nightly", history.suite_runs(999), since_ns=None, now_ns=now_ns)


def _step(check: SuiteCheck, case: str = "ddp") -> list[Verdict]:
    return [one for one in check.verdicts if (one.key.case, one.key.metric) == (case, RUN_STEP_SECONDS.name)]


def _with_a_regression(history: History) -> FakeNights:
    """24 nights of two cases, of which ddp is 8 % slower from night 16 on."""
    nights = FakeNights(history)
    fill(nights, 24, lambda number: {"ddp": STEP_S * (1.08 if number >= 16 else 1.0), "fsdp": STEP_S})
    return nights


def test_a_night_of_other_cases_does_not_hide_it(history: History) -> None:
    nights = _with_a_regression(history)
    nights.add_run(24, "fsdp", nights.trials(STEP_S))
    nights.add_record(24, done=1, cases={"done": 1, "left_out": 1}, left_out=("ddp",))
    check = _check(history, 24)
    (step,) = _step(check)
    assert check.is_regression
    assert (step.outcome, step.reason) == ("confirmed", "not measured since 2024-10-27")


def test_what_an_older_version_kept_does_not_hide_it_either(history: History) -> None:
    nights = _with_a_regression(history)
    assert _check(history, 23).is_regression
    known = load_states(history, "nightly")
    older = [one.with_state(msgspec.structs.replace(one.state, is_worse=None)) for one in known.values()]
    save_night(history, known, older, [])
    nights.add(24, {"fsdp": STEP_S})
    assert [one.outcome for one in _step(_check(history, 24))] == ["confirmed"]


def test_another_machine_that_is_well_does_not_hide_it(history: History) -> None:
    nights = _with_a_regression(history)
    nights.add_run(24, "ddp", nights.trials(STEP_S), hardware="NVIDIA H100")
    nights.add_record(24, done=1)
    assert _check(history, 24).is_regression


def test_half_a_recovery_is_told_with_what_is_left(history: History) -> None:
    nights = FakeNights(history)
    levels = [1.0] * 20 + [1.20] * 16 + [1.09] * 16
    fill(nights, len(levels), lambda number: {"ddp": STEP_S * levels[number]})
    (step,) = _step(_check(history, len(levels) - 1))
    assert step.outcome == "confirmed"
    assert step.low is not None
    assert step.high is not None
    assert step.low < 1.09 < step.high


def test_a_recovery_in_steps_is_closed_when_it_is_whole(history: History) -> None:
    nights = FakeNights(history)
    levels = [1.0] * 20 + [1.12] * 16 + [1.06] * 16 + [0.999] * 16
    fill(nights, len(levels), lambda number: {"ddp": STEP_S * levels[number]})
    outcomes = [one.outcome for one in judge_nights(history, "nightly") if one.key.metric == RUN_STEP_SECONDS.name]
    assert outcomes[51] == "confirmed"
    assert "recovered" in outcomes[52:]
    assert outcomes[-1] == "same"


def test_a_further_regression_is_rerun_told_dated_and_has_its_own_cause(history: History) -> None:
    nights = FakeNights(history)
    levels = [1.0] * 18 + [1.03] * 12 + [1.30] * 8 + [1.0] * 8
    told: list[Verdict] = []
    for number, level in enumerate(levels):
        nights.add(number, {"ddp": STEP_S * level})
        if suspected_cases(history, "nightly", f"night{number:04}"):
            nights.add_run(number, "ddp", nights.trials(STEP_S * level), is_rerun=True)
        told += [one for one in judge_nights(history, "nightly") if one.key.metric == RUN_STEP_SECONDS.name]
    assert (told[29].outcome, told[29].bad_run) == ("confirmed", "run0018-ddp")
    night = told[30]
    assert (night.outcome, night.reruns, night.good_run, night.bad_run) == (
        *("confirmed", 3),
        *("run0029-ddp", "run0030-ddp"),
    )
    assert night.is_new
    assert (night.since_ns, night.first_ns) == (told[30].started_ns, told[18].started_ns)
    assert night.change_ratio == pytest.approx(1.3, rel=0.02)
    assert night.low is not None
    assert night.low < 1.3
    assert night.reason.endswith("with its reruns; in addition to the regression since 2024-10-22")
    last = told[37]
    assert (last.outcome, last.good_run, last.bad_run) == ("confirmed", "run0029-ddp", "run0030-ddp")
    assert (last.since_ns, last.first_ns) == (told[30].started_ns, told[18].started_ns)
    assert last.change_ratio == pytest.approx(1.3, rel=0.02)
    assert reason_of(last) == ("it began 2024-11-03; it combines several changes, the first of which began 2024-10-22")
    assert "recovered" in [one.outcome for one in told[38:]]
    assert told[-1].outcome == "same"


def test_a_further_change_that_goes_again_leaves_the_first_one_with_its_cause(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 30, lambda number: {"ddp": STEP_S * (1.08 if number >= 18 else 1.0)})
    nights.add(30, {"ddp": STEP_S * 1.3})
    nights.add_run(30, "ddp", nights.trials(STEP_S * 1.3), is_rerun=True)
    for number in range(31, 36):
        nights.add(number, {"ddp": STEP_S * 1.08})
    told = [one for one in judge_nights(history, "nightly") if one.key.metric == RUN_STEP_SECONDS.name]
    assert (told[30].outcome, told[30].bad_run) == ("confirmed", "run0030-ddp")
    assert (told[35].outcome, told[35].since_ns, told[35].first_ns) == ("confirmed", told[18].started_ns, None)
    assert told[35].bad_run == told[29].bad_run == "run0018-ddp"


def test_an_accepted_regression_is_closed_at_once(history: History) -> None:
    _with_a_regression(history)
    assert _check(history, 23).is_regression
    known = load_states(history, "nightly")
    levels, after = accept(
        known.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=FIRST_NS + 24 * DAY_NS
    )
    save_accepted(history, levels, known, after)
    check = _check(history, 23)
    assert not check.is_regression
    (step,) = _step(check)
    assert (step.outcome, step.reason) == ("accepted", "ada accepted it on 2024-10-28: agreed")


def test_accepting_closes_also_what_is_open_of_series_that_have_ended(history: History) -> None:
    nights = _with_a_regression(history)
    newer = make_case("ddp", 2, version=99)
    for number in range(24, 36):
        nights.add_run(number, "ddp", nights.trials(STEP_S), case=newer)
        nights.add_run(number, "fsdp", nights.trials(STEP_S))
        nights.add_record(number, done=2)
    assert {one.key.series for one in _check(history, 35).verdicts if one.outcome == "confirmed"} == {
        series_of(make_case("ddp", 2), "AMD EPYC, 2 cores")
    }
    known = load_states(history, "nightly")
    levels, after = accept(known.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=1)
    assert {one.key.series for one in levels} == {series_of(newer, "AMD EPYC, 2 cores")}
    assert len(after) - len(levels) == 2
    save_accepted(history, levels, known, after)
    assert not _check(history, 35).is_regression


def test_an_ended_series_is_closed_where_the_newest_one_has_no_level_yet(history: History) -> None:
    nights = _with_a_regression(history)
    for number in (24, 25):
        nights.add_run(number, "ddp", nights.trials(STEP_S), hardware="NVIDIA H100")
        nights.add_record(number, done=1)
    assert _check(history, 25).is_regression
    known = load_states(history, "nightly")
    levels, after = accept(known.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=1)
    assert (len(levels), len(after)) == (0, 2)
    save_accepted(history, levels, known, after)
    assert not _check(history, 25).is_regression


def test_the_change_of_one_night_cannot_be_accepted_yet(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 30)
    nights.add(30, {"ddp": 1.1 * STEP_S})
    nights.add_run(30, "ddp", nights.trials(1.1 * STEP_S), is_rerun=True)
    assert _check(history, 30).is_regression
    known = load_states(history, "nightly").values()
    with pytest.raises(Misuse, match=r"is from this night only, and its new level is not known yet"):
        accept(known, case="ddp", metric=None, who="ada", because="agreed", now_ns=1)


def test_the_levels_of_all_machines_of_a_night_are_accepted(history: History) -> None:
    nights = FakeNights(history)
    for number in range(12):
        nights.add(number, {"ddp": STEP_S})
        nights.add_run(number, "ddp", nights.trials(STEP_S), hardware="NVIDIA H100", run=f"other{number}")
    judge_nights(history, "nightly")
    known = load_states(history, "nightly").values()
    levels, _ = accept(known, case="ddp", metric=None, who="ada", because="agreed", now_ns=1)
    assert len({one.key.series for one in levels}) == 2


def test_a_run_of_the_future_is_told_and_blinds_nobody(history: History) -> None:
    nights = _with_a_regression(history)
    nights.add(400, {"ddp": STEP_S, "fsdp": STEP_S})
    check = _check(history, 23)
    assert check.night is not None
    assert check.night.id == "night0023"
    assert check.is_regression
    assert [(one.kind, one.what) for one in check.missing] == [("clock", "nightly")]
    assert check.missing[0].reason.startswith("night0400 began in the future, on 2025-11-08")


def test_two_machines_of_one_kind_are_both_judged(history: History) -> None:
    nights = FakeNights(history)
    for number in range(12):
        nights.add(number, {"ddp": STEP_S})
        started_ns = FIRST_NS + number * DAY_NS
        nights.add_run(number, "ddp", nights.trials(STEP_S), run=f"other{number}", started_ns=started_ns)
    found = judge_nights(history, "nightly")
    assert len(found) == 48
    assert "late" not in {one.outcome for one in found}


def test_an_interrupted_night_is_judged_when_its_time_is_over(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 20)
    nights.add_run(20, "ddp", nights.trials(STEP_S))
    nights.add_record(20, done=1, outcome="interrupted")
    soon = _check(history, 20)
    assert soon.night is not None
    assert soon.night.id == "night0019"
    later = _check(history, 21)
    assert later.night is not None
    assert later.night.id == "night0020"
    assert len(later.verdicts) == 2


def test_of_two_that_judge_at_once_the_slower_one_keeps_nothing(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 3)
    judge_nights(history, "nightly")
    before = load_states(history, "nightly")
    nights.add(3, {"ddp": STEP_S})
    judge_nights(history, "nightly")
    now = load_states(history, "nightly")
    for known in (before, {}):
        with pytest.raises(Raced):
            save_night(history, known, before.values(), [])
    assert load_states(history, "nightly") == now


def test_failed_cases_without_a_run_are_counted(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 5)
    nights.add_run(5, "ddp", nights.trials(STEP_S))
    nights.add_record(5, done=1, outcome="failed", cases={"done": 1, "failed": 1, "skipped": 2})
    said = {one.kind: one.reason for one in _check(history, 5).missing}
    assert said["failed"] == "1 more case failed without a run in the history"
    assert said["skipped"].startswith("2 cases cannot run there")


def test_a_figure_that_nobody_measures_any_more_is_told_for_some_nights_only(history: History) -> None:
    nights = FakeNights(history)
    for number in range(10):
        rate = 600.0 if number < 4 else None
        nights.add_run(number, "ddp", nights.trials(STEP_S), baseline_rate=rate)
        nights.add_record(number, done=1)
        if number == 4:
            assert [one.kind for one in _check(history, 4).missing] == ["stopped"]
    assert _check(history, 9).missing == ()


def test_an_old_suite_run_that_was_interrupted_once_is_no_alert(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 2)
    nights.add_run(2, "ddp", nights.trials(STEP_S))
    nights.add_record(2, done=1, outcome="interrupted", period_s=None)
    check = _check(history, 60)
    assert [one.kind for one in check.missing] == ["unfinished"]
    assert not check.is_missing
