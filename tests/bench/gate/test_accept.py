"""An accepted level closes what is open, is kept with who, when and why, and is held against slow creep."""

from __future__ import annotations

import msgspec
import pytest

from bench.errors import Misuse
from bench.gate.accept import accept
from bench.gate.missing import day_of
from bench.gate.nightly import judge_nights
from bench.gate.standing import standing_verdicts
from bench.gate.verdicts import (
    AcceptedLevel,
    GateState,
    Verdict,
    load_accepted,
    load_states,
    save_accepted,
    save_night,
)
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill

ACCEPTED_NS = 1_700_000_000_000_000_000


def _accept(
    history: History, case: str = "ddp", metric: str | None = None, now_ns: int = ACCEPTED_NS
) -> list[AcceptedLevel]:
    known = load_states(history, "nightly")
    levels, after = accept(
        known.values(), case=case, metric=metric, who="ada", because="the new kernel is exact", now_ns=now_ns
    )
    save_accepted(history, levels, known, after)
    return levels


def _steps(history: History) -> list[Verdict]:
    return [one for one in judge_nights(history, "nightly") if one.key.metric == RUN_STEP_SECONDS.name]


def test_accepting_closes_a_confirmed_change(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 40, lambda number: {"ddp": STEP_S * (1.08 if number >= 30 else 1.0)})
    assert _steps(history)[-1].outcome == "confirmed"
    (level,) = [one for one in _accept(history) if one.key.metric == RUN_STEP_SECONDS.name]
    assert level.level == pytest.approx(1.08 * STEP_S, rel=0.01)
    assert (level.who, level.because, level.accepted_ns) == ("ada", "the new kernel is exact", ACCEPTED_NS)
    assert load_accepted(history, "nightly")[level.key] == level
    nights.add(40, {"ddp": 1.08 * STEP_S})
    assert [one.outcome for one in _steps(history)] == ["same"]


@pytest.mark.parametrize("times_ns", [(ACCEPTED_NS, ACCEPTED_NS + DAY_NS), (ACCEPTED_NS + DAY_NS, ACCEPTED_NS)])
def test_of_several_accepted_levels_the_newest_counts(history: History, times_ns: tuple[int, int]) -> None:
    nights = FakeNights(history)
    fill(nights, 30)
    _steps(history)
    levels = {now_ns: _accept(history, metric=RUN_STEP_SECONDS.name, now_ns=now_ns) for now_ns in times_ns}
    (newest,) = levels[max(times_ns)]
    assert load_accepted(history, "nightly") == {newest.key: newest}


def test_slow_creep_is_found_against_the_accepted_level_though_each_night_passes(history: History) -> None:
    nights = FakeNights(history, sd_ratio=0.006)
    fill(nights, 30)
    judge_nights(history, "nightly")
    _accept(history)
    outcomes = []
    for number in range(30, 130):  # 0.05 % a night.
        nights.add(number, {"ddp": STEP_S * 1.0005 ** (number - 30)})
    found = _steps(history)
    outcomes = [one.outcome for one in found]
    first = next(place for place, outcome in enumerate(outcomes) if outcome == "creep")
    assert set(outcomes[:first]) <= {"same", "suspicion"}
    crept = found[first]
    assert crept.reason == "against the level that ada accepted: the new kernel is exact"
    assert crept.low is not None
    assert crept.low > 1
    assert crept.since_ns == ACCEPTED_NS


def test_a_crept_figure_stays_on_nights_that_do_not_measure_it_until_it_is_accepted(history: History) -> None:
    nights = FakeNights(history, sd_ratio=0.006)
    fill(nights, 30)
    judge_nights(history, "nightly")
    _accept(history)
    for number in range(30, 130):
        nights.add(number, {"ddp": STEP_S * 1.0005 ** (number - 30)})
        if _steps(history)[-1].outcome == "creep":
            break
    nights.add(number + 1, {"fsdp": STEP_S})
    judge_nights(history, "nightly")

    def standing() -> list[tuple[str, str]]:
        found = standing_verdicts(history, "nightly", f"night{number + 1:04}", load_states(history, "nightly"))
        of_step = [one for one in found if (one.key.case, one.key.metric) == ("ddp", RUN_STEP_SECONDS.name)]
        return [(one.outcome, one.reason) for one in of_step]

    assert standing() == [("creep", f"not measured since {day_of(FIRST_NS + number * DAY_NS)}")]
    _accept(history, now_ns=ACCEPTED_NS + 1)
    assert standing() == []


def _judged_efficiencies(history: History, numbers: range, *, is_kept: bool = True) -> list[Verdict]:
    """An efficiency that is accepted at night 20, and whose baseline is 8 % faster from night 25 on."""
    nights = FakeNights(history)
    found = []
    for number in numbers:
        rate = 600.0 * (1.08 if number >= 25 else 1.0)
        nights.add_run(number, "ddp", nights.trials(STEP_S), baseline_rate=rate)
        nights.add_record(number, done=1)
        found += [one for one in judge_nights(history, "nightly") if one.is_efficiency]
        if number == 20:
            _accept(history, now_ns=FIRST_NS + 20 * DAY_NS + DAY_NS // 4)
            if not is_kept:
                before = load_states(history, "nightly")
                states = [one.with_state(_as_before(one.state)) for one in before.values()]
                save_night(history, before, states, [])
    return found


def _as_before(state: GateState) -> GateState:
    return msgspec.structs.replace(state, accepted_legs=None)


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "older version"])
def test_an_accepted_efficiency_whose_baseline_got_faster_has_not_crept(history: History, is_kept: bool) -> None:
    found = _judged_efficiencies(history, range(45), is_kept=is_kept)
    later = found[30:]
    assert {one.outcome for one in later} == {"faster_baseline"}
    assert later[-1].reason == (
        "against the level that ada accepted: the new kernel is exact: the baseline got faster, and the run did not get"
        " slower by as much"
    )
    assert later[-1].own_ratio == pytest.approx(1.0, abs=0.02)
    assert later[-1].baseline_ratio == pytest.approx(1.08, abs=0.02)


def test_an_accepted_efficiency_whose_own_rate_falls_slowly_has_crept(history: History) -> None:
    nights = FakeNights(history, sd_ratio=0.006)
    for number in range(130):
        step_s = STEP_S * 1.0005 ** max(0, number - 30)
        nights.add_run(number, "ddp", nights.trials(step_s), baseline_rate=600.0)
        found = [one for one in judge_nights(history, "nightly") if one.is_efficiency]
        if number == 30:
            _accept(history)
        if found[-1].outcome == "creep":
            break
    assert found[-1].outcome == "creep"
    assert found[-1].own_ratio == pytest.approx(0.98, abs=0.02)
    assert found[-1].baseline_ratio == pytest.approx(1.0)


def test_only_the_named_metric_is_accepted(history: History) -> None:
    fill(FakeNights(history), 30)
    judge_nights(history, "nightly")
    assert [one.key.metric for one in _accept(history, metric=RUN_STEP_SECONDS.name)] == [RUN_STEP_SECONDS.name]


@pytest.mark.parametrize(
    ("case", "metric", "message"),
    [
        ("fsdp", None, r'case "fsdp" has never been judged, .*; judged cases: ddp'),
        ("ddp", "loss", r'case "ddp" has no figure "loss"; it has: observatory_run_mean_step_seconds, '),
    ],
)
def test_what_was_never_judged_cannot_be_accepted(
    history: History, case: str, metric: str | None, message: str
) -> None:
    fill(FakeNights(history), 30)
    judge_nights(history, "nightly")
    with pytest.raises(Misuse, match=message):
        _accept(history, case, metric)


def test_too_few_nights_have_no_level(history: History) -> None:
    fill(FakeNights(history), 1)
    judge_nights(history, "nightly")
    with pytest.raises(Misuse, match=r"has too few nights for a level; accept it when"):
        _accept(history)
