"""A change of many deviations is a page after its hold, whatever the nights before it looked like."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gate.detector.night import robust_sd
from bench.gate.detector.settings import SETTINGS
from bench.gate.detector.state import SeriesState
from tests.benchmarks.gate.kinds import KINDS
from tests.benchmarks.gate.made_series import MadeSeries, made
from tests.benchmarks.gate.scored_series import told_on, whole_night

MANY_SDS = 12
"""Robust deviations of the nights before."""
WITHIN_NIGHTS = SETTINGS.hold_nights + 2
"""The hold, the night itself, and one more: a night after the step may be the disturbed one."""
HISTORIES = (12, 60, 110)


def night_of_page(state: SeriesState, series: MadeSeries, onset: int, size: float) -> int | None:
    """Return on which night of a step its page comes, 1 being the first; None where none comes in time."""
    direction = 1 if size > 0 else -1
    for night in range(1, WITHIN_NIGHTS + 1):
        position = onset + night - 1
        judged, _ = whole_night(state, series, position, size)
        told = told_on(series, position, state, judged)
        if told is not None and told.tier == 2 and told.direction == direction:
            return night
        state = judged.state
    return None


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "sd 40 %",
        "1 trial",
        "Student's t, 3",
        "log-normal",
        "two modes of nights",
        "correlation 0.8",
        "growing noise",
        "nights x3 from night 100",
    ],
)
def test_twelve_deviations_are_a_page_after_the_hold(kind: str) -> None:
    series = made(KINDS, kind, 6, 0, nights=max(HISTORIES) + WITHIN_NIGHTS)
    state: SeriesState | None = None
    for position in range(max(HISTORIES) + 1):
        if state is not None and position in HISTORIES:
            values = np.array([night.log_value for night in state.nights if night.number >= state.regime_starts[-1]])
            size = MANY_SDS * robust_sd(values - np.median(values))
            pages = [night_of_page(state, series, position, sign * size) for sign in (1, -1)]
            assert all(night is not None and night > SETTINGS.hold_nights for night in pages), (position, pages)
        state = whole_night(state, series, position)[0].state


def test_a_tenfold_step_of_nights_in_two_modes_is_a_page_after_the_hold() -> None:
    onset = 38  # One night in ten is slow until then, and the shares have not shifted yet.
    for number in range(3):
        series = made(KINDS, "mixtures", 6, number, nights=180)
        assert onset + WITHIN_NIGHTS <= series.changes[0].onset + 2
        state: SeriesState | None = None
        for position in range(onset):
            state = whole_night(state, series, position)[0].state
        assert state is not None
        assert night_of_page(state, series, onset, float(np.log(10))) is not None
