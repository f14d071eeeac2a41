"""An open change: how large it is, with what interval, and what counts as its end, whichever direction is better."""

from __future__ import annotations

import math

import pytest

from bench.gate.detector.detector import JudgedNight, judge
from bench.gate.detector.night import Night
from bench.gate.detector.state import SeriesState
from bench.gate.gated import gated_values
from bench.gate.nightly import judge_nights
from bench.gate.verdicts import Verdict, load_states
from bench.store.history import History
from collectors.metrics.results import RUN_STEP_SECONDS
from tests.bench.made.fake_nights import DAY_NS, STEP_S, FakeNights


def _efficiencies(history: History, levels: list[float]) -> list[Verdict]:
    """The verdicts on nights whose step takes so many times as long, beside a baseline that stays."""
    nights = FakeNights(history)
    for number, level in enumerate(levels):
        nights.add_run(number, "ddp", nights.trials(STEP_S * level), baseline_rate=600.0)
        nights.add_record(number, done=1)
    return [verdict for verdict in judge_nights(history, "nightly") if verdict.is_efficiency]


def test_an_efficiency_that_is_half_back_is_still_worse(history: History) -> None:
    last = _efficiencies(history, [1.0] * 20 + [1.20] * 16 + [1.09] * 16)[-1]
    assert last.outcome == "confirmed"
    assert last.low is not None
    assert last.high is not None
    assert last.low < 1 / 1.09 < last.high < 1


def test_an_efficiency_that_is_better_than_before_it_fell_has_recovered(history: History) -> None:
    verdicts = _efficiencies(history, [1.0] * 20 + [1.12] * 16 + [0.94] * 16)
    outcomes = [verdict.outcome for verdict in verdicts]
    assert outcomes[35] == "confirmed"
    assert "recovered" in outcomes[36:]
    assert "confirmed" not in outcomes[-8:]


def test_a_change_is_shown_with_the_interval_by_which_it_was_confirmed(history: History) -> None:
    nights, state = FakeNights(history), SeriesState()
    pages: dict[str, JudgedNight] = {}
    for number in range(40):
        summary = nights.add_run(number, "ddp", nights.trials(STEP_S * (1.08 if number >= 30 else 1.0)))
        nights.add_record(number, done=1)
        step = next(value for value in gated_values(summary) if value.metric is RUN_STEP_SECONDS)
        judged = judge(state, Night(number=summary.started_ns // DAY_NS, trials=step.trials))
        state = judged.state
        if judged.verdict == "page":
            pages[summary.run] = judged
    (run, judged), *_ = pages.items()
    (verdict,) = (
        verdict
        for verdict in judge_nights(history, "nightly")
        if (verdict.run, verdict.key.metric) == (run, RUN_STEP_SECONDS.name)
    )
    alert = judged.alert
    assert alert is not None
    assert (verdict.outcome, verdict.is_new) == ("confirmed", True)
    assert verdict.change_ratio == pytest.approx(math.exp(alert.log_change))
    assert (verdict.low, verdict.high) == pytest.approx(
        (math.exp(alert.log_change_low), math.exp(alert.log_change_high))
    )


def test_a_change_that_the_nights_together_show_is_open_with_its_own_interval(history: History) -> None:
    nights = FakeNights(history, sd_ratio=0.01, seed=2)
    for number in range(65):
        nights.add(number, {"ddp": STEP_S * (1.3 if number >= 40 and number % 2 else 1.0)})
        verdicts = [each for each in judge_nights(history, "nightly") if each.key.metric == RUN_STEP_SECONDS.name]
        if verdicts[0].outcome == "mixture":
            break
    (verdict,) = verdicts
    opened = load_states(history, "nightly")[verdict.key].state.open
    assert opened is not None
    assert verdict.low is not None
    assert verdict.high is not None
    assert opened.half_width == pytest.approx(math.log(verdict.high / verdict.low) / 2)
    assert math.exp(opened.log_level) == pytest.approx(STEP_S, rel=0.01)
