"""The spec of `all_reduce`: which algorithms and sizes a case means, and what it refuses."""

from __future__ import annotations

import pytest

from tests.workloads.probes.small_probes import SmallProbe, small_probe
from workloads.cost_models.communication import CHECK_BYTES
from workloads.probes.cost_model import ALGORITHMS, Algorithm
from workloads.probes.spec import AllReduceSpec, chosen_algorithms, scratch_elements, vector_sizes
from workloads.spec import OptionValue, Precision


def setup(ranks: int = 4, *, precision: Precision = "fp32", **options: OptionValue) -> SmallProbe:
    return small_probe(AllReduceSpec(), options, ranks=ranks, precision=precision)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_all_means_all_where_ranks_are_a_power_of_two(ranks: int) -> None:
    assert chosen_algorithms(setup(ranks)) == list(ALGORITHMS)


def test_all_means_what_three_ranks_allow() -> None:
    assert chosen_algorithms(setup(3)) == ["sequential", "ring", "all_to_all", "parameter_server"]
    assert AllReduceSpec().refusals(setup(3)) == []


def test_named_algorithms_come_once_and_in_the_textbooks_order() -> None:
    asked = setup(algorithms="parameter_server, ring,ring")
    assert AllReduceSpec().refusals(asked) == []
    assert chosen_algorithms(asked) == ["ring", "parameter_server"]


def test_an_algorithm_that_was_asked_for_is_refused_on_ranks_that_it_cannot_have() -> None:
    (reason,) = AllReduceSpec().refusals(setup(6, algorithms="ring,recursive_halving"))
    assert reason == "recursive_halving needs a power of two of ranks and there are 6; use 4 or 8, or ring"


@pytest.mark.parametrize(
    ("text", "offer"),
    [("ring,all2all", 'did you mean "all_to_all"? '), ("library", ""), ("", ""), ("all,ring", "")],
)
def test_an_unknown_algorithm_is_refused_with_those_there_are(text: str, offer: str) -> None:
    (reason,) = AllReduceSpec().refusals(setup(algorithms=text))
    assert reason.startswith(f'option algorithms is "{text}"; {offer}it may be all, or some of sequential, ring,')


def test_sizes_grow_by_the_factor_and_stay_within_the_most() -> None:
    assert vector_sizes(setup()) == (1024, 16384, 262144, 4194304)
    assert vector_sizes(setup(min_bytes=12, max_bytes=100, factor=2)) == (12, 24, 48, 96)


def test_the_largest_size_suits_the_link() -> None:
    on_nccl = small_probe(AllReduceSpec(), ranks=8, device="cuda", backend="nccl")
    assert vector_sizes(on_nccl) == tuple(2**10 * 4**power for power in range(10))
    assert AllReduceSpec().working_bytes(on_nccl, 0) == 8 * 2**28 + CHECK_BYTES


def test_a_factor_by_which_no_size_grows_is_refused() -> None:
    (reason,) = AllReduceSpec().refusals(setup(factor=1))
    assert reason == "option factor is 1, with which sizes do not grow; it may be 0 or at least 2"


def test_sizes_that_are_none_are_refused() -> None:
    (reason,) = AllReduceSpec().refusals(setup(min_bytes=2048, max_bytes=1024))
    assert reason == "option min_bytes is 2048 and max_bytes 1024; min_bytes must be at most max_bytes"


@pytest.mark.parametrize(
    ("precision", "least", "fitting"),
    [("fp32", 1022, "1020 or 1024"), ("fp32", 3, "4"), ("bf16", 1023, "1022 or 1024")],
)
def test_a_size_that_cuts_an_element_is_refused_with_those_that_do_not(
    precision: Precision, least: int, fitting: str
) -> None:
    (reason,) = AllReduceSpec().refusals(setup(precision=precision, min_bytes=least))
    assert reason.endswith(f"; {fitting} would fit")


def test_measurements_are_those_of_the_library_and_of_each_algorithm_on_each_size() -> None:
    assert AllReduceSpec().measurements(setup(4)) == 4 * 7
    assert AllReduceSpec().measurements(setup(3)) == 4 * 5
    assert AllReduceSpec().measurements(setup(3, algorithms="ring", factor=64)) == 3 * 2


@pytest.mark.parametrize(
    ("algorithms", "vectors"), [("ring", 1.25), ("recursive_halving", 1.5), ("sequential", 2), ("ring,all_to_all", 4)]
)
def test_working_bytes_are_the_vector_what_arrives_beside_it_and_the_check(algorithms: str, vectors: float) -> None:
    largest = 4 * 2**20
    assert AllReduceSpec().working_bytes(setup(4, algorithms=algorithms), 0) == largest * vectors + CHECK_BYTES


@pytest.mark.parametrize(
    ("algorithm", "elements"),
    [
        ("sequential", 10),
        ("ring", 4),
        ("all_to_all", 20),
        ("recursive_doubling", 10),
        ("recursive_halving", 5),
        ("parameter_server", 20),
    ],
)
def test_scratch_holds_what_arrives_in_a_round(algorithm: Algorithm, elements: int) -> None:
    assert scratch_elements(algorithm, 3, 10) == elements
