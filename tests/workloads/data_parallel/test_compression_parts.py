"""Each scheme averages, keeps account of what it leaves out, and gives all ranks the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from tests.workloads.training.forgetful_feedback import FakeForgetfulFeedback
from workloads.data_parallel.compression import Bucket, ErrorFeedback, PowerSGD, Rounding, Scheme, TopK, Uncompressed

SHAPES = ((12, 8), (8,), (6, 10), (9, 9))
ELEMENTS = sum(math.prod(shape) for shape in SHAPES)
RANK = 2

Name = Literal["none", "fp16", "bf16", "powersgd", "topk"]
NAMES: tuple[Name, ...] = ("none", "fp16", "bf16", "powersgd", "topk")


def make_weights(shapes: Sequence[tuple[int, ...]] = SHAPES) -> tuple[Tensor, ...]:
    return tuple(torch.zeros(shape) for shape in shapes)


def make_scheme(name: Name, feedback: ErrorFeedback) -> Scheme:
    group = dist.group.WORLD
    assert group is not None
    schemes: dict[Name, Callable[[], Scheme]] = {
        "none": lambda: Uncompressed(group),
        "fp16": lambda: Rounding(group, torch.float16),
        "bf16": lambda: Rounding(group, torch.bfloat16),
        "powersgd": lambda: PowerSGD(group, rank=RANK, seed=7, feedback=feedback),
        "topk": lambda: TopK(group, density=0.5, feedback=feedback),
    }
    return schemes[name]()


def draw(seed: int) -> Tensor:
    """Gradients of this rank."""
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(1000 * seed + dist.get_rank()))


def draw_low_rank(weights: Sequence[Tensor], seed: int) -> Tensor:
    """Gradients of this rank, whose matrices have a mean of rank 2 at most, though each rank's own has rank 4."""
    shared, own = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1000 + seed)
    sign = 1 - 2 * dist.get_rank()  # What two ranks add and take away is not in their mean.
    parts = []
    for weight in weights:
        if weight.dim() == 1:
            parts.append(torch.randn(weight.shape, generator=shared))
            continue
        rows, columns = weight.shape
        drawn = [torch.randn(rows, 2, generator=one) @ torch.randn(2, columns, generator=one) for one in (shared, own)]
        parts.append(drawn[0] + sign * drawn[1])
    return torch.cat([part.flatten() for part in parts])


def mean_over_ranks(tensor: Tensor) -> Tensor:
    mean = tensor / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def averaged_bits(name: Name) -> list[bytes]:
    weights, scheme = make_weights(), make_scheme(name, ErrorFeedback())
    averaged = []
    for step in range(4):
        bucket = Bucket(index=0, flat=draw(step), weights=weights)
        scheme.average(bucket)
        averaged.append(bucket.flat.numpy().tobytes())
    return averaged


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_come_to_the_same_bits(name: Name, on_ranks: OnRanks) -> None:
    first, *others = on_ranks(3, averaged_bits, name)
    assert all(other == first for other in others)
    assert len(set(first)) == len(first)


def lost_elements(name: Name) -> list[float]:
    """How far what was averaged and what is remembered are from what was handed in, over the ranks, in each step."""
    weights, feedback = make_weights(), ErrorFeedback()
    scheme = make_scheme(name, feedback)
    lost = []
    for step in range(4):
        bucket = Bucket(index=0, flat=draw(step), weights=weights)
        handed_in = mean_over_ranks(bucket.flat + feedback.of(bucket))
        scheme.average(bucket)
        accounted = bucket.flat + mean_over_ranks(feedback.of(bucket))
        assert not torch.allclose(bucket.flat, handed_in, atol=1e-2)
        lost.append((accounted - handed_in).abs().max().item())
    return lost


@pytest.mark.parametrize("name", ["powersgd", "topk"])
def test_what_is_not_averaged_is_remembered(name: Name, on_ranks: OnRanks) -> None:
    for lost in on_ranks(2, lost_elements, name):
        assert max(lost) < 1e-5


def low_rank_errors() -> list[float]:
    weights = make_weights()
    scheme = make_scheme("powersgd", FakeForgetfulFeedback())
    errors = []
    for step, factor in enumerate([1.0, 0.0, 1.0]):  # A gradient of zeros leaves right factors of zeros behind.
        bucket = Bucket(index=0, flat=factor * draw_low_rank(weights, step), weights=weights)
        mean = mean_over_ranks(bucket.flat)
        scheme.average(bucket)
        errors.append((bucket.flat - mean).abs().max().item())
    return errors


def test_powersgd_is_exact_where_the_mean_has_its_rank_also_after_a_gradient_of_zeros(on_ranks: OnRanks) -> None:
    for errors in on_ranks(2, low_rank_errors):
        assert max(errors) < 1e-5


def distances_to_the_best(steps: int) -> list[float]:
    """How much further than the best of its rank each step's matrix is from the mean, as a ratio."""
    weights = make_weights([(12, 8)])
    scheme = make_scheme("powersgd", FakeForgetfulFeedback())
    gradient = torch.randn(96, generator=torch.Generator().manual_seed(dist.get_rank()))
    mean_nm = mean_over_ranks(gradient).view(12, 8)
    best = torch.linalg.svdvals(mean_nm)[RANK:].norm()
    distances = []
    for _ in range(steps):
        bucket = Bucket(index=0, flat=gradient.clone(), weights=weights)
        scheme.average(bucket)
        distances.append(((bucket.flat.view(12, 8) - mean_nm).norm() / best).item() - 1)
    return distances


def test_powersgds_warm_start_comes_to_the_best_matrix_of_its_rank(on_ranks: OnRanks) -> None:
    for distances in on_ranks(2, distances_to_the_best, 60):
        assert distances[0] > 0.05
        assert distances[-1] < 1e-3


def top_half_of_two() -> tuple[list[float], list[float]]:
    group, feedback = dist.group.WORLD, ErrorFeedback()
    assert group is not None
    handed_in = [[4.0, -1.0, 3.0, 0.0], [1.0, -8.0, 2.0, 0.0]][dist.get_rank()]
    bucket = Bucket(index=0, flat=torch.tensor(handed_in), weights=make_weights([(4,)]))
    TopK(group, density=0.5, feedback=feedback).average(bucket)
    return bucket.flat.tolist(), feedback.of(bucket).tolist()


def test_top_k_adds_up_the_largest_of_each_rank_and_remembers_the_others(on_ranks: OnRanks) -> None:
    first, second = on_ranks(2, top_half_of_two)
    assert first == ([2.0, -4.0, 2.5, 0.0], [0.0, -1.0, 0.0, 0.0])
    assert second == ([2.0, -4.0, 2.5, 0.0], [1.0, 0.0, 0.0, 0.0])


def rounding_differences() -> dict[str, float]:
    """How far the mean of two ranks is from the one computed by hand, and from the exact one."""
    group = dist.group.WORLD
    assert group is not None
    own, exact = draw(0), mean_over_ranks(draw(0))
    halves = [torch.empty(ELEMENTS, dtype=torch.bfloat16) for _ in range(2)]
    dist.all_gather(halves, (own / 2).bfloat16())
    bucket = Bucket(index=0, flat=own, weights=make_weights())
    Rounding(group, torch.bfloat16).average(bucket)
    by_hand = (halves[0] + halves[1]).float()
    return {"by hand": (own - by_hand).abs().max().item(), "exact": ((own - exact).norm() / exact.norm()).item()}


def test_rounding_is_the_librarys_sum_of_halves(on_ranks: OnRanks) -> None:
    for differences in on_ranks(2, rounding_differences):
        assert differences["by hand"] == 0
        assert 1e-4 < differences["exact"] < 2**-7


def test_errors_follow_their_weights_into_buckets_that_are_laid_anew() -> None:
    first, second, third = weights = make_weights([(2,), (3,), (1,)])
    feedback = ErrorFeedback()
    whole = Bucket(index=0, flat=torch.zeros(6), weights=weights)
    feedback.of(whole).copy_(torch.arange(6.0))
    behind = Bucket(index=1, flat=torch.zeros(3), weights=(third, first))
    before = Bucket(index=0, flat=torch.zeros(3), weights=(second,))
    assert feedback.of(behind).tolist() == [5.0, 0.0, 1.0]
    assert feedback.of(before).tolist() == [2.0, 3.0, 4.0]
    feedback.of(before).zero_()
    assert feedback.of(behind).tolist() == [5.0, 0.0, 1.0]
    assert feedback.of(before).tolist() == [0.0, 0.0, 0.0]


def test_a_buckets_views_are_its_own_memory_in_its_weights_shapes() -> None:
    bucket = Bucket(index=0, flat=torch.arange(8.0), weights=make_weights([(2, 3), (2,)]))
    matrix, vector = bucket.views(bucket.flat)
    vector += 10
    assert matrix.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert bucket.flat.tolist()[6:] == [16.0, 17.0]
