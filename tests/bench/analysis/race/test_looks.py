"""The stopping rule of a race: its levels against published ones, its tests against scipy's, and its promises."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from bench.analysis.race.looks import (
    LOOKS,
    MOST_ROUNDS,
    compare,
    levels,
    rank_p,
    rounds_to_tell,
    stand,
)
from tests.bench.analysis.race.noises import HELD, KINDS, costs_of

EXACT = [1.0] * MOST_ROUNDS


def noisy(cost: float, seed: int, deviation: float = 0.02) -> list[float]:
    random = np.random.default_rng(seed)
    return [cost * math.exp(deviation * offset) for offset in random.normal(size=MOST_ROUNDS)]


# Levels


def test_levels_spend_five_percent_over_all_looks() -> None:
    """Two hundred thousand sums of normal differences, each against its bounds."""
    random, alive, spent = np.random.default_rng(1), np.ones(200_000, dtype=bool), 0
    sums, before = np.zeros(200_000), 0
    for look in LOOKS:
        sums += math.sqrt(look - before) * random.normal(size=sums.size)
        is_beyond = np.array([math.sqrt(2) * _erfc_inverse(levels(2)[look])]) <= np.abs(sums) / math.sqrt(look)
        spent += int(np.count_nonzero(is_beyond & alive))
        alive &= ~is_beyond
        before = look
    assert spent / sums.size == pytest.approx(0.05, abs=0.0015)


def _erfc_inverse(level: float) -> float:
    from scipy.special import erfcinv

    return float(erfcinv(level))


def test_each_pair_of_many_cases_has_its_share_of_the_level() -> None:
    """The first look spends what the function gives it: nothing was spent before."""
    first = 0.05 * math.log1p((math.e - 1) * LOOKS[0] / MOST_ROUNDS)
    for starters in (2, 3, 6, 11):
        assert levels(starters)[LOOKS[0]] == pytest.approx(first / (starters - 1), rel=1e-6)
        assert list(levels(starters)) == list(LOOKS)


# Tests of a pair


@pytest.mark.parametrize("trials", [2, 5, 8, 20])
def test_the_test_by_order_is_mann_and_whitneys(trials: int) -> None:
    random = np.random.default_rng(trials)
    for shift in (0.0, 0.5, 3.0):
        a, b = random.normal(size=trials).tolist(), (random.normal(size=trials) + shift).tolist()
        assert rank_p(a, b) == pytest.approx(float(mannwhitneyu(a, b, method="exact").pvalue))


def test_equal_sizes_are_the_same_and_unequal_ones_are_shown_without_noise() -> None:
    assert not compare([1.0] * 4, [1.0] * 4, 0.01).is_shown
    look = compare([1.0] * 4, [1.5] * 4, 0.01)
    assert (look.is_shown, look.value, look.low, look.high) == (True, 0.5, 0.5, 0.5)


def test_four_rounds_show_only_what_is_half_as_slow_again() -> None:
    quiet = [0.0, 0.001, -0.001, 0.0005]
    assert not compare(quiet, [0.2 + offset for offset in reversed(quiet)], 0.01).is_shown
    assert compare(quiet, [0.6 + offset for offset in reversed(quiet)], 0.01).is_shown


def test_one_slow_trial_of_a_faster_case_does_not_hide_it_for_ever() -> None:
    slow = noisy(1.0, 1)
    slow[2] *= 5
    standing = stand({"fast": slow, "slow": noisy(1.3, 2)})
    assert standing.winner == "fast"


def test_lasting_noise_widens_the_interval() -> None:
    """The same differences, once in an order that alternates and once in one that lasts."""
    apart = [0.02, -0.02] * 8
    together = sorted(apart)
    zero = [0.001 * (place % 3) for place in range(16)]
    width_apart, width_together = (
        look.high - look.low
        for look in (
            compare(zero, [of + b for of, b in zip(zero, side, strict=True)], 0.01) for side in (apart, together)
        )
    )
    assert width_together > 2 * width_apart


# Standing


def test_a_slower_case_is_dropped_at_an_early_look_and_the_race_ends_with_the_winner() -> None:
    standing = stand({"ddp": noisy(1.0, 1), "fsdp": noisy(2.0, 2), "zero1": noisy(1.2, 3)})
    assert standing.winner == "ddp"
    assert standing.dropped["fsdp"].rounds == LOOKS[0]
    assert standing.dropped["fsdp"].by == "ddp"
    drop = standing.dropped["zero1"]
    assert drop.rounds > LOOKS[0]
    assert drop.low < drop.ratio < drop.high
    assert drop.low < 1.2 < drop.high


def test_a_dropped_case_needs_no_further_trials() -> None:
    full = {"ddp": noisy(1.0, 1), "fsdp": noisy(2.0, 2), "zero1": noisy(1.02, 3)}
    cut = {**full, "fsdp": full["fsdp"][: LOOKS[0]]}
    assert stand(cut) == stand(full)


def test_a_race_judges_complete_rounds_only() -> None:
    full = {"ddp": noisy(1.0, 1), "zero1": noisy(1.01, 2)}
    whole = stand({name: trials[: LOOKS[1]] for name, trials in full.items()})
    assert stand({"ddp": full["ddp"][:7], "zero1": full["zero1"][: LOOKS[1]]}) == whole
    assert stand({name: trials[: LOOKS[0] - 1] for name, trials in full.items()}).rounds == 0


def test_a_case_that_failed_neither_wins_nor_stops_the_race() -> None:
    costs = {"ddp": noisy(1.0, 1), "zero1": noisy(1.2, 2), "fsdp": noisy(0.5, 3)[:3], "tensor": noisy(0.9, 4)[:5]}
    standing = stand(costs, failed={"fsdp": 3, "tensor": 5})
    assert standing.winner == "ddp"
    assert set(standing.ahead) == {"ddp"}


def test_a_case_that_was_dropped_for_one_that_failed_later_leaves_no_winner() -> None:
    costs = {"ddp": noisy(1.0, 1), "zero1": noisy(2.0, 2), "tensor": noisy(0.9, 4)[:5]}
    standing = stand(costs, failed={"tensor": 5})
    assert standing.dropped["zero1"].by == "tensor"
    assert (standing.ahead, standing.winner, standing.unsettled) == (("ddp",), None, ("zero1",))


def test_one_case_that_is_left_wins_once_there_was_a_look() -> None:
    costs = {"ddp": noisy(1.0, 1)[:4], "zero1": noisy(1.2, 2)[:2]}
    assert stand(costs, failed={"zero1": 2}).winner == "ddp"
    assert stand({name: trials[:2] for name, trials in costs.items()}, failed={"zero1": 2}).winner is None


def test_cases_within_two_percent_are_called_the_same() -> None:
    standing = stand({"ddp": noisy(1.0, 1, 0.004), "zero1": noisy(1.001, 2, 0.004)})
    assert standing.is_same
    assert standing.winner is None
    assert not stand({"ddp": noisy(1.0, 1), "zero1": noisy(1.03, 2)}).is_same


def test_the_second_over_the_first_is_given_with_its_interval() -> None:
    standing = stand({"b": noisy(1.0, 5)[:8], "a": noisy(1.01, 6)[:8]})
    assert standing.pair is not None
    assert standing.ahead == (("b", "a") if standing.pair.value > 0 else ("a", "b"))
    assert standing.pair.value >= 0
    assert standing.pair.low < 0 < standing.pair.high


@pytest.mark.parametrize(("ratio", "expected"), [(1.0001, False), (1.03, True)])
def test_the_rounds_that_would_tell_follow_from_the_noise(ratio: float, expected: bool) -> None:
    base = noisy(1.0, 1, 0.02)[:8]
    other = [cost * ratio * (1.03 if place % 2 else 0.97) for place, cost in enumerate(base)]
    standing = stand({"a": base, "b": other})
    rounds = rounds_to_tell(standing, 2)
    assert (rounds is not None and standing.rounds < rounds <= MOST_ROUNDS) == expected


# Promises, by a small simulation; races.py has the large one.


@pytest.mark.parametrize("kind", ["normal, 5 %", "heavy tails, Student's t of 2", "two modes, 50 % of trials 2x"])
def test_equal_cases_seldom_have_a_winner(kind: str) -> None:
    assert kind in HELD
    named = sum(stand(costs_of(kind, [1.0, 1.0], seed)).winner is not None for seed in range(150))
    assert named / 150 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("ratios", [[1.0, 1.3, 1.3, 1.6]])
def test_a_much_faster_case_is_named_whatever_the_noise(kind: str, ratios: Sequence[float]) -> None:
    winners = [stand(costs_of(kind, ratios, seed)).winner for seed in range(10)]
    assert set(winners) <= {"c0", None}
