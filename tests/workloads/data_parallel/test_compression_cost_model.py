"""Bytes of compressed gradients, against sums made by hand and against what whole gradients send."""

from __future__ import annotations

import pytest

from tests.workloads.training.setups import SMALL
from workloads.cost_models.communication import wire_bytes
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import Transfer
from workloads.data_parallel import cost_model as data_parallel
from workloads.data_parallel.cost_model import PowerBytes

# One block: q and o 4 x 4, k and v 2 x 4, gate and up 6 x 4, down 4 x 6; embedding and head 5 x 4; three norms of 4.
TINY = Shape(layers=1, width=4, heads=2, kv_heads=1, mlp_width=6, vocabulary=5, sequence=2, batch=1)


def test_the_weights_are_matrices_and_vectors() -> None:
    assert sum(rows * columns for rows, columns in data_parallel.matrices(TINY)) == 2 * 16 + 2 * 8 + 3 * 24 + 2 * 20
    assert data_parallel.vectors(TINY) == (4, 4, 4)


def test_rounding_halves_the_bytes() -> None:
    assert data_parallel.rounded_bytes(SMALL) * 2 == 4 * SMALL.parameters()


def test_factors_of_rank_1_have_a_row_and_a_column_for_each_matrix() -> None:
    rows = 4 + 4 + 2 + 2 + 6 + 6 + 4 + 5 + 5
    columns = 4 * 6 + 6 + 4 * 2
    assert data_parallel.powersgd_bytes(TINY, 1) == PowerBytes(left_bytes=4 * (rows + 12), right_bytes=4 * columns)


def test_factors_of_rank_3_are_cut_to_rank_2_where_a_side_is_2() -> None:
    rows = 3 * (4 + 4 + 6 + 6 + 4 + 5 + 5) + 2 * (2 + 2)
    columns = 3 * (4 + 4 + 4 + 4 + 6 + 4 + 4) + 2 * (4 + 4)
    assert data_parallel.powersgd_bytes(TINY, 3) == PowerBytes(left_bytes=4 * (rows + 12), right_bytes=4 * columns)


def test_the_largest_rank_is_the_largest_of_the_smaller_sides() -> None:
    assert data_parallel.largest_rank(TINY) == 4
    assert data_parallel.largest_rank(PRESETS["8b"]) == 4096


def test_beyond_the_largest_rank_nothing_grows() -> None:
    assert data_parallel.powersgd_bytes(TINY, 4) == data_parallel.powersgd_bytes(TINY, 100)


@pytest.mark.parametrize(
    ("elements", "density", "kept"), [(1000, 0.01, 10), (149, 0.01, 1), (151, 0.01, 2), (10, 0.01, 1), (7, 1.0, 7)]
)
def test_top_k_keeps_its_share_and_at_least_one(elements: int, density: float, kept: int) -> None:
    assert data_parallel.kept_elements(elements, density) == kept


def test_top_k_sends_a_value_and_an_index_for_each_element_kept() -> None:
    assert data_parallel.top_k_bytes(TINY, 1e-9) == 8 * TINY.parameter_tensors()
    assert data_parallel.top_k_bytes(TINY, 1.0) == 8 * TINY.parameters()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_at_a_density_of_one_over_the_ranks_top_k_sends_what_the_whole_gradients_would(ranks: int) -> None:
    gathered_bytes = ranks * data_parallel.top_k_bytes(SMALL, 1 / ranks)
    gathered = Transfer(collective="all_gather", axis="data", payload_bytes=gathered_bytes)
    whole = Transfer(collective="all_reduce", axis="data", payload_bytes=4 * SMALL.parameters())
    assert wire_bytes(gathered, ranks, "nccl") == wire_bytes(whole, ranks, "nccl")


def test_the_largest_weight_is_the_embedding_or_a_part_of_the_mlp() -> None:
    assert data_parallel.largest_weight(TINY) == 24
    assert data_parallel.largest_weight(PRESETS["8b"]) == 128256 * 4096
