"""The predicted peak of strategies on `fully_shard` against the live tensors that MemTracker finds in real steps."""

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
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision

pytestmark = pytest.mark.slow

DEEP = Shape(layers=6, width=32, heads=4, kv_heads=1, mlp_width=96, vocabulary=40, sequence=48, batch=8)
"""Most of it is activations."""
WORDY = Shape(layers=2, width=48, heads=4, kv_heads=2, mlp_width=128, vocabulary=900, sequence=16, batch=8)
"""Most of it is head and loss."""
HEAVY = Shape(layers=4, width=128, heads=4, kv_heads=2, mlp_width=352, vocabulary=300, sequence=4, batch=8)
"""Most of it is weights, so that the peak is where they are gathered, or their gradients reduced."""


def predict(setup: SmallSetup) -> Prediction:
    prediction = spec_of(setup.strategy).peak(setup)
    assert isinstance(prediction, Prediction), prediction.reason
    return prediction


def tracked(setups: Sequence[SmallSetup]) -> list[dict[str, int]]:
    """Live bytes by category at the peak of a step of each setup."""
    return [peak_by_category(setup) for setup in setups]


def sharded(
    strategy: str, *, shape: Shape = SMALL, precision: Precision = "fp32", **options: OptionValue
) -> SmallSetup:
    ranks = 4 if strategy == "hsdp" or "reshard" in options else 2
    options = {"weights": "autocast", **options}
    return small_setup(strategy, ranks=ranks, shape=shape, precision=precision, options=options)


def assert_predicted(setups: Sequence[SmallSetup], on_ranks: OnRanks) -> None:
    """The setups have ranks alike, which build one after the other."""
    for each in on_ranks(setups[0].ranks, tracked, setups):
        for setup, live in zip(setups, each, strict=True):
            prediction, what = predict(setup), f"{setup}: {live}"
            assert prediction.optimizer_bytes == live["optimizer"], what
            assert prediction.buffers_bytes == live["buffers"], what
            assert prediction.parameters_bytes == pytest.approx(live["parameters"], rel=0.01), what
            assert prediction.activations_bytes == pytest.approx(live["activations"], rel=0.1), what
            assert prediction.total_bytes == pytest.approx(live["total"], rel=0.02), what


@pytest.mark.parametrize("strategy", ["zero2", "fsdp"])
def test_the_peak_is_as_predicted_in_each_way_of_checkpointing(strategy: str, on_ranks: OnRanks) -> None:
    setups = [
        sharded(strategy),
        sharded(strategy, checkpoint="full", accumulate=2),
        sharded(strategy, checkpoint="full", accumulate=2, reduce="last"),
        sharded(strategy, accumulate=4),
        sharded(strategy, shape=DEEP, precision="bf16", checkpoint="selective"),
        sharded(strategy, shape=WORDY, precision="bf16"),
    ]
    assert_predicted(setups, on_ranks)


def test_the_peak_of_units_that_are_halves_of_blocks_is_as_predicted(on_ranks: OnRanks) -> None:
    setups = [
        sharded("fsdp", wrap="layer"),
        sharded("zero2", shape=DEEP, wrap="layer", checkpoint="selective", accumulate=2),
        sharded("fsdp", shape=WORDY, precision="bf16", wrap="layer", checkpoint="full"),
    ]
    assert_predicted(setups, on_ranks)


def test_the_peak_where_weights_are_most_is_as_predicted(on_ranks: OnRanks) -> None:
    setups = [
        sharded("zero2", shape=HEAVY, precision="bf16", checkpoint="full"),
        sharded("zero2", shape=HEAVY, wrap="layer", accumulate=2),
        sharded("zero2", shape=HEAVY, wrap="layer", accumulate=2, reduce="last"),
        sharded("fsdp", shape=HEAVY, accumulate=2),
        sharded("zero2", shape=HEAVY, wrap="layer"),
        sharded("fsdp", shape=HEAVY, precision="bf16", wrap="layer", checkpoint="full", accumulate=2),
    ]
    assert_predicted(setups, on_ranks)


def test_the_peak_of_four_ranks_is_as_predicted(on_ranks: OnRanks) -> None:
    setups = [
        sharded("hsdp", shape=WORDY, precision="bf16"),
        sharded("hsdp", shape=DEEP, wrap="layer", accumulate=2),
        sharded("fsdp", wrap="layer", checkpoint="selective", reshard=2),
    ]
    assert_predicted(setups, on_ranks)


def test_blocks_that_stay_gathered_are_all_there_at_the_end_of_forward() -> None:
    """WORDY's peak is in the loss, where `fsdp` keeps gathered only what is in no block."""
    kept, divided = predict(sharded("zero2", shape=WORDY)), predict(sharded("fsdp", shape=WORDY))
    blocks = WORDY.layers * (WORDY.block_parameters() + 2 * WORDY.width)
    assert kept.parameters_bytes - divided.parameters_bytes == 4 * blocks
    assert kept.activations_bytes == divided.activations_bytes


def test_what_fewer_ranks_share_after_forward_counts_as_activations() -> None:
    """In the loss each block's half lies beside the quarter that is the rank's own."""
    setup = sharded("fsdp", shape=replace(WORDY, batch=16), reshard=2)
    whole = predict(replace(setup, options={**setup.options, "reshard": 0}))
    blocks = WORDY.layers * (WORDY.block_parameters() + 2 * WORDY.width)
    assert predict(setup).activations_bytes - whole.activations_bytes == 4 * blocks // 2


@pytest.mark.parametrize(
    "option", [{"offload": True}, {"grad_dtype": "bf16"}, {"compile": "default"}, {"weights": "bf16_compute"}], ids=str
)
@pytest.mark.parametrize("strategy", ["zero2", "fsdp", "hsdp"])
def test_what_the_law_does_not_follow_is_not_covered(strategy: str, option: dict[str, OptionValue]) -> None:
    assert isinstance(spec_of(strategy).peak(small_setup(strategy, ranks=4, options=option)), Absent)


def test_one_rank_alone_is_not_covered() -> None:
    assert isinstance(spec_of("fsdp").peak(replace(sharded("fsdp"), ranks=1)), Absent)
