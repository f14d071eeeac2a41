"""The spec of `tensor_parallel`: what it refuses with what would work, and what it says of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.absent import Absent
from workloads.cost_models.memory import paper_states
from workloads.cost_models.shape import Shape
from workloads.registry import spec_of
from workloads.spec import OptionValue
from workloads.tensor_parallel.spec import TensorParallelSpec


def setup(
    options: Mapping[str, OptionValue] | None = None, *, ranks: int = 2, shape: Shape = SMALL, device: str = "cpu"
) -> SmallSetup:
    small = small_setup("tensor_parallel", ranks=ranks, shape=shape, options=options)
    return replace(small, device="cuda", backend="nccl") if device == "cuda" else small


@pytest.mark.parametrize(
    "options",
    [{}, {"sequence_parallel": True}, {"loss_parallel": True, "accumulate": 2}, {"checkpoint": "full"}],
)
def test_what_runs_is_not_refused(options: dict[str, OptionValue]) -> None:
    assert TensorParallelSpec().refusals(setup(options)) == []
    assert TensorParallelSpec().refusals(setup(options, ranks=1)) == []


def test_heads_that_ranks_cannot_share_are_refused_with_the_ranks_that_could() -> None:
    (reason,) = TensorParallelSpec().refusals(setup(ranks=4))
    assert reason == (
        "kv_heads 2 cannot be shared equally by 4 ranks; 1 or 2 ranks would fit heads, kv_heads, mlp_width, vocabulary;"
        " no kv head is copied to a second rank"
    )


@pytest.mark.parametrize("dimension", ["mlp_width", "vocabulary"])
def test_every_dimension_that_is_divided_must_be_divisible(dimension: str) -> None:
    changes: dict[str, Any] = {dimension: 65}
    (reason,) = TensorParallelSpec().refusals(setup(shape=replace(SMALL, **changes)))
    assert reason.startswith(f"{dimension} 65 cannot be shared equally by 2 ranks; 1 rank would fit")


def test_the_sequence_is_divided_with_the_stream_only() -> None:
    odd = replace(SMALL, sequence=15)
    assert TensorParallelSpec().refusals(setup(shape=odd)) == []
    (reason,) = TensorParallelSpec().refusals(setup({"sequence_parallel": True}, shape=odd))
    assert reason.startswith("sequence 15 cannot be shared equally by 2 ranks")


def test_compiled_blocks_are_not_run_again_whole() -> None:
    options: dict[str, OptionValue] = {"compile": "default", "checkpoint": "full"}
    (reason,) = TensorParallelSpec().refusals(setup(options))
    assert reason.startswith("option compile is default with checkpoint=full")
    assert TensorParallelSpec().refusals(setup(options, ranks=1)) == []
    assert TensorParallelSpec().refusals(setup({**options, "checkpoint": "selective"})) == []


def test_collectives_are_not_hidden_on_a_cpu() -> None:
    (reason,) = TensorParallelSpec().refusals(
        setup({"async_tp": True, "compile": "default", "sequence_parallel": True})
    )
    assert reason.startswith("option async_tp is true on cpu; it needs torch's symmetric memory")


@pytest.mark.parametrize(
    ("options", "ranks", "words"),
    [
        ({"sequence_parallel": True}, 2, "with compile=none, but the compiler is what"),
        ({"compile": "default"}, 2, "with sequence_parallel=false, whose all_reduce it cannot overlap"),
        ({"compile": "default", "sequence_parallel": True}, 1, "on 1 rank, which sends nothing"),
    ],
)
def test_collectives_are_hidden_in_compiled_blocks_of_a_divided_stream_only(
    options: dict[str, OptionValue], ranks: int, words: str
) -> None:
    (reason,) = TensorParallelSpec().refusals(setup({"async_tp": True, **options}, ranks=ranks, device="cuda"))
    assert words in reason


def test_where_torch_can_hide_collectives_they_are_not_refused() -> None:
    options: dict[str, OptionValue] = {"async_tp": True, "compile": "default", "sequence_parallel": True}
    assert TensorParallelSpec().refusals(setup(options, device="cuda")) == []


def test_all_ranks_read_the_same_sequences() -> None:
    assert TensorParallelSpec().data_ranks(setup(ranks=2)) == 1
    assert TensorParallelSpec().training_ranks(setup(ranks=2)) == 2


def test_the_papers_states_are_shared_out_over_the_ranks() -> None:
    expected = paper_states(SMALL.parameters(), stage=0, data_ranks=1, model_ranks=2)
    assert TensorParallelSpec().paper_states(setup()) == expected
    assert expected.optimizer_bytes == 6 * SMALL.parameters()


def test_columns_of_the_embedding_are_exchanged_by_what_the_device_has() -> None:
    options = {"sequence_parallel": True}
    assert TensorParallelSpec().transfers(setup(options))[0].collective == "all_gather"
    assert TensorParallelSpec().transfers(setup(options, device="cuda"))[0].collective == "all_to_all"


def test_a_reader_is_told_what_the_cpu_sends_in_place_of_an_exchange() -> None:
    options: dict[str, OptionValue] = {"sequence_parallel": True}
    (note,) = TensorParallelSpec().notes(setup(options))
    assert "by an all_gather of the full tensor" in note
    assert TensorParallelSpec().notes(setup(options, device="cuda")) == []
    assert TensorParallelSpec().notes(setup()) == []


def test_one_rank_alone_has_the_peak_of_single() -> None:
    assert TensorParallelSpec().peak(setup(ranks=1)) == spec_of("single").peak(small_setup())


@pytest.mark.parametrize(("options", "words"), [({"compile": "default"}, "a compiled block")])
def test_a_peak_that_is_not_covered_says_why(options: dict[str, OptionValue], words: str) -> None:
    absent = TensorParallelSpec().peak(setup(options))
    assert isinstance(absent, Absent)
    assert words in absent.reason
