"""Alerts on nights whose noise is not normal: how far earlier nights lay, and by which shape."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

from bench.gate.detector.noise_change import Growth
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.tails import is_far, one_sided, tail_p
from tests.benchmarks.gate.kinds import KINDS
from tests.benchmarks.gate.made_series import exponential, log_normal, made, normal, student_3
from tests.benchmarks.gate.scored_series import Tally, tally_of

NONE = Growth(nights=1.0, trials=1.0, factors=np.array([1.0, 4.0]), shares=np.array([1.0, 0.0]))
Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[np.float64]]


def scores_of(draw: Draw, nights: int, seed: int = 0) -> NDArray[np.float64]:
    scores = draw(np.random.default_rng(seed), (nights,))
    return scores - np.median(scores)


def of(score: float, scores: NDArray[np.float64], increase: Growth = NONE) -> float:
    past = one_sided(math.copysign(0.01, score) * scores, np.full(len(scores), 0.01))
    return tail_p(2 * float(ndtr(-abs(score))), past, increase, SETTINGS)


def share_unlikely(draw: Draw, score: float, nights: int = 90) -> float:
    """Return of how many series a night so far off is unlikely enough for an alert."""
    return float(np.mean([of(score, scores_of(draw, nights, seed)) <= SETTINGS.alert_p for seed in range(40)]))


def test_many_normal_nights_leave_the_model_its_word() -> None:
    assert share_unlikely(normal, 4.0) > 0.9


def test_four_deviations_are_no_news_where_nights_have_a_long_tail() -> None:
    for draw in (student_3, exponential, log_normal):
        assert share_unlikely(draw, 4.0) < 0.5


def test_nights_that_are_only_ever_slower_make_a_faster_one_news() -> None:
    assert share_unlikely(exponential, -5.0) > 0.9


def test_few_nights_leave_long_tails_possible() -> None:
    assert of(5.0, scores_of(normal, 10)) > of(5.0, scores_of(normal, 90))


def test_noise_that_may_have_grown_makes_a_far_night_likelier() -> None:
    maybe = Growth(nights=1.0, trials=1.0, factors=np.array([1.0, 4.0]), shares=np.array([0.9, 0.1]))
    nights = scores_of(normal, 90)
    assert of(5.0, nights, maybe) > SETTINGS.alert_p > of(5.0, nights)
    assert of(30.0, nights, maybe) < SETTINGS.alert_p


@pytest.mark.parametrize(("deviation", "expected"), [(0.031, False), (0.034, True), (-0.011, False), (-0.012, True)])
def test_a_night_must_lie_farther_than_all_but_one_before_it_in_its_direction(deviation: float, expected: bool) -> None:
    logs = np.array([0.0, 0.03, 0.2, -0.01, 0.002, -0.5])
    past = one_sided(math.copysign(1, deviation) * logs, np.full(len(logs), 0.01))
    assert is_far(deviation, past) == expected


def test_alerts_are_few_on_skewed_nights_and_on_nights_in_two_modes() -> None:
    tally = Tally()
    for kind in ("exponential", "log-normal", "mixtures"):
        for number in range(3):
            tally.add(tally_of(made(KINDS, kind, 7, number, nights=120)))
    # 40 alerts by the model's p-value alone.
    assert tally.late[0] + tally.early[0] <= 15
