"""Since when noise has changed, against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.gate.detector.noise_change import NoiseChange, noise_change
from tests.bench.gate.detector.kept_nights import kept


def drawn(seed: int, sds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 1, len(sds)) * sds


GROWN = np.repeat([0.005, 0.015], [60, 40])


def test_noise_that_has_grown_threefold_is_dated_and_measured() -> None:
    found = [noise_change(kept(drawn(seed, GROWN))) for seed in range(20)]
    seen = [one for one in found if one is not None]
    assert len(seen) >= 17
    assert sum(one.low <= 3 <= one.high for one in seen) >= len(seen) - 3
    assert sum(abs(one.onset - 60) <= 10 for one in seen) >= len(seen) - 3
    assert seen[0].reason.startswith("noise has increased since {night}: x ")


def test_noise_that_has_shrunk_is_less_than_one() -> None:
    found = [noise_change(kept(drawn(seed, GROWN[::-1]))) for seed in range(20)]
    seen = [one for one in found if one is not None]
    assert len(seen) >= 15
    assert sum(one.low < 1 / 3 < one.high for one in seen) >= len(seen) - 3
    assert "decreased" in seen[0].reason


def test_a_change_is_told_once() -> None:
    told: list[NoiseChange] = []
    series = drawn(3, np.repeat([0.005, 0.015], [60, 80]))
    for newest in range(30, len(series), 2):
        found = noise_change(kept(series[:newest]), reported=told[-1].onset if told else None)
        told += [] if found is None else [found]
    assert len(told) == 1


@pytest.mark.parametrize("change", [0.05, 0.7])
def test_a_level_that_changes_is_no_noise(change: float) -> None:
    levels = np.repeat([0.0, change], [50, 50])
    found = [noise_change(kept(levels + drawn(seed, np.full(100, 0.005)))) for seed in range(20)]
    assert sum(one is not None for one in found) <= 1


def test_the_same_noise_is_no_change() -> None:
    generator = np.random.default_rng(0)
    series = [generator.normal(0, 0.005, 100) for _ in range(20)]
    series += [0.005 * generator.standard_t(3, 100) for _ in range(20)]
    found = [noise_change(kept(values)) for values in series]
    assert sum(one is not None for one in found) <= 1


def test_constant_and_few_nights_have_no_noise_to_change() -> None:
    assert noise_change(kept([0.0] * 100)) is None
    assert noise_change(kept([0.0, 0.1] * 8)) is None
