"""Which sizes `matmul` measures, what they take, and what it refuses."""

from __future__ import annotations

import pytest

from tests.workloads.probes.small_probes import small_probe
from workloads.probes.spec import MatmulSpec, sizes
from workloads.spec import Device, Precision


def test_sizes_grow_by_the_factor_and_never_beyond_the_largest() -> None:
    assert sizes(small_probe(MatmulSpec(), {"min_size": 10, "max_size": 300, "factor": 3})) == (10, 30, 90, 270)


def test_the_largest_size_is_itself_measured_where_the_factor_meets_it() -> None:
    assert sizes(small_probe(MatmulSpec(), {"min_size": 64, "max_size": 256})) == (64, 128, 256)


@pytest.mark.parametrize(("device", "largest"), [("cpu", 1024), ("cuda", 16384)])
def test_without_a_largest_size_it_is_the_devices(device: Device, largest: int) -> None:
    assert max(sizes(small_probe(MatmulSpec(), device=device))) == largest


def test_each_size_is_one_measurement() -> None:
    assert MatmulSpec().measurements(small_probe(MatmulSpec(), {"min_size": 64, "max_size": 512})) == 4


@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("bf16", 2), ("fp16", 2)])
def test_a_rank_holds_three_matrices_of_the_largest_size(precision: Precision, element_bytes: int) -> None:
    setup = small_probe(MatmulSpec(), {"min_size": 50, "max_size": 100}, precision=precision)
    assert MatmulSpec().working_bytes(setup, 0) == 3 * 100 * 100 * element_bytes


def test_a_smallest_size_above_the_largest_is_refused_with_what_would_work() -> None:
    refused = MatmulSpec().refusals(small_probe(MatmulSpec(), {"min_size": 512, "max_size": 256}))
    assert refused == ["option min_size is 512 and max_size 256; max_size=512 would measure one size"]


def test_a_smallest_size_above_the_devices_largest_is_refused_with_its_origin() -> None:
    (refused,) = MatmulSpec().refusals(small_probe(MatmulSpec(), {"min_size": 2048}))
    assert "max_size 1024, its default on cpu; max_size=2048 would" in refused


def test_the_defaults_run_on_any_number_of_ranks() -> None:
    for ranks in (1, 2, 8):
        setup = small_probe(MatmulSpec(), ranks=ranks)
        assert MatmulSpec().refusals(setup) == []
        assert MatmulSpec().mesh(setup) == {"data": ranks}
