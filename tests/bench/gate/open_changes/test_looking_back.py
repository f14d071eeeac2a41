"""What single nights let pass and many nights together show: standing levels, more bad nights, creep, ramps, noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bench.gate.accept import accept
from bench.gate.missing import day_of
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import BAD, Verdict, load_states, save_accepted
from bench.results.estimate import estimate
from bench.store.history import History
from collectors.metrics.results import RUN_PEAK_MEMORY_BYTES, RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights

LevelOf = Callable[[int, random.Random], float]


def _judged(history: History, count: int, level_of: LevelOf, *, sd_ratio: float = 0.01, seed: int = 1) -> list[Verdict]:
    """The verdicts on the step of so many nights, each judged when it ends. level_of: of a night, as a ratio."""
    generator = random.Random(seed)
    nights = FakeNights(history, sd_ratio=sd_ratio, seed=seed)
    verdicts = []
    for number in range(count):
        nights.add(number, {"ddp": STEP_S * level_of(number, generator)})
        verdicts += judge_nights(history, "nightly")
    return [each for each in verdicts if each.key.metric == RUN_STEP_SECONDS.name]


def test_slow_nights_that_become_more_frequent_are_a_verdict_that_stays(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return 1.3 if generator.random() < (0.1 if number < 50 else 0.9) else 1.0

    verdicts = _judged(history, 80, level)
    assert verdicts[-1].outcome in BAD
    first = next(place for place, each in enumerate(verdicts) if each.outcome in BAD and place >= 50)
    assert first < 75
    assert {each.outcome for each in verdicts[first:]} <= BAD


def test_every_second_night_that_is_slower_is_told_as_more_bad_nights(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return 1.3 if number >= 40 and number % 2 else 1.0

    verdicts = _judged(history, 65, level, seed=2)
    last = verdicts[-1]
    assert last.outcome == "mixture"
    assert "every second night is" in last.reason
    first, *later = (each for each in verdicts if each.outcome == "mixture")
    assert (first.is_new, {each.is_new for each in later}) == (True, {False})
    _assert_dated(first, range(38, 44))
    assert {each.since_ns for each in later} == {first.since_ns}


def _assert_dated(verdict: Verdict, numbers: range) -> None:
    """The change began on one of these nights, which its reason names, and its interval has it and its size."""
    since_ns, low_ns, high_ns = verdict.since_ns, verdict.since_low_ns, verdict.since_high_ns
    assert since_ns is not None
    assert low_ns is not None
    assert high_ns is not None
    assert since_ns in {FIRST_NS + number * DAY_NS + 1 for number in numbers}
    assert low_ns <= since_ns <= high_ns
    assert low_ns < high_ns
    assert day_of(since_ns) in verdict.reason
    assert verdict.change_ratio is not None
    assert verdict.low is not None
    assert verdict.high is not None
    assert verdict.low < verdict.change_ratio < verdict.high


def test_slow_nights_that_are_gone_are_an_improvement_that_is_told_once(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return 1.3 if number < 40 and number % 2 else 1.0

    verdicts = _judged(history, 65, level, seed=2)
    better = [each for each in verdicts if each.number > verdicts[40].number and each.outcome == "improvement"]
    assert [each.is_new for each in better] == [True]
    _assert_dated(better[0], range(38, 44))
    assert better[0].high is not None
    assert better[0].high < 1
    assert verdicts[-1].outcome == "same"
    assert not [each for each in verdicts if each.outcome in BAD]


def test_twice_as_slow_in_much_noise_is_worse(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return (2.0 if number >= 40 else 1.0) * generator.lognormvariate(0, 0.3)

    verdicts = _judged(history, 70, level)
    assert verdicts[-1].outcome in BAD
    assert verdicts[-1].low is not None
    assert verdicts[-1].low > 1.2


def test_memory_that_grows_a_little_each_night_has_crept_and_can_be_accepted(history: History) -> None:
    nights = FakeNights(history)
    generator = random.Random(5)
    verdicts = []
    for number in range(46):
        grown = 1.003 ** max(0, number - 25)
        memory = [2**30 * grown * generator.lognormvariate(0, 0.002) for _ in range(3)]
        nights.add_run(
            number, "ddp", nights.trials(STEP_S), parts=(estimate(RUN_PEAK_MEMORY_BYTES, memory, account="allocated"),)
        )
        nights.add_record(number, done=1)
        judged = judge_nights(history, "nightly")
        verdicts += [each for each in judged if each.key.metric == RUN_PEAK_MEMORY_BYTES.name]
    assert next(place for place, each in enumerate(verdicts) if each.outcome in BAD) < 40
    last = verdicts[-1]
    assert last.outcome in BAD
    assert last.change_ratio == pytest.approx(1.003**20, abs=0.025)
    known = load_states(history, "nightly")
    levels, after = accept(known.values(), case="ddp", metric=None, who="ada", because="agreed", now_ns=1)
    save_accepted(history, levels, known, after)
    assert not any(series.is_worse for series in load_states(history, "nightly").values())


def test_a_ramp_over_ten_nights_is_one_change_whose_size_is_updated(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return 1.0 + 0.02 * min(max(number - 29, 0), 10)

    verdicts = _judged(history, 60, level, sd_ratio=0.004)
    worse = [each for each in verdicts if each.outcome in BAD]
    assert [each.is_new for each in worse].count(True) == 1
    assert len({each.since_ns for each in worse[3:]}) == 1
    last = worse[-1]
    assert last.change_ratio == pytest.approx(1.2, abs=0.02)
    assert last.low is not None
    assert last.high is not None
    assert last.low < 1.2 < last.high


def test_noise_that_has_increased_is_said_once(history: History) -> None:
    def level(number: int, generator: random.Random) -> float:
        return generator.lognormvariate(0, 0.03 if number >= 60 else 0.004)

    verdicts = _judged(history, 110, level, sd_ratio=0.002)
    noisy = [each for each in verdicts if each.noise is not None]
    assert len(noisy) == 1
    assert noisy[0].noise is not None
    assert noisy[0].noise.startswith("noise has increased since 2024-")
    assert noisy[0].number >= 60


def test_a_level_that_comes_back_is_said_to_be_one_of_the_series(history: History) -> None:
    def level(number: int, _: random.Random) -> float:
        return 1.08 if 20 <= number < 36 or number >= 52 else 1.0

    new = [each for each in _judged(history, 60, level) if each.is_new]
    first, last = (next(each for each in new if number <= each.number - new[0].number) for number in (0, 30))
    assert "the series has been on this level before" not in first.reason
    assert "the series has been on this level before, on 16 of 5" in last.reason
    assert "last on 2026-" in last.reason or "last on 20" in last.reason
