"""FLOPs of a rank and their time, against figures that others published."""

from __future__ import annotations

import pytest

from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.step_time import ComputeTime, compute_time, flops_per_rank

TINY = PRESETS["tiny"]


def test_a_wide_model_on_short_sequences_needs_six_flops_a_weight_and_token() -> None:
    """Kaplan et al. 2020, section 2.1: 6 N a token, where attention is small."""
    shape = Shape(layers=2, width=4096, heads=32, kv_heads=32, mlp_width=11008, vocabulary=8, sequence=2, batch=4)
    assert flops_per_rank(shape, 1) == pytest.approx(6 * shape.parameters() * shape.tokens, rel=1e-3)


def test_ranks_that_share_the_step_share_its_flops() -> None:
    assert flops_per_rank(TINY, 4) == TINY.flops_per_step() / 4


def test_backward_takes_twice_forwards_time() -> None:
    time = compute_time(TINY, 1, flops_per_second=1e9)
    assert time.backward_s == pytest.approx(2 * time.forward_s)
    assert time.step_s == pytest.approx(TINY.flops_per_step() / 1e9)


def test_checkpointed_blocks_cost_a_third_more_and_all_of_it_in_backward() -> None:
    """Korthikanti et al. 2022, section 5: full recomputation adds one forward."""
    plain = compute_time(TINY, 2, flops_per_second=1e9)
    checkpointed = compute_time(TINY, 2, flops_per_second=1e9, recomputed_ratio=1)
    assert checkpointed.forward_s == plain.forward_s
    assert checkpointed.step_s == pytest.approx(4 / 3 * plain.step_s)


def test_a_step_is_the_sum_of_its_phases() -> None:
    assert ComputeTime(forward_s=1, backward_s=2, optimizer_s=4).step_s == 7


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="sharing_ranks is 0; it must be 1 or more"):
        flops_per_rank(TINY, 0)


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_a_ratio_of_recomputation_outside_0_to_1_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="recomputed_ratio"):
        flops_per_rank(TINY, 1, recomputed_ratio=ratio)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_not_above_0_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="flops_per_second"):
        compute_time(TINY, 1, flops_per_second=rate)
