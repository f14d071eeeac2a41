"""Nights of a history are judged: a change is found on its night, confirmed, stays open, and is closed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from bench.gate.missing import day_of
from bench.gate.nightly import judge_nights, suspected_cases
from bench.gate.verdicts import Verdict, labels_of, load_states, load_verdicts, save_night
from bench.results.estimate import estimate
from bench.store.history import History
from collectors.metrics.probes import RUN_COLLECTIVE_BUS_BANDWIDTH
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


def _labels(size: int) -> dict[str, str]:
    return {"collective": "all_reduce", "algorithm": "ring", "size": str(size)}


def _add_probe(nights: FakeNights, number: int, sizes: int, level: float = 1.0, *, is_rerun: bool = False) -> None:
    """Add a night of a probe's bandwidths: the one of the smallest size varies, and is at this level."""
    first = [1e9 * level * value for value in nights.trials(1.0)]
    values = (first, *[(0.999e9, 1e9, 1.001e9)] * (sizes - 1))
    estimates = tuple(
        estimate(RUN_COLLECTIVE_BUS_BANDWIDTH, trials, **_labels(size)) for size, trials in enumerate(values)
    )
    nights.add_run(number, "probe", first, estimates=estimates, is_rerun=is_rerun)


@pytest.mark.parametrize(("sizes", "outcome"), [(1, "regression"), (100, "regression"), (120, "suspicion")])
def test_a_small_change_of_one_among_many_figures_is_no_alert(history: History, sizes: int, outcome: str) -> None:
    nights = FakeNights(history)
    for number in range(20):
        _add_probe(nights, number, 1)
    judge_nights(history, "nightly")
    known = load_states(history, "nightly")
    (one,) = known.values()
    alike = [msgspec.structs.replace(one.key, labels=labels_of(_labels(size))) for size in range(1, sizes)]
    save_night(history, known, [replace(one, key=key) for key in alike], [])
    _add_probe(nights, 20, sizes, 0.9865)
    _add_probe(nights, 20, sizes, 0.992, is_rerun=True)
    verdict, *others = judge_nights(history, "nightly")
    assert {other.outcome for other in others} <= {"same"}
    assert verdict.p_value is not None
    assert 0.1 / 120 < verdict.p_value < 0.1 / 100  # One false alert in ten is the most that a night may have.
    assert (verdict.outcome, verdict.reruns, verdict.is_new) == (outcome, 3, True)
    assert verdict.reason.endswith("can be chance") == (outcome == "suspicion")
    after = load_states(history, "nightly")[one.key]
    assert (after.state.detector.alert is None, after.is_worse) == (outcome == "suspicion", outcome == "regression")


def test_the_most_suspicious_case_is_measured_again_first_and_an_efficiency_with_its_baseline(history: History) -> None:
    nights = FakeNights(history)
    for number in range(16):
        is_last = number == 15
        nights.add_run(number, "a little", nights.trials(STEP_S * (1.03 if is_last else 1.0)))
        nights.add_run(number, "much", nights.trials(STEP_S * (1.3 if is_last else 1.0)), baseline_rate=600.0)
        nights.add_run(number, "well", nights.trials(STEP_S), baseline_rate=600.0)
    suspected = suspected_cases(history, "nightly", "night0015")
    assert list(suspected.items()) == [("much", True), ("a little", False)]
    assert load_verdicts(history, "nightly") == []  # Nothing is stored.
    assert suspected_cases(history, "nightly", "night0014") == {}


def test_runs_after_this_moment_and_of_suite_runs_that_go_on_wait(history: History) -> None:
    fill(FakeNights(history), 4)
    began_ns = FIRST_NS + 2 * DAY_NS + 1
    judged = [judge_nights(history, "nightly", now_ns=now_ns) for now_ns in (began_ns - 1, began_ns)]
    assert [{each.suite_run for each in night} for night in judged] == [{"night0000", "night0001"}, {"night0002"}]
    assert judge_nights(history, "nightly", unfinished=["night0003"]) == []
    assert {each.suite_run for each in judge_nights(history, "nightly")} == {"night0003"}


@pytest.mark.parametrize(("days", "outcomes"), [(1, {"insufficient_data"}), (2, {"late"}), (29, {"late"}), (31, set())])
def test_a_run_that_reached_the_history_late_is_named_for_thirty_days(
    history: History, days: int, outcomes: set[str]
) -> None:
    nights = FakeNights(history)
    for number in (40, 41):
        nights.add(number, {"ddp": STEP_S})
    judge_nights(history, "nightly")
    nights.add_run(41 - days, "ddp", nights.trials(STEP_S), run="late", started_ns=FIRST_NS + (41 - days) * DAY_NS + 1)
    found = judge_nights(history, "nightly")
    assert {each.outcome for each in found} == outcomes
    known = load_states(history, "nightly").values()
    assert {each.last_ns for each in known} == {FIRST_NS + 41 * DAY_NS + 1}
    newest = FIRST_NS // DAY_NS + 41
    assert {each.number for each in found} <= {newest if days > 1 else newest + 1}


def test_a_rerun_counts_only_if_it_ended_well_and_on_the_same_kind_of_machine(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 16)
    nights.add(16, {"ddp": 1.05 * STEP_S})
    again = nights.trials(1.05 * STEP_S)
    nights.add_run(16, "ddp", again, is_rerun=True, run="failed", outcome="failed")
    nights.add_run(16, "ddp", again, is_rerun=True, run="other", hardware="NVIDIA H100")
    nights.add_run(16, "fsdp", again, is_rerun=True, run="another")
    last = [each for each in _steps(judge_nights(history, "nightly")) if each.suite_run == "night0016"]
    assert [(each.outcome, each.reruns) for each in last] == [("suspicion", 0)]


def test_a_run_that_failed_is_not_judged(history: History) -> None:
    nights = FakeNights(history)
    nights.add_run(0, "ddp", nights.trials(STEP_S), outcome="failed")
    nights.add_record(0, done=0, outcome="failed", cases={"failed": 1})
    assert judge_nights(history, "nightly") == []


def test_a_night_is_told_with_its_value_its_trials_and_what_was_expected(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 20)
    trials = nights.trials(STEP_S)
    made = nights.add_run(20, "ddp", trials, commit="c" * 40)
    last = _steps(judge_nights(history, "nightly"))[-1]
    assert (last.run, last.suite_run, last.started_ns) == (made.run, "night0020", made.started_ns)
    assert last.value == pytest.approx(sorted(trials)[1])
    assert last.trial_values == pytest.approx(trials)
    assert (last.strategy, last.shape, last.ranks) == ("ddp", "2 x 16, sequence 8", 2)
    assert (last.hosts, last.commit) == (("node0",), "c" * 40)
    assert last.number == FIRST_NS // DAY_NS + 20
    assert last.expected is not None
    assert last.expected == pytest.approx(STEP_S, rel=0.01)
    assert last.change_ratio == pytest.approx(last.value / last.expected)
    assert last.visible_ratio is not None
    assert 0.005 < last.visible_ratio < 0.05
    assert last.p_value is not None
    assert 0.012 < last.p_value <= 1
    assert last.is_equivalent
    assert (last.since_ns, last.low, last.high, last.reruns, last.is_suspected) == (*[None] * 3, 0, False)


def test_two_runs_of_a_day_are_two_nights_and_sixty_nights_are_kept(history: History) -> None:
    nights = FakeNights(history)
    for half in range(62):
        started_ns = FIRST_NS + half * DAY_NS // 2
        nights.add_run(half, "ddp", nights.trials(STEP_S), started_ns=started_ns)
    numbers = [each.number for each in _steps(judge_nights(history, "nightly"))]
    first = FIRST_NS // DAY_NS
    assert numbers == list(range(first, first + 62))
    for known in load_states(history, "nightly").values():
        kept = known.state.nights
        assert (len(kept), kept[0]) == (60, (first + 2, FIRST_NS + DAY_NS))
        assert kept[-1] == (first + 61, FIRST_NS + 61 * DAY_NS // 2)
