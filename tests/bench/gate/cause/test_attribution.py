"""Whether a change is of the code or of the environment: what pairs of trees say, and what the gate makes of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from bench.gate.cause.attribution import (
    FEWEST_PAIRS,
    SETTINGS,
    Attribution,
    AttributionOutcome,
    MeasuredChange,
    attribute,
    attribution_words,
    change_of_pairs,
)
from bench.gate.cause.questions import TreeQuestion, keep_attributions, tree_questions
from bench.gate.nightly import judge_nights
from bench.gate.report import cause_words
from bench.gate.verdicts import Verdict, load_states
from bench.machine.machine import Machine
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.examples import make_machine
from tests.bench.made.fake_nights import DAY_NS, FIRST_NS, STEP_S, FakeNights, fill

GOOD, NEW = "a" * 40, "b" * 40
NOISE = (-0.003, 0.002, 0.001, -0.001, 0.004, -0.002, 0.0, -0.001)
"""Of eight trials."""
NIGHTS = (0.0, 0.004, -0.003, 0.002, -0.005, 0.001, 0.003, -0.002)
"""Levels of the good tree's nights."""


def _pairs(code: float, environment: float, *, noise: Sequence[float] = NOISE) -> tuple[list[float], list[float]]:
    """Trials of the good tree and of the present one; one of them was disturbed alike on both sides."""
    good = [environment + each for each in noise]
    good[3] += 1.0
    present = [each + code + 0.5 * other for each, other in zip(good, reversed(noise), strict=True)]
    return good, present


@pytest.mark.parametrize(
    ("code", "environment", "outcome"),
    [
        (0.10, 0.0, "code"),
        (0.0, 0.10, "environment"),
        (0.05, 0.05, "both"),
        (0.01, 0.0, "environment"),
    ],
)
def test_pairs_tell_the_code_from_the_environment(code: float, environment: float, outcome: str) -> None:
    good, present = _pairs(code, environment)
    good[3] -= 1.0
    present[3] -= 1.0
    found, of_code, of_environment = attribute(good, present, NIGHTS, 0.09)
    assert found == outcome
    assert of_code is not None
    assert of_environment is not None
    assert of_code.low < math.exp(code) < of_code.high
    assert of_environment.low < math.exp(environment) < of_environment.high


def test_a_fall_is_told_as_a_rise_is() -> None:
    good, present = _pairs(-0.10, 0.0)
    assert attribute(good, present, (), -0.10)[0] == "code"
    assert attribute(good, present, (), +0.10)[0] == "unsure"


def test_what_disturbs_both_sides_of_a_pair_costs_nothing() -> None:
    good, present = _pairs(0.02, 0.0)
    assert attribute(good, present, NIGHTS, 0.02)[0] == "code"


def test_a_single_disturbed_trial_does_not_hide_a_change() -> None:
    good, present = _pairs(0.10, 0.0)
    present[5] += 3.0
    assert attribute(good, present, NIGHTS, 0.10)[0] == "code"


def test_equal_means_within_half_of_the_suspected_change() -> None:
    good, present = _pairs(0.0, 0.0, noise=[10 * each for each in NOISE])
    assert attribute(good, present, NIGHTS, 0.10)[0] == "environment"
    assert attribute(good, present, NIGHTS, 0.02)[0] == "unsure"


def test_too_few_pairs_say_nothing() -> None:
    assert change_of_pairs([0.0] * (FEWEST_PAIRS - 1), [1.0] * (FEWEST_PAIRS - 1)) is None
    assert attribute([0.0] * 5, [1.0] * 5, NIGHTS, 1.0)[0] == "unsure"


def test_the_interval_of_eight_pairs_is_that_of_the_signed_rank_table() -> None:
    """Wilcoxon's table has 3 for 8 pairs at the two-sided 5 %: three of 36 means lie outside on each side."""
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
    means = sorted((a + b) / 2 for place, a in enumerate(values) for b in values[place:])
    found = change_of_pairs([0.0] * 8, values)
    assert found is not None
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((means[3], means[-4]))


def test_the_interval_covers_the_truth_under_noise_with_bursts() -> None:
    chance = random.Random(3)

    def trial() -> float:
        return chance.gauss(0.0, 0.05) + (chance.random() < 0.2) * chance.expovariate(1.0)

    covered = 0
    for _ in range(300):
        found = change_of_pairs([trial() for _ in range(8)], [0.1 + trial() for _ in range(8)])
        assert found is not None
        covered += found.low <= math.exp(0.1) <= found.high
    assert covered >= 276  # 95 % of 300 less three standard deviations.


# What the gate makes of it.


def _machine(commit: str | None, *, is_dirty: bool | None = False) -> Machine:
    return replace(make_machine(), commit=commit, is_dirty=is_dirty)


def _history_with_a_change(history: History, *, ratio: float = 1.05, is_rerun: bool = True) -> FakeNights:
    """Thirty nights of a commit, and one of another that is slower."""
    nights = FakeNights(history)
    fill_with(nights, 30, GOOD)
    judge_nights(history, "nightly")
    nights.add(30, {"ddp": ratio * STEP_S}, machine=_machine(NEW, is_dirty=False))
    if is_rerun:
        nights.add_run(
            30,
            "ddp",
            nights.trials(ratio * STEP_S),
            is_rerun=True,
            machine=_machine(NEW, is_dirty=False),
        )
    return nights


def fill_with(nights: FakeNights, count: int, commit: str) -> None:
    """Add so many nights of a commit."""
    for number in range(count):
        nights.add(number, {"ddp": STEP_S}, machine=_machine(commit, is_dirty=False))


def _ask(history: History) -> TreeQuestion:
    (question,) = tree_questions(history, "nightly", "night0030")
    return question


def _answer(history: History, outcome: AttributionOutcome, **changes: object) -> None:
    question = _ask(history)
    change = MeasuredChange(ratio=1.05, low=1.04, high=1.06)
    none = MeasuredChange(ratio=1.0, low=0.99, high=1.01)
    attribution = Attribution(
        outcome=outcome,
        suite_run=question.suite_run,
        night_ns=question.night_ns,
        good_commit=question.good_commit,
        commit=question.commit,
        pairs=8,
        code=change if outcome in ("code", "both") else none,
        environment=none if outcome == "code" else change,
    )
    attribution = msgspec.structs.replace(attribution, **changes)
    keep_attributions(history, "nightly", {figure.key: attribution for figure in question.figures})


def _step(verdicts: Sequence[Verdict]) -> Verdict:
    return next(verdict for verdict in verdicts if verdict.key.metric == RUN_STEP_SECONDS.name)


def test_a_likely_change_is_a_question_between_two_commits(history: History) -> None:
    _history_with_a_change(history)
    question = _ask(history)
    assert (question.case, question.good_commit, question.commit) == ("ddp", GOOD, NEW)
    assert question.refusal is None
    assert question.probability >= SETTINGS.probability
    assert {figure.key.metric for figure in question.figures} >= {RUN_STEP_SECONDS.name}
    assert question.figures[0].suspected == pytest.approx(math.log(1.05), abs=0.01)
    assert len(question.figures[0].before) >= 25


def test_an_improbable_change_is_no_question(history: History) -> None:
    nights = FakeNights(history)
    fill(nights, 31)
    assert tree_questions(history, "nightly", "night0030") == []


def test_a_change_of_the_code_is_confirmed_on_its_first_night(history: History) -> None:
    _history_with_a_change(history)
    _answer(history, "code")
    first = _step(judge_nights(history, "nightly"))
    assert (first.outcome, first.is_new) == ("confirmed", True)
    assert first.since_ns is not None
    assert abs(first.since_ns - (FIRST_NS + 30 * DAY_NS)) <= DAY_NS
    assert first.attribution is not None
    assert first.attribution.outcome == "code"
    words = cause_words(first)
    assert words is not None
    assert words.startswith("code +5.0 % [+4.0, +6.0] in 8 pairs of aaaaaaa and bbbbbbb; ")


def test_a_change_of_the_environment_stays_what_it_is_and_says_so(history: History) -> None:
    nights = _history_with_a_change(history)
    _answer(history, "environment")
    first = _step(judge_nights(history, "nightly"))
    assert first.outcome == "regression"
    assert first.cause is not None
    assert first.cause.startswith("environment +5.0 % [+4.0, +6.0], code +0.0 % [-1.0, +1.0] in 8 pairs of")
    for number in range(31, 36):
        nights.add(number, {"ddp": 1.05 * STEP_S}, machine=_machine(NEW, is_dirty=False))
    later = judge_nights(history, "nightly")
    last = [verdict for verdict in later if verdict.key.metric == RUN_STEP_SECONDS.name][-1]
    assert last.outcome == "confirmed"
    assert last.cause is not None
    assert last.cause.startswith("environment +5.0 %")


def test_one_change_is_asked_about_once(history: History) -> None:
    nights = _history_with_a_change(history)
    _answer(history, "environment")
    judge_nights(history, "nightly")
    nights.add(31, {"ddp": 1.05 * STEP_S}, machine=_machine(NEW, is_dirty=False))
    assert tree_questions(history, "nightly", "night0031") == []


def test_a_question_that_no_pair_could_answer_is_asked_again(history: History) -> None:
    nights = _history_with_a_change(history)
    _answer(history, "unsure", pairs=0, code=None, environment=None, reason="commit aaaaaaaaaaaa is gone")
    first = _step(judge_nights(history, "nightly"))
    assert first.outcome == "regression"
    assert first.cause is not None
    assert first.cause.startswith("code or environment: unknown, commit aaaaaaaaaaaa is gone; ")
    nights.add(31, {"ddp": 1.05 * STEP_S}, machine=_machine(NEW, is_dirty=False))
    (again,) = tree_questions(history, "nightly", "night0031")
    assert (again.case, again.probability) == ("ddp", 1.0)  # People were alerted to it.


@pytest.mark.parametrize(
    ("commit", "is_dirty", "refusal"),
    [
        (None, None, "tonight's run, run0030-ddp, has no commit"),
        (NEW, True, "tonight's run, run0030-ddp, ran from a tree with uncommitted changes"),
    ],
)
def test_a_tree_that_is_in_no_commit_is_refused(
    history: History, commit: str | None, is_dirty: bool | None, refusal: str
) -> None:
    nights = FakeNights(history)
    fill_with(nights, 30, GOOD)
    nights.add(30, {"ddp": 1.05 * STEP_S}, machine=_machine(commit, is_dirty=is_dirty))
    assert _ask(history).refusal == refusal


def test_two_nights_of_one_commit_need_no_pairs(history: History) -> None:
    nights = FakeNights(history)
    fill_with(nights, 30, GOOD)
    nights.add(30, {"ddp": 1.05 * STEP_S}, machine=_machine(GOOD, is_dirty=False))
    assert _ask(history).is_same_tree


def test_states_from_before_pairs_are_read(history: History) -> None:
    _history_with_a_change(history)
    judge_nights(history, "nightly")
    state = next(iter(load_states(history, "nightly").values())).state
    assert state.attribution is None
    document = msgspec.json.decode(msgspec.json.encode(state))
    del document["attribution"]
    assert msgspec.convert(document, type(state)) == state


def test_words_say_what_is_not_known() -> None:
    unsure = Attribution(
        outcome="unsure",
        suite_run="night",
        night_ns=1,
        good_commit=GOOD,
        commit=NEW,
        pairs=8,
        code=MeasuredChange(ratio=1.01, low=0.9, high=1.1),
    )
    assert attribution_words(unsure) == (
        "code or environment: unsure, code +1.0 % [-10.0, +10.0] in 8 pairs of aaaaaaa and bbbbbbb"
    )
