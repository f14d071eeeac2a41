"""What `ulysses` hands to collectives in a step, and what lives at its peak."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready, train
from tests.workloads.training.watched_steps import WatchedStep, watch_step
from workloads.context_parallel.spec import UlyssesSpec
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import Shape
from workloads.spec import LIMITS, OptionValue, Precision

LONG = replace(SMALL, sequence=96, width=32, mlp_width=96, vocabulary=40)
"""Most of it is activations."""
WORDY = replace(SMALL, layers=2, width=48, sequence=32, vocabulary=900)
"""Most of it is head and loss."""
HEAVY = replace(SMALL, layers=2, width=128, mlp_width=352, vocabulary=300, sequence=8, batch=4)
"""Most of it is weights."""

SETTINGS: tuple[tuple[Shape, Precision, dict[str, OptionValue]], ...] = (
    (SMALL, "fp32", {}),
    (LONG, "bf16", {}),
    (LONG, "fp32", {"checkpoint": "full"}),
    (LONG, "bf16", {"checkpoint": "selective", "accumulate": 2}),
    (WORDY, "fp32", {"accumulate": 2}),
    (WORDY, "bf16", {"checkpoint": "full"}),
    (HEAVY, "fp32", {}),
    (HEAVY, "bf16", {"checkpoint": "full", "accumulate": 2}),
)


def setups() -> list[SmallSetup]:
    return [
        small_setup("ulysses", ranks=2, shape=shape, precision=precision, options=options)
        for shape, precision, options in SETTINGS
    ]


def watched(asked: list[SmallSetup]) -> list[WatchedStep]:
    """A step of each setup, when DistributedDataParallel has laid its buckets anew."""
    found = []
    for setup in asked:
        ready = make_ready(setup)
        for _ in range(2):
            ready.step()
        found.append(watch_step(ready))
    return found


def test_collectives_are_handed_the_bytes_that_the_card_declares(on_ranks: OnRanks) -> None:
    sharded: dict[str, OptionValue] = {"sharded": True, "accumulate": 2, "checkpoint": "full"}
    asked = [*setups(), small_setup("ulysses", ranks=2, options=sharded)]
    for steps in on_ranks(2, watched, asked):
        for setup, step in zip(asked, steps, strict=True):
            transfers = UlyssesSpec().transfers(setup)
            assert step.payload_bytes == recorded_bytes(transfers, "gloo"), setup
            assert step.calls == sum(transfer.calls for transfer in transfers), setup


def test_four_ranks_train_as_one_does(on_ranks: OnRanks) -> None:
    goals: dict[str, OptionValue] = {"clip": 0.0, "learning_rate": 1e-4}
    shape = replace(SMALL, heads=8, kv_heads=4)
    ((expected,),) = on_ranks(1, train, small_setup(shape=shape, options=goals), 1)
    for (step,) in on_ranks(4, train, small_setup("ulysses", ranks=4, shape=shape, options=goals), 1):
        for name, gradient in step.gradients.items():
            truth = expected.gradients[name]
            assert ((gradient - truth).norm() / truth.norm()).item() <= LIMITS["fp32"], name


def peaks(asked: list[SmallSetup]) -> list[dict[str, int]]:
    return [peak_by_category(setup) for setup in asked]


@pytest.mark.slow
def test_the_peak_of_a_rank_is_as_predicted(on_ranks: OnRanks) -> None:
    asked = setups()
    for each in on_ranks(2, peaks, asked):
        for setup, live in zip(asked, each, strict=True):
            prediction = UlyssesSpec().peak(setup)
            assert isinstance(prediction, Prediction), prediction
            assert prediction.buffers_bytes == live["buffers"], setup
            assert prediction.activations_bytes == pytest.approx(live["activations"], rel=1e-3), setup
            assert prediction.other_bytes == live["other"], setup
            assert prediction.total_bytes == pytest.approx(live["total"], rel=1e-3), setup
