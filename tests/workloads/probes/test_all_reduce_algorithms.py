"""Each algorithm leaves the sum on all ranks, alike to the bit, and costs exactly what the law says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from workloads.probes.all_reduce import CountedTraffic, MessageRounds, all_reduce
from workloads.probes.cost_model import ALGORITHMS, Algorithm, cost, refusal
from workloads.probes.spec import scratch_elements

COUNTS = (1, 2, 3, 8, 13, 64, 1001)
"""Elements: fewer than ranks, shared equally, and not."""

CASES = [(ranks, algorithm) for ranks in (2, 3, 4, 8) for algorithm in ALGORITHMS if refusal(algorithm, ranks) is None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one rank has after an algorithm summed whole numbers, and random ones in two precisions."""

    whole: Tensor
    random: dict[torch.dtype, Tensor]
    traffic: CountedTraffic


Outcomes = dict[tuple[Algorithm, int], Outcome]


def whole_numbers(rank: int, count: int) -> Tensor:
    """Other ones on each rank, whose sums are exact in fp32."""
    return (torch.arange(count) * 7 + 10_007 * rank * rank).float()


def random_numbers(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Of many magnitudes, so that each order of additions rounds otherwise."""
    generator = torch.Generator().manual_seed(1000 * rank + count)
    magnitudes = 10 ** torch.randint(-3, 4, (count,), generator=generator)
    return (torch.randn(count, generator=generator) * magnitudes).to(dtype)


def summed(algorithm: Algorithm, vector: Tensor) -> tuple[Tensor, CountedTraffic]:
    """The vector's sum over the ranks, with just the scratch that the algorithm says it needs."""
    group = dist.group.WORLD
    assert group is not None
    wire = MessageRounds(group)
    scratch = torch.empty(scratch_elements(algorithm, wire.ranks, len(vector)), dtype=vector.dtype)
    all_reduce(algorithm, vector, scratch, wire)
    return vector, wire.traffic


def run_all() -> Outcomes:
    """Every algorithm that these ranks allow, on every size."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outcomes = {}
    for algorithm in ALGORITHMS:
        for count in COUNTS if refusal(algorithm, ranks) is None else ():
            whole, traffic = summed(algorithm, whole_numbers(rank, count))
            random = {
                dtype: summed(algorithm, random_numbers(rank, count, dtype))[0]
                for dtype in (torch.float32, torch.bfloat16)
            }
            outcomes[algorithm, count] = Outcome(whole=whole, random=random, traffic=traffic)
    return outcomes


def run_alone(algorithm: Algorithm) -> tuple[Tensor, CountedTraffic]:
    return summed(algorithm, torch.arange(3.0))


def run_one(algorithm: Algorithm) -> None:
    summed(algorithm, torch.zeros(8))


@pytest.fixture(scope="module")
def outcomes(on_ranks: OnRanks) -> Callable[[int], list[Outcomes]]:
    """By number of ranks, the outcomes of each rank."""
    known: dict[int, list[Outcomes]] = {}

    def on(ranks: int) -> list[Outcomes]:
        if ranks not in known:
            known[ranks] = on_ranks(ranks, run_all)
        return known[ranks]

    return on


@pytest.mark.parametrize(("ranks", "algorithm"), CASES)
def test_whole_numbers_are_summed_exactly_on_every_rank(
    ranks: int, algorithm: Algorithm, outcomes: Callable[[int], list[Outcomes]]
) -> None:
    for count in COUNTS:
        expected = torch.stack([whole_numbers(rank, count) for rank in range(ranks)]).double().sum(dim=0).float()
        for of_rank in outcomes(ranks):
            assert torch.equal(of_rank[algorithm, count].whole, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("ranks", "algorithm"), CASES)
def test_all_ranks_hold_the_same_bits_of_any_numbers(
    ranks: int, algorithm: Algorithm, dtype: torch.dtype, outcomes: Callable[[int], list[Outcomes]]
) -> None:
    for count in COUNTS:
        first, *others = [of_rank[algorithm, count].random[dtype] for of_rank in outcomes(ranks)]
        assert all(torch.equal(other, first) for other in others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("algorithm", ["sequential", "all_to_all", "parameter_server"])
@pytest.mark.parametrize("ranks", [3, 8])
def test_three_algorithms_add_in_the_order_of_the_ranks(
    ranks: int, algorithm: Algorithm, dtype: torch.dtype, outcomes: Callable[[int], list[Outcomes]]
) -> None:
    for count in COUNTS:
        expected = random_numbers(0, count, dtype)
        for rank in range(1, ranks):
            expected = expected + random_numbers(rank, count, dtype)
        assert torch.equal(outcomes(ranks)[0][algorithm, count].random[dtype], expected)


@pytest.mark.parametrize("ranks", [4, 8])
def test_recursive_doubling_adds_in_a_tree_of_neighbours(ranks: int, outcomes: Callable[[int], list[Outcomes]]) -> None:
    sums = [random_numbers(rank, COUNTS[-1], torch.float32) for rank in range(ranks)]
    while len(sums) > 1:
        sums = [left + right for left, right in zip(sums[::2], sums[1::2], strict=True)]
    assert torch.equal(outcomes(ranks)[0]["recursive_doubling", COUNTS[-1]].random[torch.float32], sums[0])


@pytest.mark.parametrize(("ranks", "algorithm"), CASES)
def test_rounds_and_bytes_are_those_of_the_law(
    ranks: int, algorithm: Algorithm, outcomes: Callable[[int], list[Outcomes]]
) -> None:
    for count in COUNTS:
        traffics = [of_rank[algorithm, count].traffic for of_rank in outcomes(ranks)]
        law = cost(algorithm, ranks, count, 4)
        assert max(traffic.rounds for traffic in traffics) == law.steps
        assert sum(traffic.sent_bytes for traffic in traffics) == law.total_bytes
        assert max(traffic.peak_bytes for traffic in traffics) == law.peak_node_bytes


def test_of_a_pair_that_halves_the_first_keeps_the_odd_element(outcomes: Callable[[int], list[Outcomes]]) -> None:
    # One element: ranks 2 and 3 give it to 0 and 1, rank 1 gives it to 0; then 0 sends it to 1, and both send it back.
    sent_bytes = [of_rank["recursive_halving", 1].traffic.sent_bytes for of_rank in outcomes(4)]
    assert sent_bytes == [8, 8, 4, 4]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_alone_nothing_is_sent(algorithm: Algorithm, on_ranks: OnRanks) -> None:
    ((vector, traffic),) = on_ranks(1, run_alone, algorithm)
    assert vector.tolist() == [0.0, 1.0, 2.0]
    assert traffic == CountedTraffic()


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "recursive_halving"])
def test_ranks_that_are_no_power_of_two_are_refused(algorithm: Algorithm, on_ranks: OnRanks) -> None:
    with pytest.raises(ValueError, match=f"^{algorithm} needs a power of two"):
        on_ranks(3, run_one, algorithm)
