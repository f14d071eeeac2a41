"""The fit of latency and bandwidth against made-up sweeps whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from workloads.cost_models.communication import Link, collective_time_s, wire_bytes, wire_messages
from workloads.cost_models.link_fit import Interval, LinkFit, NoLinkFit, TimedSize, fit
from workloads.cost_models.terms import Transfer

TRUTH = Link(bandwidth_bytes_per_second=1e9, latency_s=50e-6)
SIZES = [2**power for power in range(10, 26, 2)]
SWEEPS = 300


def sweep(
    truth: Link = TRUTH,
    sizes: Sequence[int] = SIZES,
    *,
    noise: float = 0.0,
    shared: float = 0.0,
    trials: int = 1,
    chance: random.Random | None = None,
) -> list[list[TimedSize]]:
    """All-reduces on 4 ranks, with times off by `noise` as a share of them, and those of a trial by `shared` alike."""
    chance = chance or random.Random(1)
    found = []
    for _ in range(trials):
        luck = math.exp(chance.gauss(0, shared))
        points = []
        for size_bytes in sizes:
            transfer = Transfer(collective="all_reduce", axis="data", payload_bytes=size_bytes)
            elapsed_s = collective_time_s("all_reduce", size_bytes, 4, truth, "nccl") * luck
            points.append(
                TimedSize(
                    messages=wire_messages("all_reduce", 4, "nccl"),
                    wire_bytes=wire_bytes(transfer, 4, "nccl"),
                    elapsed_s=elapsed_s * (1 + chance.gauss(0, noise)),
                )
            )
        found.append(points)
    return found


def fits(truth: Link = TRUTH, *, noise: float, trials: int = 3) -> list[LinkFit]:
    chance = random.Random(20)
    return [fit(sweep(truth, noise=noise, trials=trials, chance=chance)) for _ in range(SWEEPS)]


def held(interval: Interval, truth: float) -> bool:
    return interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high


def test_a_sweep_without_noise_gives_the_link_back() -> None:
    told = fit(sweep())
    assert told.link().latency_s == pytest.approx(TRUTH.latency_s)
    assert told.link().bandwidth_bytes_per_second == pytest.approx(TRUTH.bandwidth_bytes_per_second)
    assert told.points == len(SIZES)
    assert told.largest_error_ratio == pytest.approx(0, abs=1e-9)


def test_a_link_without_latency_is_given_back() -> None:
    told = fit(sweep(Link(bandwidth_bytes_per_second=1e9)))
    assert told.link().latency_s == pytest.approx(0, abs=1e-15)
    assert told.link().bandwidth_bytes_per_second == pytest.approx(1e9)


@pytest.mark.parametrize(
    ("noise", "shared", "trials"), [(0.1, 0.0, 5), (0.05, 0.2, 3), (0.05, 0.2, 5), (0.02, 0.05, 10)]
)
def test_93_of_100_intervals_hold_the_truth_however_much_a_trial_shares(
    noise: float, shared: float, trials: int
) -> None:
    chance = random.Random(20)
    told = []
    for _ in range(2 * SWEEPS):
        with suppress(NoLinkFit):  # A sweep in a hundred scatters too much.
            told.append(fit(sweep(sizes=SIZES[::2], noise=noise, shared=shared, trials=trials, chance=chance)))
    assert len(told) > 1.9 * SWEEPS
    for intervals, truth in (
        ([one.latency_s for one in told], TRUTH.latency_s),
        ([one.bandwidth_bytes_per_second for one in told], TRUTH.bandwidth_bytes_per_second),
    ):
        assert 0.93 <= sum(held(one, truth) for one in intervals) / len(told) <= 0.975


def test_one_trial_has_no_interval() -> None:
    told = fit(sweep(noise=0.01))
    for interval in (told.latency_s, told.bandwidth_bytes_per_second):
        assert (interval.low, interval.high) == (None, None)
        assert interval.trials == pytest.approx((interval.value,))


def test_equal_trials_have_no_interval() -> None:
    told = fit(sweep(noise=0.01) * 3)
    assert (told.latency_s.low, told.bandwidth_bytes_per_second.high) == (None, None)


def test_a_trial_that_tells_no_bandwidth_leaves_none() -> None:
    still = [TimedSize(messages=one.messages, wire_bytes=one.wire_bytes, elapsed_s=1e-3) for one in sweep()[0]]
    with pytest.raises(NoLinkFit, match="scatter too much"):
        fit([still, *sweep(trials=9)])


def test_noise_moves_the_values_to_no_side() -> None:
    told = fits(noise=0.1, trials=5)
    latency_s = sum(one.latency_s.value for one in told) / SWEEPS
    bandwidth = sum(one.bandwidth_bytes_per_second.value for one in told) / SWEEPS
    assert latency_s == pytest.approx(TRUTH.latency_s, rel=0.01)
    assert bandwidth == pytest.approx(TRUTH.bandwidth_bytes_per_second, rel=0.01)


def test_the_value_lies_in_its_interval() -> None:
    for one in [*fits(noise=0.1), fit(sweep(Link(bandwidth_bytes_per_second=1e9), noise=0.1, trials=3))]:
        assert held(one.latency_s, one.latency_s.value)
        assert held(one.bandwidth_bytes_per_second, one.bandwidth_bytes_per_second.value)


def test_small_and_large_messages_count_alike() -> None:
    late = [
        TimedSize(messages=point.messages, wire_bytes=point.wire_bytes, elapsed_s=point.elapsed_s * factor)
        for point, factor in zip(sweep()[0], [1.1, 0.9, 1, 1, 1, 1, 0.9, 1.1], strict=True)
    ]
    told = fit([late])
    assert told.latency_s.value == pytest.approx(TRUTH.latency_s, rel=0.05)
    assert told.bandwidth_bytes_per_second.value == pytest.approx(TRUTH.bandwidth_bytes_per_second, rel=0.05)
    assert 0.05 < told.largest_error_ratio < 0.15


def test_ranks_may_differ_within_a_sweep() -> None:
    points = [
        TimedSize(messages=2 * (ranks - 1), wire_bytes=size, elapsed_s=2 * (ranks - 1) * 1e-5 + size / 1e8)
        for ranks in (2, 4, 8)
        for size in (1_000, 10_000, 100_000)
    ]
    assert fit([points]).latency_s.value == pytest.approx(1e-5)


def test_latency_below_the_noise_is_told_by_its_upper_end_alone() -> None:
    told = fit(sweep(Link(bandwidth_bytes_per_second=1e9, latency_s=1e-9), SIZES[4:], noise=0.05, trials=3))
    assert told.latency_s.low == 0
    assert told.latency_s.high is not None
    assert 1e-9 < told.latency_s.high < 1e-3
    assert held(told.bandwidth_bytes_per_second, 1e9)


def test_a_sweep_without_latency_is_not_refused_and_its_interval_begins_at_0() -> None:
    told = fits(Link(bandwidth_bytes_per_second=1e9), noise=0.02)
    assert sum(one.latency_s.low == 0 for one in told) / SWEEPS >= 0.95


def test_two_sizes_tell_no_line() -> None:
    with pytest.raises(NoLinkFit, match="6 points have 2 sizes of messages; measure 3 sizes or more"):
        fit(sweep(sizes=SIZES[:2], trials=3))


def test_no_point_tells_no_line() -> None:
    with pytest.raises(NoLinkFit, match="0 points have 0 sizes"):
        fit([])


def test_sizes_that_are_nearly_one_tell_no_line() -> None:
    with pytest.raises(NoLinkFit, match="are nearly of one size; measure sizes that span a factor of 16 or more"):
        fit(sweep(sizes=[10**9, 10**9 + 40, 10**9 + 80]))


@pytest.mark.parametrize("seed", range(20))
def test_times_that_are_all_latency_tell_no_bandwidth(seed: int) -> None:
    late = Link(bandwidth_bytes_per_second=1e13, latency_s=1e-2)
    with pytest.raises(NoLinkFit, match="latency hides the bandwidth; measure messages 16 times as large"):
        fit(sweep(late, noise=0.05, trials=3, chance=random.Random(seed)))


def test_times_whose_line_falls_with_size_tell_no_bandwidth() -> None:
    points = [
        TimedSize(messages=1, wire_bytes=size_bytes, elapsed_s=elapsed_s)
        for size_bytes, elapsed_s in ((1_000, 0.5), (2_000, 0.02), (3_000, 10.0))
    ]
    with pytest.raises(NoLinkFit, match="latency hides the bandwidth"):
        fit([points])


@pytest.mark.parametrize("burst_bytes", [1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("least_s", [1e-7, 1e-6])
def test_a_burst_that_lets_small_messages_pass_is_no_latency(burst_bytes: int, least_s: float) -> None:
    points = [
        TimedSize(
            messages=point.messages,
            wire_bytes=point.wire_bytes,
            elapsed_s=max(least_s, (point.wire_bytes - burst_bytes) / 1e9),
        )
        for point in sweep()[0]
    ]
    with pytest.raises(NoLinkFit, match=r"latency comes out as -.* leave out the smallest sizes"):
        fit([points])


@pytest.mark.parametrize(
    ("messages", "size_bytes", "elapsed_s"), [(0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, float("nan"))]
)
def test_what_sent_nothing_or_took_no_time_is_no_point(messages: int, size_bytes: int, elapsed_s: float) -> None:
    with pytest.raises(ValueError, match="are not a point of a sweep"):
        TimedSize(messages=messages, wire_bytes=size_bytes, elapsed_s=elapsed_s)
