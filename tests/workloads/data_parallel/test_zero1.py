"""The spec of `zero1` tells how unevenly whole weights are divided."""

from __future__ import annotations

from tests.workloads.training.setups import small_setup
from workloads.cost_models.shape import Shape
from workloads.data_parallel.spec import Zero1Spec

# Elements: embedding and head 400; gate, up and down 32; q, k, v and o 16; three norms 4.
TWO_TABLES = Shape(layers=1, width=4, heads=1, kv_heads=1, mlp_width=8, vocabulary=100, sequence=8, batch=9)


def test_a_run_says_what_each_rank_holds_of_the_optimizer() -> None:
    (note,) = Zero1Spec().notes(small_setup("zero1", ranks=3, shape=TWO_TABLES))
    # Two moments of 4 bytes an element, and a count of 4 bytes for each of 1, 1 and 10 weights.
    assert note == (
        "optimizer states are sharded weight by weight, and so unevenly: bytes by rank are 3,204, 3,204, 1,416"
    )


def test_one_rank_has_nothing_to_divide() -> None:
    assert Zero1Spec().notes(small_setup("zero1", shape=TWO_TABLES)) == []
