"""The predicted peak of a pipeline rank against the live tensors that MemTracker finds in real steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import Shape
from workloads.options import microbatch
from workloads.pipeline_parallel.memory import pipeline_step_peak
from workloads.pipeline_parallel.spec import counts
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision

DEEP = Shape(layers=8, width=32, heads=4, kv_heads=1, mlp_width=96, vocabulary=40, sequence=48, batch=16)
"""Most of it is activations."""
WORDY = Shape(layers=4, width=48, heads=4, kv_heads=2, mlp_width=128, vocabulary=900, sequence=16, batch=8)
"""Most of it is head and loss, or the embedding's gradient."""
HEAVY = Shape(layers=4, width=128, heads=4, kv_heads=2, mlp_width=352, vocabulary=300, sequence=4, batch=8)
"""Most of it is weights, so that the peak is where their gradients are."""


def predict(setup: SmallSetup, rank: int) -> Prediction:
    pipeline = spec_of(setup.strategy).pipeline(setup)
    assert pipeline is not None
    return pipeline_step_peak(pipeline, microbatch(setup, 1), counts(setup, pipeline.stages), rank)


def tracked(setups: Sequence[SmallSetup]) -> list[dict[str, int]]:
    """Live bytes by category at the peak of a step of each setup."""
    return [peak_by_category(setup) for setup in setups]


def staged(
    strategy: str, *, ranks: int = 2, shape: Shape = SMALL, precision: Precision = "fp32", **options: OptionValue
) -> SmallSetup:
    return small_setup(strategy, ranks=ranks, shape=shape, precision=precision, options=options)


def assert_predicted(setups: Sequence[SmallSetup], on_ranks: OnRanks) -> None:
    """The setups have as many ranks, which build one after the other."""
    for rank, each in enumerate(on_ranks(setups[0].ranks, tracked, setups)):
        for setup, live in zip(setups, each, strict=True):
            prediction, what = predict(setup, rank), f"{setup} on rank {rank}: {live}"
            assert prediction.parameters_bytes == live["parameters"], what
            assert prediction.optimizer_bytes == live["optimizer"], what
            assert prediction.buffers_bytes == live["buffers"], what
            assert prediction.total_bytes == pytest.approx(live["total"], rel=0.005), what


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["pipeline_naive", "gpipe", "one_f_one_b", "interleaved"])
def test_the_peak_is_as_predicted_whatever_there_is_most_of(strategy: str, on_ranks: OnRanks) -> None:
    setups = [
        staged(strategy),
        staged(strategy, shape=HEAVY),
        staged(strategy, shape=DEEP, checkpoint="full"),
        staged(strategy, shape=DEEP, precision="bf16", checkpoint="selective"),
        staged(strategy, shape=WORDY, checkpoint="full"),
        staged(strategy, shape=WORDY, precision="bf16", balance="flops"),
        staged(strategy, shape=HEAVY, precision="bf16"),
    ]
    assert_predicted(setups, on_ranks)


@pytest.mark.slow
def test_the_peak_of_each_of_four_ranks_is_as_predicted(on_ranks: OnRanks) -> None:
    setups = [
        staged("gpipe", ranks=4, shape=DEEP, microbatches=8),
        staged("one_f_one_b", ranks=4, shape=DEEP, microbatches=8, precision="bf16"),
        staged("interleaved", ranks=4, shape=DEEP, microbatches=8, checkpoint="full"),
    ]
    assert_predicted(setups, on_ranks)


@pytest.mark.slow
def test_activations_of_32_small_microbatches_are_as_predicted(on_ranks: OnRanks) -> None:
    """Inputs are copied on the first stage, which is 0.5 % of them here."""
    setup = staged("one_f_one_b", ranks=4, shape=replace(DEEP, batch=32), microbatches=32)
    for rank, (live,) in enumerate(on_ranks(4, tracked, [setup])):
        prediction = predict(setup, rank)
        assert prediction.activations_bytes == pytest.approx(live["activations"], rel=0.003), (rank, live)
        assert prediction.total_bytes == pytest.approx(live["total"], rel=0.001), (rank, live)


def test_the_card_tells_the_rank_that_holds_most() -> None:
    setup = staged("one_f_one_b", ranks=4, shape=DEEP, microbatches=8)
    ranks = [predict(setup, rank) for rank in range(4)]
    most = max(ranks, key=lambda peak: peak.total_bytes)
    assert spec_of("one_f_one_b").peak(setup) == most == ranks[0]


@pytest.mark.parametrize(
    ("strategy", "options", "words"),
    [
        ("zero_bubble", {}, "half of a backward"),
        ("zero_bubble", {"variant": "zbv"}, "half of a backward"),
        ("gpipe", {"balance": "measured"}, "only the run measures"),
        ("gpipe", {"compile": "default"}, "compile"),
    ],
)
def test_what_the_law_does_not_follow_is_not_covered(
    strategy: str, options: dict[str, OptionValue], words: str
) -> None:
    reason = spec_of(strategy).peak(small_setup(strategy, ranks=2, options=options))
    assert isinstance(reason, Absent)
    assert words in reason.reason
