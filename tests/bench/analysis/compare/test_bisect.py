"""The walk to the commit that changed a figure, by a made-up way of measuring pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from bench.analysis.compare.bisect import Bisected, Unmeasurable, bisect, most_measured
from bench.gate.cause.attribution import MeasuredChange


def _measured(middle: float, half_width: float) -> MeasuredChange:
    return MeasuredChange(ratio=math.exp(middle), low=math.exp(middle - half_width), high=math.exp(middle + half_width))


def _levels(
    levels: dict[str, float], half_width: float = 0.02, *, sd: float = 0.0, seed: int = 1
) -> Callable[[str, str], MeasuredChange]:
    """Measure commits of known levels, with an error of this deviation."""
    chance = random.Random(seed)

    def measure(before: str, after: str) -> MeasuredChange:
        if math.isnan(levels[after]):
            raise Unmeasurable("ModuleNotFoundError: No module named 'gone'")
        return _measured(levels[after] - levels[before] + chance.gauss(0.0, sd), half_width)

    return measure


def _walk(count: int, guilty: int, change: float, **noise: float) -> Bisected:
    commits = [f"c{number}" for number in range(count + 1)]
    levels = {commit: change * (number >= guilty) for number, commit in enumerate(commits)}
    return bisect(commits, _levels(levels, **noise), direction=1 if change > 0 else -1, suspected=change)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 13, 100])
def test_the_guilty_commit_is_named_within_the_limit_wherever_it_is(count: int) -> None:
    for guilty in range(1, count + 1):
        found = _walk(count, guilty, 0.2)
        assert (found.outcome, found.commit) == ("commit", f"c{guilty}")
        assert found.measured <= most_measured(count) == math.ceil(math.log2(count)) + 2
        assert found.change is not None
        assert found.change.low < math.exp(0.2) < found.change.high


def test_a_rate_that_fell_is_found_as_well() -> None:
    assert _walk(8, 3, -0.2).commit == "c3"


def test_equal_commits_are_the_environments() -> None:
    found = bisect(["c0", "c1", "c2"], lambda before, after: _measured(0.0, 0.05), direction=1, suspected=0.2)
    assert (found.outcome, found.commit, found.measured) == ("environment", None, 1)


def test_pairs_that_do_not_tell_are_unsure() -> None:
    found = bisect(["c0", "c1", "c2"], lambda before, after: _measured(0.05, 0.15), direction=1, suspected=0.2)
    assert (found.outcome, found.commit) == ("unsure", None)


def test_a_commit_that_cannot_be_run_is_stepped_over() -> None:
    levels = {f"c{number}": 0.2 * (number >= 6) for number in range(9)} | {"c4": math.nan}
    found = bisect([f"c{number}" for number in range(9)], _levels(levels), direction=1)
    assert (found.outcome, found.commit) == ("commit", "c6")
    assert [commit for commit, _ in found.skipped] == ["c4"]


def test_a_change_beside_commits_that_cannot_be_run_is_unsure_among_these() -> None:
    levels = {f"c{number}": 0.2 * (number >= 4) for number in range(9)} | {"c4": math.nan, "c3": math.nan}
    found = bisect([f"c{number}" for number in range(9)], _levels(levels), direction=1)
    assert (found.outcome, found.commit) == ("unsure", None)
    assert set(found.between) == {"c3", "c4", "c5"}


def test_a_wrong_step_ends_unsure_and_not_at_an_innocent_commit() -> None:
    levels = {f"c{number}": 0.2 * (number >= 2) for number in range(9)}
    honest = _levels(levels)

    def measure(before: str, after: str) -> MeasuredChange:
        return _measured(0.0, 0.02) if after == "c4" else honest(before, after)

    found = bisect([f"c{number}" for number in range(9)], measure, direction=1, suspected=0.2)
    assert (found.outcome, found.commit) == ("unsure", None)


def test_a_change_within_the_noise_is_hardly_ever_blamed_on_a_wrong_commit() -> None:
    sd = 0.04
    wrong = sum(
        found.outcome == "commit" and found.commit != "c3"
        for seed in range(400)
        for found in [_walk(8, 3, 0.03, half_width=1.96 * sd, sd=sd, seed=seed)]
    )
    assert wrong <= 16


def test_a_change_well_above_the_noise_is_found_nearly_always() -> None:
    sd = 0.04
    right = sum(_walk(8, 5, 0.2, half_width=1.96 * sd, sd=sd, seed=seed).commit == "c5" for seed in range(200))
    assert right >= 180
