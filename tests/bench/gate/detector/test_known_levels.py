"""Levels that come back, against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from bench.gate.detector.known_levels import returned_to
from tests.bench.gate.detector.kept_nights import kept

UP = 0.035


def sticky(seed: int, *stays: tuple[int, float]) -> list[float]:
    levels = np.repeat([level for _, level in stays], [nights for nights, _ in stays])
    return list(levels + np.random.default_rng(seed).normal(0, 0.006, len(levels)))


def test_a_level_that_comes_back_is_one_of_the_series_levels() -> None:
    found = [returned_to(kept(sticky(seed, (30, 0), (25, UP), (30, 0), (4, UP))), 85) for seed in range(20)]
    known = [one for one in found if one is not None]
    assert len(known) >= 19
    assert {one.all_nights for one in known} == {85}
    assert all(abs(one.nights - 25) <= 3 and abs(one.last - 54) <= 3 for one in known)
    assert known[0].log_level == pytest.approx(UP, abs=0.005)
    assert known[0].reason.startswith("the series has been on this level before, on 2")


def test_a_new_level_is_none_of_them() -> None:
    found = [returned_to(kept(sticky(seed, (30, 0), (25, UP), (30, 0), (6, -UP))), 85) for seed in range(20)]
    assert found == [None] * 20


def test_the_level_just_before_is_no_return() -> None:
    found = [returned_to(kept(sticky(seed, (80, 0), (6, 0))), 80) for seed in range(20)]
    assert found == [None] * 20


def test_stays_on_one_level_count_together() -> None:
    found = returned_to(kept(sticky(1, (20, 0), (20, UP), (20, 0), (20, UP), (5, 0))), 80)
    assert found is not None
    assert abs(found.nights - 40) <= 3
    assert abs(found.last - 59) <= 2


def test_few_nights_know_no_level() -> None:
    assert returned_to(kept([0.0] * 8 + [UP] * 3), 8) is None
    assert returned_to(kept([0.0] * 40), 40) is None
