"""What a series can show, held against the detector itself."""

from __future__ import annotations

import math

import pytest

from bench.gate.detector.detector import judge
from bench.gate.detector.power import (
    NightNoise,
    Visible,
    confirmed_after,
    history_needed,
    smallest_change,
    visible,
)
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesState
from bench.gate.report import _visible_words
from tests.bench.gate.detector.made_nights import QUIET, Noise, made

NOISE = NightNoise(night_variance=1e-4, error_variance=1e-5)


def seen(history: int, noise: Noise, seed: int, size: float) -> tuple[Visible, bool]:
    """Return what a series says after so many nights, and whether a step of `size` times that is paged in time."""
    base = made([0.0] * (history + 14), noise, seed)
    state: SeriesState | None = None
    for night in base[:history]:
        state = judge(state, night).state
    assert state is not None
    said = visible(state)
    assert said is not None
    step = size * math.log1p(said.smallest)
    stepped = made([0.0] * history + [step] * 14, noise, seed)
    for night in stepped[history:]:
        judged = judge(state, night)
        state = judged.state
        if judged.verdict == "page" and judged.alert is not None and judged.alert.direction > 0:
            return said, True
    return said, False


@pytest.mark.parametrize("history", [12, 30, 60])
def test_a_change_as_small_as_a_series_says_is_confirmed_in_four_of_five(history: int) -> None:
    found = [seen(history, Noise(night_sd=0.01, trial_sd=0.01), seed, 1.0) for seed in range(20)]
    # A false page in the history makes it shorter, and the series knows that.
    assert sum(said.history == history for said, _ in found) >= 17
    # 16 expected of 20; fewer than 11 has a chance of 0.003.
    assert sum(is_paged for _, is_paged in found) >= 11


def test_half_of_what_a_series_says_is_mostly_missed() -> None:
    found = [seen(30, Noise(night_sd=0.01, trial_sd=0.01), seed, 0.5) for seed in range(20)]
    assert sum(is_paged for _, is_paged in found) <= 10


def test_more_history_shows_smaller_changes_until_no_more_is_kept() -> None:
    sizes = [smallest_change(NOISE, nights) for nights in (10, 12, 30, 60, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert smallest_change(NOISE, 300) == sizes[-1]


def test_the_history_that_a_change_needs_is_the_first_that_shows_it() -> None:
    change = smallest_change(NOISE, 40)
    needed = history_needed(NOISE, change)
    assert needed is not None
    assert needed <= 40
    assert smallest_change(NOISE, needed) <= change
    assert needed == SETTINGS.fewest_nights or smallest_change(NOISE, needed - 1) > change


def test_a_change_that_no_history_shows_is_said_to_need_none() -> None:
    assert history_needed(NOISE, 0.001) is None
    wide = Visible(history=12, smallest=0.9, target=0.03, nights=None)
    can_show = "with 12 nights, lasting changes of 90 % or more are detectable"
    assert wide.words == f"{can_show}; no history is long enough for 3 %"


def test_a_larger_change_is_confirmed_sooner_and_never_on_its_first_nights() -> None:
    nights = [confirmed_after(NOISE, change, 60) for change in (0.5, 0.04, 0.02, 0.001)]
    assert nights[0] == SETTINGS.hold_nights + 1
    assert nights[3] is None
    known = [count for count in nights if count is not None]
    assert known == sorted(known)


def test_correlated_nights_show_less() -> None:
    correlated = NightNoise(night_variance=1e-4, error_variance=1e-5, correlation=0.6)
    assert smallest_change(correlated, 60) > 1.5 * smallest_change(NOISE, 60)


def test_what_can_be_seen_is_said_in_words() -> None:
    said = Visible(history=12, smallest=0.14, target=0.03, nights=60)
    assert said.words == "with 12 nights, lasting changes of 14 % or more are detectable; 3 % after about 60 nights"
    said = Visible(history=80, smallest=0.013, target=0.03, nights=14)
    assert said.words == "with 80 nights, lasting changes of 1.3 % or more are detectable"
    said = Visible(history=11, smallest=2.4, target=0.03, nights=None)
    assert said.words.startswith("with 11 nights, lasting changes of x 3.4 or more")


def test_a_constant_metric_shows_small_changes_and_a_new_series_nothing_yet() -> None:
    state: SeriesState | None = None
    for night in made([0.0] * 12, QUIET):
        state = judge(state, night).state
        assert (visible(state) is None) == (night.number < SETTINGS.fewest_nights - 1)
    assert state is not None
    said = visible(state)
    assert said is not None
    assert said.smallest < 0.02


@pytest.mark.parametrize(
    ("powers", "words"),
    [
        ([(0.01, 14), (0.02, 14)], "lasting changes of 1 to 2 % or more are detectable"),
        (
            [(0.01, 14), (0.05, 40), (0.04, 30)],
            "lasting changes of 1 to 5 % or more are detectable; 3 % after about 40 nights",
        ),
        (
            [(0.01, 14), (0.05, 40), (0.9, None)],
            "lasting changes of 1 to 90 % or more are detectable; no history is long enough for 3 % in 1 of them",
        ),
        (
            [(0.8, None), (0.9, None)],
            "lasting changes of 80 to 90 % or more are detectable; no history is long enough for 3 %",
        ),
    ],
)
def test_several_figures_share_a_line(powers: list[tuple[float, int | None]], words: str) -> None:
    several = [Visible(history=20, smallest=smallest, target=0.03, nights=nights) for smallest, nights in powers]
    assert _visible_words(several) == f"with 20 nights, {words}"
