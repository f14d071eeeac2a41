"""Since when noise has changed, against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.gate.detector.noise_change import NoiseChange, noise_change
from tests.bench.gate.detector.kept_nights import kept


def drawn(seed: int, sds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 1, len(sds)) * sds


def first_reported(series: NDArray[np.float64]) -> NoiseChange | None:
    """Return the change that is reported first, as nights come in."""
    states = (kept(series[:newest]) for newest in range(70, len(series), 3))
    return next((found for state in states if (found := noise_change(state)) is not None), None)


GROWN = np.repeat([0.005, 0.015], [60, 60])


def test_noise_that_has_grown_threefold_is_dated_and_measured() -> None:
    seen = [found for seed in range(20) if (found := first_reported(drawn(seed, GROWN))) is not None]
    assert len(seen) >= 18
    assert sum(found.low <= 3 <= found.high for found in seen) >= 16
    assert sum(abs(found.onset - 60) <= 10 for found in seen) >= 16
    assert seen[0].reason.startswith("noise has increased since {night}: x ")


def test_noise_that_has_shrunk_is_less_than_one() -> None:
    seen = [found for seed in range(20) if (found := first_reported(drawn(seed, GROWN[::-1]))) is not None]
    assert len(seen) >= 14
    assert sum(found.low < 1 / 3 < found.high for found in seen) >= 12
    assert "decreased" in seen[0].reason


def test_a_change_is_reported_once() -> None:
    reported: list[NoiseChange] = []
    series = drawn(3, np.repeat([0.005, 0.015], [60, 80]))
    for newest in range(30, len(series), 2):
        found = noise_change(kept(series[:newest]), reported=reported[-1].onset if reported else None)
        reported += [] if found is None else [found]
    assert len(reported) == 1


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
