"""What the gate reports about a suite: which night counts, and the words that choose a night or a suite."""

from __future__ import annotations

import pytest

from bench.errors import Misuse
from bench.gate.check import (
    CLOCK_NS,
    MOST_RUNS,
    SuiteCheck,
    check_suite,
    night_ns,
    require_suite,
    standing_of,
    suites_in,
    with_visible,
)
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import load_states, load_verdicts
from bench.store.history import History
from bench.store.suite_record import SuiteRecord
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill

NOON_NS = DAY_NS // 2


def _check(
    history: History, now_ns: int, *, since_ns: int | None = None, is_judging: bool = True, suite: str = "nightly"
) -> SuiteCheck:
    records = [record for record in history.suite_runs(MOST_RUNS) if record.suite == suite]
    return check_suite(history, suite, records, since_ns=since_ns, now_ns=now_ns, is_judging=is_judging)


def _night_of(check: SuiteCheck) -> str | None:
    return None if check.night is None else check.night.id


def _with_a_night_ahead(history: History, ahead_ns: int) -> SuiteCheck:
    """A night whose runner's clock is ahead of ours."""
    nights = FakeNights(history)
    fill(nights, 3)
    now_ns = FIRST_NS + 3 * DAY_NS
    started_ns = now_ns + ahead_ns
    nights.add_run(3, "ddp", nights.trials(STEP_S), started_ns=started_ns)
    nights.add_record(3, done=1, started_ns=started_ns, progress_ns=started_ns, ended_ns=started_ns)
    return _check(history, now_ns)


def test_a_clock_that_is_an_hour_ahead_is_no_reason_to_wait(history: History) -> None:
    check = _with_a_night_ahead(history, CLOCK_NS)
    assert (_night_of(check), len(check.verdicts), check.missing) == ("night0003", 2, ())


def test_a_clock_that_is_further_ahead_is_named_and_its_night_is_not_judged(history: History) -> None:
    check = _with_a_night_ahead(history, CLOCK_NS + 1)
    assert _night_of(check) == "night0002"
    (missing,) = check.missing
    assert (missing.kind, missing.suite, missing.what, missing.is_alert) == ("clock", "nightly", "nightly", True)
    assert missing.reason == (
        "night0003 began in the future, on 2024-10-07, by the clock of its runner; it is not judged"
    )


def test_earlier_nights_begin_with_the_one_that_was_asked_for_and_end_before_the_newest(history: History) -> None:
    fill(FakeNights(history), 6)
    check = _check(history, FIRST_NS + 5 * DAY_NS + NOON_NS, since_ns=FIRST_NS + 3 * DAY_NS)
    assert [each.suite_run for each in check.earlier] == ["night0003"] * 2 + ["night0004"] * 2
    assert {each.suite_run for each in check.verdicts} == {"night0005"}
    assert _check(history, FIRST_NS + 5 * DAY_NS + NOON_NS).earlier == ()


def test_who_may_not_judge_sees_the_newest_night_that_was_judged(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 4)
    now_ns = FIRST_NS + 4 * DAY_NS + NOON_NS
    assert _night_of(_check(history, now_ns, is_judging=False)) is None
    judge_nights(history, "nightly")
    nights.add(4, {"ddp": STEP_S})
    before = load_states(history, "nightly")
    check = _check(history, now_ns, is_judging=False)
    assert _night_of(check) == "night0003"
    assert {each.suite_run for each in check.verdicts} == {"night0003"}
    assert load_states(history, "nightly") == before
    assert _night_of(_check(history, now_ns)) == "night0004"


def test_a_suite_without_any_run_has_nothing_to_miss(history: History) -> None:
    check = _check(history, FIRST_NS)
    assert (check.night, check.verdicts, check.missing, check.is_missing, check.is_regression) == (
        *(None, (), ()),
        *(False, False),
    )


def test_only_figures_with_a_level_say_what_they_can_show(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 20)
    nights.add_run(19, "fsdp", nights.trials(STEP_S))
    check = with_visible(history, _check(history, FIRST_NS + 19 * DAY_NS + NOON_NS))
    assert {each.key.case for each in check.verdicts} == {"ddp", "fsdp"}
    assert {key.case for key in check.visible} == {"ddp"}
    assert len(check.visible) == 2


# The newest verdict on each figure, of one suite or of all


def test_the_verdicts_that_stand_are_those_of_all_suites_or_of_one(history: History) -> None:
    for suite, case in (("nightly", "ddp"), ("weekly", "fsdp")):
        nights = FakeNights(history, suite=suite)
        for number in range(3):
            nights.add_run(number, case, nights.trials(STEP_S))
            nights.add_record(number, done=1, id=f"{suite}{number}")
        judge_nights(history, suite)
    now_ns = FIRST_NS + 3 * DAY_NS
    assert suites_in(history) == ("nightly", "weekly")
    for suite in ("nightly", "weekly"):
        standing = standing_of(history, suite, now_ns)
        assert {(each.key.suite, each.suite_run) for each in standing} == {(suite, "night0002")}
    assert {each.key.suite for each in standing_of(history, None, now_ns)} == {"nightly", "weekly"}


def test_a_suite_that_was_never_judged_has_no_verdict_that_stands(history: History) -> None:
    fill(FakeNights(history), 3)
    assert standing_of(history, None, FIRST_NS + 3 * DAY_NS) == []
    assert load_verdicts(history, "nightly") == []  # Asking judges nothing.


def test_a_night_of_the_future_is_not_the_one_that_stands(history: History) -> None:
    fill(FakeNights(history), 3)
    judge_nights(history, "nightly")
    standing = standing_of(history, "nightly", FIRST_NS + 2 * DAY_NS - 2 * CLOCK_NS)
    assert {each.suite_run for each in standing} == {"night0001"}
    standing = standing_of(history, "nightly", FIRST_NS + 2 * DAY_NS - CLOCK_NS + 1)
    assert {each.suite_run for each in standing} == {"night0002"}


# Words


def _record(name: str, started_ns: int) -> SuiteRecord:
    return SuiteRecord(
        id=name, suite="nightly", started_ns=started_ns, progress_ns=started_ns, total=0, folder=f"/runs/{name}"
    )


RECORDS = [_record(name, number) for number, name in enumerate(("ab12", "ab1", "abc", "b", "c"), 1)]


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("ab1", 2),  # Its own id, although another begins with it.
        ("ab12", 1),
        ("abc", 3),
        ("b", 4),
        ("1970-01-01", 0),
        ("2026-11-23", 1_795_392_000 * 10**9),
        ("2261-12-31", 9_214_560_000 * 10**9),
    ],
)
def test_a_night_is_named_by_its_id_the_beginning_of_one_or_a_day(text: str, expected_ns: int) -> None:
    assert night_ns(text, RECORDS) == expected_ns


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ab", 'night "ab" may be any of: ab12, ab1, abc'),
        ("", 'night "" may be any of: ab12, ab1, abc, b'),
        ("1969-12-31", "is neither a day, for example 2026-11-23, nor a suite run; the newest are: ab12, ab1, abc, b"),
        ("2262-01-01", "is neither a day, for example 2026-11-23, nor a suite run; the newest are: ab12, ab1, abc, b"),
        ("2026-11-31", "is neither a day, for example 2026-11-23, nor a suite run; the newest are: ab12, ab1, abc, b"),
    ],
)
def test_a_word_that_names_no_night_or_several_is_refused_with_at_most_four(text: str, says: str) -> None:
    with pytest.raises(Misuse) as refused:
        night_ns(text, RECORDS)
    assert str(refused.value).endswith(says)


def test_without_any_night_none_is_offered() -> None:
    with pytest.raises(Misuse, match=r"the newest are: none$"):
        night_ns("yesterday", [])


@pytest.mark.parametrize(
    ("name", "suites", "says"),
    [
        ("nighty", ("nightly", "weekly"), 'suite "nighty" has no run in this history; did you mean "nightly"?'),
        ("xyz", ("nightly", "weekly"), 'suite "xyz" has no run in this history; it has nightly, weekly'),
        ("xyz", (), 'suite "xyz" has no run in this history; it has none'),
        (
            "smoke",
            ("nightly",),
            'suite "smoke" has no run in this history; it has nightly (`observatory suite run smoke` makes one)',
        ),
    ],
)
def test_a_suite_without_a_run_is_refused_with_what_there_is(name: str, suites: tuple[str, ...], says: str) -> None:
    with pytest.raises(Misuse) as refused:
        require_suite(name, suites)
    assert str(refused.value) == says


def test_a_suite_with_a_run_is_taken() -> None:
    assert require_suite("nightly", ("nightly", "weekly")) == "nightly"
