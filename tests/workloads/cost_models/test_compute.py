"""Time of a rank's computing by phase, from that of its forward by kind of work."""

from __future__ import annotations

import pytest

from workloads.cost_models.roofline import ForwardTimes, Recomputed, compute_of
from workloads.cost_models.step_time import ComputeTime

FORWARD = ForwardTimes(products_s=8.0, head_s=4.0, attention_s=2.0, elementwise_s=1.0)


def test_backward_takes_twice_forwards_time_and_attention_two_and_a_half_times() -> None:
    """Dao 2023, FlashAttention-2, section 4.1: five products for forward's two."""
    compute = compute_of(FORWARD, Recomputed())
    assert (compute.forward_s, compute.backward_s) == (15, 2 * (8 + 4 + 1) + 2.5 * 2)
    assert compute.recomputed_s == 0


def test_checkpointed_blocks_cost_their_forward_again_and_the_head_is_no_block() -> None:
    """Korthikanti et al. 2022, section 5: full recomputation adds one forward."""
    plain = compute_of(FORWARD, Recomputed())
    whole = compute_of(FORWARD, Recomputed(products=1, attention=1, elementwise=1))
    assert whole.forward_s == plain.forward_s
    assert whole.recomputed_s == 8 + 2 + 1
    assert whole.step_s == plain.step_s + whole.recomputed_s


def test_selective_checkpointing_repeats_only_what_memory_bounds() -> None:
    assert compute_of(FORWARD, Recomputed(elementwise=0.5)).recomputed_s == pytest.approx(0.5)


def test_a_step_is_the_sum_of_its_phases() -> None:
    assert ComputeTime(forward_s=1, backward_s=2, optimizer_s=4).step_s == 7
