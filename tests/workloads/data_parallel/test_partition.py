"""Whole weights go to ranks as torch's ZeRO-1 gives them; tests of the strategy compare the bytes with torch's own."""

from __future__ import annotations

from collections import Counter

import pytest

from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import elements, model_weights, replicated_states
from workloads.data_parallel.cost_model import elements_by_rank, partition, partitioned_states, sent_bytes

TWO_TABLES = Shape(layers=1, width=4, heads=1, kv_heads=1, mlp_width=8, vocabulary=100, sequence=8, batch=8)
"""Elements, by size: embedding and head 400; gate, up and down 32; q, k, v and o 16; three norms 4."""


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, (972,)),
        # A table each; then gate, down, v and two norms, and up, q, k, o and a norm.
        (2, (488, 484)),
        # The tables fill a rank each; the third has all the rest.
        (3, (400, 400, 172)),
        # A table each; then gate, down, v and two norms, and up, q, k, o and a norm.
        (4, (400, 400, 88, 84)),
    ],
)
def test_the_largest_goes_first_to_who_has_least(ranks: int, expected: tuple[int, ...]) -> None:
    assert elements_by_rank(TWO_TABLES, ranks) == expected


def test_a_rank_without_weights_holds_no_state_and_sends_one_element() -> None:
    shape, ranks = TWO_TABLES, TWO_TABLES.parameter_tensors() + 1
    assert elements_by_rank(shape, ranks)[-1] == 0
    assert partitioned_states(shape, rank=ranks - 1, ranks=ranks).optimizer_bytes == 0
    assert sent_bytes(shape, ranks) == 4 * (shape.parameters() + 1)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_each_weight_has_one_rank(name: str, ranks: int) -> None:
    held = Counter(weight for weights in partition(PRESETS[name], ranks) for weight in weights)
    assert held == Counter(model_weights(PRESETS[name]))


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_no_rank_has_more_than_a_fair_share_and_the_largest_weight(ranks: int) -> None:
    shape = PRESETS["125m"]
    largest = max(elements([weight]) for weight in model_weights(shape))
    assert max(elements_by_rank(shape, ranks)) <= shape.parameters() / ranks + largest


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_ranks_together_hold_one_replicas_optimizer_states(ranks: int) -> None:
    whole = replicated_states(TWO_TABLES)
    states = [partitioned_states(TWO_TABLES, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert sum(state.optimizer_bytes for state in states) == whole.optimizer_bytes
    assert {state.parameters_bytes for state in states} == {whole.parameters_bytes}
    assert {state.gradients_bytes for state in states} == {whole.gradients_bytes}
