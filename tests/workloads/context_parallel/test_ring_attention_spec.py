"""The spec of `ring_attention`: what it refuses with what would work, and what it says of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.context_parallel.spec import RingAttentionSpec
from workloads.cost_models.memory import paper_activation_bytes
from workloads.spec import OptionValue


def setup(options: Mapping[str, OptionValue] | None = None, *, ranks: int = 2, sequence: int = 16) -> SmallSetup:
    return small_setup("ring_attention", ranks=ranks, shape=replace(SMALL, sequence=sequence), options=options)


@pytest.mark.parametrize(
    "options",
    [{}, {"layout": "plain"}, {"causal": False}, {"overlap": False, "accumulate": 2}, {"checkpoint": "selective"}],
)
def test_what_runs_is_not_refused(options: dict[str, OptionValue]) -> None:
    assert RingAttentionSpec().refusals(setup(options)) == []


def test_a_sequence_that_two_chunks_a_rank_do_not_divide_is_refused_with_those_that_they_do() -> None:
    (reason,) = RingAttentionSpec().refusals(setup(ranks=4, sequence=12))
    assert reason == "sequence 12 cannot be cut into 8 equal chunks; --sequence 8 or 16 would fit"
    assert RingAttentionSpec().refusals(setup({"layout": "plain"}, ranks=4, sequence=12)) == []


def test_a_compiled_block_is_refused() -> None:
    (reason,) = RingAttentionSpec().refusals(setup({"compile": "default"}))
    assert reason.startswith("option compile is default; torch cannot compile the sends and receives")


@pytest.mark.parametrize(("width", "heads"), [(16, 4), (1040, 2)])
def test_heads_that_no_kernel_of_a_gpu_takes_are_refused_there_only(width: int, heads: int) -> None:
    narrow = replace(setup(), shape=replace(SMALL, width=width, heads=heads, kv_heads=1))
    (reason,) = RingAttentionSpec().refusals(replace(narrow, device="cuda", backend="nccl"))
    assert reason.startswith(f"width / heads is {width // heads}; attention's kernels on a GPU take multiples of 8")
    assert RingAttentionSpec().refusals(narrow) == []


def test_attention_without_a_mask_is_not_comparable() -> None:
    assert RingAttentionSpec().incomparable(setup()) is None
    assert RingAttentionSpec().incomparable(setup({"causal": False})) == (
        "causal is false, and single's attention is causal; causal=true is comparable"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"causal": False}, "losses mean nothing"),
        ({"checkpoint": "selective"}, "selective checkpointing keeps attention's output for the keys of each rank"),
        ({}, "in a trace a gloo message lasts until the rank waits for it"),
    ],
)
def test_what_a_reader_must_know_is_told(options: dict[str, OptionValue], words: str) -> None:
    assert words in " ".join(RingAttentionSpec().notes(setup(options)))


def test_alone_on_a_ring_nothing_is_sent_nor_told() -> None:
    assert RingAttentionSpec().transfers(setup(ranks=1)) == ()
    assert RingAttentionSpec().notes(setup(ranks=1)) == []


def test_all_ranks_read_the_same_sequences() -> None:
    assert RingAttentionSpec().data_ranks(setup(ranks=4)) == 1
    assert RingAttentionSpec().training_ranks(setup(ranks=4)) == 4


def test_the_papers_activations_are_shared_out_over_the_ranks() -> None:
    assert (
        RingAttentionSpec().paper_activations(setup(ranks=4)) == paper_activation_bytes(SMALL, SMALL.batch, "none") // 4
    )
