"""The law of overlap against a schedule played through, and at its limits."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import one_level
from workloads.cost_models.step_time import ComputeTime, StepTime, overlapped_s, step_time
from workloads.cost_models.terms import Transfer

COMPUTE = ComputeTime(forward_s=1.0, backward_s=2.0, optimizer_s=0.5)
SECONDS = st.floats(0.01, 100)


def play(compute_s: float, buckets_s: list[float]) -> float:
    """The time at which all is done, bucket by bucket."""
    now_s = computed_s = 0.0
    for bucket_s in buckets_s:
        computed_s += compute_s * bucket_s / sum(buckets_s)
        now_s = max(now_s, computed_s) + bucket_s
    return now_s


def step(behind: Literal["forward", "backward"] | None, *, calls: int = 4, ranks: int = 2) -> StepTime:
    """A step that sends 400 bytes, 100 a second."""
    sent = Transfer(collective="all_reduce", axis="data", payload_bytes=400, calls=calls, behind=behind)
    link = Link(bandwidth_bytes_per_second=100)
    return step_time(COMPUTE, [sent], axes={"data": ranks}, interconnect=one_level(link, ranks), backend="gloo")


@given(compute_s=SECONDS, buckets_s=st.lists(SECONDS, min_size=1, max_size=8))
def test_it_takes_as_long_as_the_schedule_played_through(compute_s: float, buckets_s: list[float]) -> None:
    assert overlapped_s(compute_s, buckets_s) == pytest.approx(play(compute_s, buckets_s))


@given(compute_s=SECONDS, bucket_s=SECONDS, buckets=st.integers(1, 9))
def test_equal_buckets_take_the_longer_of_two_ends(compute_s: float, bucket_s: float, buckets: int) -> None:
    whole_s = bucket_s * buckets
    longer_s = max(compute_s + whole_s / buckets, compute_s / buckets + whole_s)
    assert overlapped_s(compute_s, [bucket_s] * buckets) == pytest.approx(longer_s)


def test_nothing_to_send_takes_the_computations_time() -> None:
    assert overlapped_s(3.0, []) == 3.0


def test_a_step_that_waits_is_computation_and_communication() -> None:
    law = step(behind=None)
    assert law.step_s == pytest.approx(3.5 + 4.0)
    assert law.hidden_ratio == 0


def test_one_bucket_hides_nothing() -> None:
    assert step("backward", calls=1).step_s == pytest.approx(step(behind=None).step_s)


def test_buckets_behind_backward_hide_all_but_the_start_of_it() -> None:
    law = step("backward")  # Communication lasts 4 s, backward 2 s: the first bucket is ready after 0.5 s.
    assert law.step_s == pytest.approx(1.0 + (0.5 + 4.0) + 0.5)
    assert law.exposed_s == pytest.approx(2.5)
    assert law.hidden_ratio == pytest.approx(1.5 / 4)


def test_buckets_behind_forward_leave_backward_alone() -> None:
    law = step("forward")  # Forward lasts 1 s.
    assert law.step_s == pytest.approx((0.25 + 4.0) + 2.0 + 0.5)


def test_transfers_of_one_phase_share_its_time() -> None:
    half = Transfer(collective="all_reduce", axis="data", payload_bytes=200, calls=2, behind="backward")
    link = Link(bandwidth_bytes_per_second=100)
    law = step_time(COMPUTE, [half, half], axes={"data": 2}, interconnect=one_level(link, 2), backend="gloo")
    assert law == step("backward")


def test_alone_there_is_no_communication_to_hide() -> None:
    law = step("backward", ranks=1)
    assert law.step_s == COMPUTE.step_s
    assert law.hidden_ratio is None
