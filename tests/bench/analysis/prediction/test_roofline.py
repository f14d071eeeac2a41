"""Work of a step that a device does itself, compared with sums by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.cost_models.roofline import (
    elementwise_bytes_per_token,
    equal_size,
    forward_work,
    interpolated_rate,
    update_bytes,
)
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import States, replicated_states

SMALL = Shape(layers=1, width=4, heads=2, kv_heads=1, mlp_width=6, vocabulary=10, sequence=8, batch=2)


def test_a_square_product_is_of_its_own_size() -> None:
    assert equal_size(512, 512, 512) == pytest.approx(512)


@given(st.tuples(*[st.floats(1, 1e6)] * 3))
def test_a_product_of_equal_intensity_has_as_many_operations_for_each_element(sizes: tuple[float, ...]) -> None:
    m, n, k = sizes
    square = equal_size(m, n, k)
    assert m * n * k / (m * n + n * k + m * k) == pytest.approx(square**3 / (3 * square**2))


@pytest.mark.parametrize("tensor_ranks", [1, 2])
@pytest.mark.parametrize("preset", ["tiny", "8b"])
def test_products_and_attention_are_the_forward_of_palms_causal_formula(preset: str, tensor_ranks: int) -> None:
    shape = PRESETS[preset]
    work = forward_work(
        shape, microbatch_tokens=shape.sequence, tensor_ranks=tensor_ranks, element_bytes=2, stream_bytes=4
    )
    flops = sum(each.flops for each in (*work.products, work.head)) + work.attention.flops
    assert flops == pytest.approx(shape.flops_per_step("palm_causal") / 3)


def test_tensor_ranks_make_products_smaller_and_their_sum_no_other() -> None:
    shape = PRESETS["8b"]
    whole, divided = (
        forward_work(shape, microbatch_tokens=8192, tensor_ranks=ranks, element_bytes=2, stream_bytes=2)
        for ranks in (1, 8)
    )
    for each, part in zip((*whole.products, whole.head), (*divided.products, divided.head), strict=True):
        assert part.size < each.size
        assert part.flops == pytest.approx(each.flops)
    assert divided.attention.size == pytest.approx(whole.attention.size / 2)  # An eighth of the operations.


def test_element_wise_bytes_are_those_of_each_kernel_in_fp32() -> None:
    # Of a block of width 4, with queries of 4, keys of 2 and values of 2, and an MLP of 6, in elements:
    norms = 2 * (4 + 4)
    rotations = (4 + 2) * 9  # Four halves multiplied, two sums of halves, one concatenation: 4 + 3 + 2.
    attention = (4 + 2 + 2 + 4) + (4 + 4)  # q, k, v and out; then its copy by token.
    sums = 2 * (4 + 4 + 4)
    activation = (6 + 6) + (6 + 6 + 6)
    ends = (4 + 4) + (4 + 4) + (10 + 10)  # The embedding's row, the last norm, and the loss.
    elements = norms + rotations + attention + sums + activation + ends
    assert elementwise_bytes_per_token(SMALL, element_bytes=4, stream_bytes=4) == 4 * elements


def test_a_compiled_block_moves_less_and_autocast_more_than_weights_in_half() -> None:
    shape = PRESETS["8b"]
    eager, compiled = (
        elementwise_bytes_per_token(shape, element_bytes=2, stream_bytes=2, is_compiled=compiled)
        for compiled in (False, True)
    )
    autocast = elementwise_bytes_per_token(shape, element_bytes=2, stream_bytes=4)
    assert compiled < eager < autocast


def test_adamw_moves_28_bytes_for_each_weight_and_clipping_three_gradients() -> None:
    states = States(parameters_bytes=400, gradients_bytes=400, optimizer_bytes=800)
    assert update_bytes(states, has_master=False, gradient_bytes=4, is_clipped=False) == 2800
    assert update_bytes(states, has_master=False, gradient_bytes=4, is_clipped=True) == 2800 + 1200


def test_a_rank_with_a_quarter_of_the_states_updates_a_quarter() -> None:
    whole = replicated_states(PRESETS["1b"])
    quarter = States(
        parameters_bytes=whole.parameters_bytes,
        gradients_bytes=whole.gradients_bytes,
        optimizer_bytes=whole.optimizer_bytes // 4,
    )
    moved = [update_bytes(each, has_master=False, gradient_bytes=4, is_clipped=False) for each in (whole, quarter)]
    assert moved[1] == pytest.approx(moved[0] / 4)


def test_a_master_copy_is_rounded_and_its_bf16_gradient_widened() -> None:
    states = States(parameters_bytes=200, gradients_bytes=200, optimizer_bytes=1200)  # 100 weights.
    full = update_bytes(states, has_master=True, gradient_bytes=4, is_clipped=False)
    half = update_bytes(states, has_master=True, gradient_bytes=2, is_clipped=False)
    assert (full, half) == (100 * (28 + 6), 100 * (28 + 6 + 6))


def test_a_rate_between_rungs_is_interpolated_and_beyond_them_that_of_the_end() -> None:
    rungs = ((256.0, 100.0), (1024.0, 400.0))
    assert interpolated_rate(512, rungs) == pytest.approx(200)
    assert interpolated_rate(10, rungs) == 100
    assert interpolated_rate(4096, rungs) == 400
    with pytest.raises(ValueError, match="without a rung"):
        interpolated_rate(512, ())


def test_no_work_is_refused() -> None:
    with pytest.raises(ValueError, match="use 1 or more"):
        forward_work(SMALL, microbatch_tokens=0, element_bytes=4, stream_bytes=4)
