"""Costs of the textbook's algorithms against the algorithms played through, message by message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from workloads.cost_models.communication import Link, collective_time_s
from workloads.probes.cost_model import ALGORITHMS, ORDERS, Algorithm, Cost, cost, refusal, time_s

Message = tuple[int, int, range]
"""Source, destination, and the elements that travel."""

GROWTH: dict[str, Callable[[int], float]] = {
    "O(1/n)": lambda n: 1 / n,
    "O(1)": lambda _: 1.0,
    "O(log n)": lambda n: math.log2(n),
    "O(n)": lambda n: float(n),
    "O(n log n)": lambda n: n * math.log2(n),
    "O(n^2)": lambda n: float(n**2),
}


def chunk(number: int, ranks: int, count: int) -> range:
    """As torch.tensor_split cuts."""
    start = number * (count // ranks) + min(number, count % ranks)
    return range(start, start + count // ranks + (number < count % ranks))


def steps_of(algorithm: Algorithm, ranks: int, count: int) -> Iterator[tuple[bool, list[Message]]]:
    """Each step's messages, and whether they are added to what the destination holds, or take its place."""
    whole, everyone = range(count), range(ranks)
    distances = [1 << level for level in range(ranks.bit_length() - 1)]
    match algorithm:
        case "sequential":
            for rank in everyone[:-1]:
                yield True, [(rank, rank + 1, whole)]
            for rank in everyone[:0:-1]:
                yield False, [(rank, rank - 1, whole)]
        case "ring":
            for is_added, lag in ((True, 0), (False, 1)):
                for turn in range(ranks - 1):
                    yield (
                        is_added,
                        [
                            (rank, (rank + 1) % ranks, chunk((rank + lag - turn) % ranks, ranks, count))
                            for rank in everyone
                        ],
                    )
        case "all_to_all":
            yield True, [(rank, other, whole) for rank in everyone for other in everyone if rank != other]
        case "recursive_doubling":
            for distance in distances:
                yield True, [(rank, rank ^ distance, whole) for rank in everyone]
        case "recursive_halving":
            held = dict.fromkeys(everyone, whole)
            for distance in reversed(distances):
                kept, sent = {}, []
                for rank, mine in held.items():
                    cut = (len(mine) + 1) // 2
                    first, second = mine[:cut], mine[cut:]
                    kept[rank] = second if rank & distance else first
                    sent.append((rank, rank ^ distance, first if rank & distance else second))
                held = kept
                yield True, sent
            for distance in distances:
                yield False, [(rank, rank ^ distance, mine) for rank, mine in held.items()]
                held = {
                    rank: range(
                        min(mine.start, held[rank ^ distance].start), max(mine.stop, held[rank ^ distance].stop)
                    )
                    for rank, mine in held.items()
                }
        case "parameter_server":
            yield True, [(rank, 0, whole) for rank in everyone[1:]]
            yield False, [(0, rank, whole) for rank in everyone[1:]]


def play(algorithm: Algorithm, ranks: int, count: int, element_bytes: int) -> tuple[list[list[int]], Cost]:
    """The ranks' vectors in the end, and what was counted on the way. A rank starts with a power of two of its own."""
    vectors = [[2**rank] * count for rank in range(ranks)]
    busiest, total = [], 0
    for is_added, messages in steps_of(algorithm, ranks, count):
        sent: Counter[int] = Counter()
        received: Counter[int] = Counter()
        before = [list(vector) for vector in vectors]
        for source, destination, elements in messages:
            sent[source] += len(elements) * element_bytes
            received[destination] += len(elements) * element_bytes
            for element in elements:
                held = vectors[destination][element] if is_added else 0
                vectors[destination][element] = held + before[source][element]
        busiest.append(max([*sent.values(), *received.values()]))
        total += sent.total()
    return vectors, Cost(
        steps=len(busiest), peak_node_bytes=max(busiest), total_bytes=total, critical_bytes=sum(busiest)
    )


@pytest.mark.parametrize("count", [0, 1, 3, 8, 13, 64])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cost_is_what_the_algorithm_played_through_sends(algorithm: Algorithm, ranks: int, count: int) -> None:
    if refusal(algorithm, ranks) is not None:
        return
    vectors, counted = play(algorithm, ranks, count, 4)
    assert vectors == [[2**ranks - 1] * count] * ranks
    assert cost(algorithm, ranks, count, 4) == counted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_rank_pays_nothing(algorithm: Algorithm) -> None:
    assert cost(algorithm, 1, 10, 4) == Cost(steps=0, peak_node_bytes=0, total_bytes=0, critical_bytes=0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_costs_grow_as_the_textbook_says(algorithm: Algorithm) -> None:
    few, many = 2**10, 2**16
    small, large = (cost(algorithm, ranks, 2**20, 4) for ranks in (few, many))
    says = ORDERS[algorithm]
    for word, one, other in (
        (says.steps, small.steps, large.steps),
        (says.peak_node, small.peak_node_bytes, large.peak_node_bytes),
        (says.total, small.total_bytes, large.total_bytes),
    ):
        grown = GROWTH[word]
        assert other / one == pytest.approx(grown(many) / grown(few), rel=0.01)


def test_a_ring_takes_the_time_of_nccls() -> None:
    link = Link(bandwidth_bytes_per_second=300e9, latency_s=1e-6)
    elapsed_s = time_s(cost("ring", 8, 250_000_000, 4), link)
    assert elapsed_s == pytest.approx(collective_time_s("all_reduce", 10**9, 8, link, "nccl"))


def test_time_is_latency_by_steps_and_the_busiest_ranks_bytes() -> None:
    link = Link(bandwidth_bytes_per_second=10, latency_s=3)
    assert time_s(cost("parameter_server", 5, 10, 1), link) == pytest.approx(2 * 3 + 2 * 40 / 10)


def test_a_small_vector_wants_few_steps_and_a_large_one_few_bytes() -> None:
    link = Link(bandwidth_bytes_per_second=1e9, latency_s=5e-6)
    small_s = {name: time_s(cost(name, 8, 1, 4), link) for name in ALGORITHMS}
    large_s = {name: time_s(cost(name, 8, 2**28, 4), link) for name in ALGORITHMS}
    assert sorted(small_s, key=small_s.__getitem__)[0] == "all_to_all"
    assert set(sorted(large_s, key=large_s.__getitem__)[:2]) == {"ring", "recursive_halving"}


@pytest.mark.parametrize("algorithm", ["recursive_doubling", "recursive_halving"])
def test_recursion_needs_a_power_of_two_and_says_which(algorithm: Algorithm) -> None:
    assert refusal(algorithm, 6) == f"{algorithm} needs a power of two of ranks and there are 6; use 4 or 8, or ring"
    assert refusal(algorithm, 8) is None
    with pytest.raises(ValueError, match="needs a power of two of ranks and there are 6; use 4 or 8"):
        cost(algorithm, 6, 10, 4)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_ranks_are_refused(algorithm: Algorithm) -> None:
    assert refusal(algorithm, 0) == "ranks is 0; it must be 1 or more"


@pytest.mark.parametrize("algorithm", ["sequential", "ring", "all_to_all", "parameter_server"])
def test_others_take_any_number_of_ranks(algorithm: Algorithm) -> None:
    assert refusal(algorithm, 6) is None


@pytest.mark.parametrize(("element_count", "element_bytes"), [(-1, 4), (1, 0)])
def test_an_impossible_vector_is_refused(element_count: int, element_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"a vector cannot have .* elements of .* bytes"):
        cost("ring", 4, element_count, element_bytes)
