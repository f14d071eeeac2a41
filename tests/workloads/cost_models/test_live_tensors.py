"""The predicted peak of a step against the live tensors that MemTracker finds in real ones."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.cost_models.memory import Checkpoint, Microbatch
from workloads.cost_models.peak_memory import Backward, Prediction, bucketed_gradients, fresh_gradients, step_peak
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import States, replicated_states
from workloads.options import local_batch
from workloads.spec import ChosenPrecision, OptionValue

CHECKPOINTS: tuple[Checkpoint, ...] = ("none", "full", "selective")
PRECISIONS: tuple[ChosenPrecision, ...] = ("fp32", "bf16", "fp16")

DEEP = Shape(layers=6, width=32, heads=4, kv_heads=1, mlp_width=96, vocabulary=40, sequence=48, batch=8)
"""Most of it is blocks, so that the peak is among them."""
WORDY = Shape(layers=2, width=48, heads=4, kv_heads=2, mlp_width=128, vocabulary=900, sequence=16, batch=8)
"""Most of it is head and loss."""
HEAVY = Shape(layers=2, width=128, heads=4, kv_heads=2, mlp_width=352, vocabulary=300, sequence=4, batch=4)
"""Most of it is weights, so that the peak is where their gradients are."""


TERSE = Shape(layers=1, width=32, heads=2, kv_heads=1, mlp_width=64, vocabulary=8, sequence=64, batch=8)
"""So little of it is the loss that the peak is in the last norm."""
COPIED = Shape(layers=4, width=64, heads=4, kv_heads=2, mlp_width=256, vocabulary=500, sequence=4, batch=16)
"""So few tokens that under autocast most of a checkpointed forward is copies of weights."""

MUTE = Shape(layers=1, width=64, heads=4, kv_heads=2, mlp_width=256, vocabulary=8, sequence=16, batch=2)
"""So few tokens and words that the peak is where the MLP's last weight gets its gradient."""


def predict(setup: SmallSetup) -> Prediction:
    """What the laws say of a rank of `single` or `ddp`."""
    states = replicated_states(setup.shape)
    accumulate = int(setup.options["accumulate"])
    is_bucketed = setup.strategy == "ddp" and bool(setup.options["overlap"])
    is_averaged_at_once = setup.strategy == "ddp" and not is_bucketed
    checkpoint: Checkpoint = setup.options["checkpoint"]  # type: ignore[assignment]  # The spec allows no other word.
    assert setup.precision != "unknown"
    return step_peak(
        Microbatch(
            shape=setup.shape,
            sequences=local_batch(setup, setup.ranks),
            precision=setup.precision,
            checkpoint=checkpoint,
        ),
        states=states,
        backwards=(bucketed_gradients if is_bucketed else fresh_gradients)(states.gradients_bytes, accumulate),
        averaged_bytes=states.gradients_bytes if is_averaged_at_once else 0,
    )


def assert_predicted(setup: SmallSetup, on_ranks: OnRanks) -> None:
    prediction = predict(setup)
    for live in on_ranks(setup.ranks, peak_by_category, setup):
        assert prediction.parameters_bytes == live["parameters"]
        assert prediction.optimizer_bytes == live["optimizer"]
        assert prediction.buffers_bytes == live["buffers"]
        assert prediction.activations_bytes == pytest.approx(live["activations"], rel=0.1)
        assert prediction.total_bytes == pytest.approx(live["total"], rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("ddp", 2)])
def test_the_peak_of_a_strategy_is_as_predicted(
    strategy: str, ranks: int, checkpoint: Checkpoint, accumulate: int, on_ranks: OnRanks
) -> None:
    options: dict[str, OptionValue] = {"checkpoint": checkpoint, "accumulate": accumulate}
    assert_predicted(small_setup(strategy, ranks=ranks, options=options), on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("shape", [DEEP, WORDY], ids=["deep", "wordy"])
def test_the_peak_of_a_shape_is_as_predicted(
    shape: Shape, checkpoint: Checkpoint, precision: ChosenPrecision, on_ranks: OnRanks
) -> None:
    assert_predicted(small_setup(shape=shape, precision=precision, options={"checkpoint": checkpoint}), on_ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "shape", "precision", "options"),
    [
        ("single", TERSE, "bf16", {}),
        ("single", COPIED, "bf16", {"checkpoint": "full", "accumulate": 2}),
        ("ddp", MUTE, "fp32", {"checkpoint": "full", "accumulate": 2}),
        ("ddp", MUTE, "bf16", {"checkpoint": "full", "accumulate": 2}),
    ],
    ids=["last norm", "end of forward", "last product", "last product in halves"],
)
def test_a_peak_at_a_rare_moment_is_as_predicted(
    strategy: str, shape: Shape, precision: ChosenPrecision, options: dict[str, OptionValue], on_ranks: OnRanks
) -> None:
    assert_predicted(small_setup(strategy, shape=shape, precision=precision, options=options), on_ranks)


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"accumulate": 4}, {"overlap": False}], ids=str)
def test_the_peak_where_weights_are_most_is_as_predicted(options: dict[str, OptionValue], on_ranks: OnRanks) -> None:
    assert_predicted(small_setup("ddp", shape=HEAVY, options=options), on_ranks)


def peak(shape: Shape = SMALL, *, states: States | None = None, backwards: tuple[Backward, ...]) -> Prediction:
    return step_peak(
        Microbatch(shape=shape, sequences=4, precision="fp32", checkpoint="none"),
        states=states or replicated_states(shape),
        backwards=backwards,
    )


def test_the_total_is_the_sum_of_what_lives() -> None:
    prediction = Prediction(
        parameters_bytes=1,
        buffers_bytes=20,
        gradients_bytes=300,
        optimizer_bytes=4000,
        activations_bytes=50_000,
        temporary_bytes=600_000,
    )
    assert prediction.total_bytes == 654_321


def test_divided_states_lower_the_peak_by_what_is_not_there() -> None:
    """What a rank does not keep of its optimizer's state is missing at every moment."""
    whole = replicated_states(SMALL)
    half = States(
        parameters_bytes=whole.parameters_bytes,
        gradients_bytes=whole.gradients_bytes,
        optimizer_bytes=whole.optimizer_bytes // 2,
    )
    backwards = fresh_gradients(whole.gradients_bytes, 1)
    lowered = peak(states=whole, backwards=backwards).total_bytes - peak(states=half, backwards=backwards).total_bytes
    assert lowered == whole.optimizer_bytes - half.optimizer_bytes


def test_gradients_are_not_there_where_activations_are_most() -> None:
    wordy = peak(WORDY, backwards=fresh_gradients(4 * WORDY.parameters(), 1))
    assert wordy.gradients_bytes == 0
    assert wordy.temporary_bytes == 2 * 4 * 4 * WORDY.sequence * WORDY.vocabulary


def test_gradients_grow_in_the_first_backward_and_stay() -> None:
    grow, stay = Backward(before_bytes=0, after_bytes=12), Backward(before_bytes=12, after_bytes=12)
    assert fresh_gradients(12, 1) == (grow,)
    assert fresh_gradients(12, 3) == (grow, stay, stay)


def test_gradients_in_buckets_are_there_twice_while_they_accumulate() -> None:
    def backward(before_bytes: int, after_bytes: int) -> Backward:
        return Backward(before_bytes=before_bytes, after_bytes=after_bytes)

    assert bucketed_gradients(12, 1) == (backward(12, 12),)
    assert bucketed_gradients(12, 2) == (backward(12, 24), backward(24, 12))
    assert bucketed_gradients(12, 4) == (backward(12, 24), backward(24, 24), backward(24, 24), backward(24, 12))


@pytest.mark.parametrize(("before_bytes", "after_bytes", "there_bytes"), [(0, 8, 2), (8, 8, 8), (16, 8, 14)])
def test_a_quarter_through_backward_a_quarter_of_the_gradients_has_changed(
    before_bytes: int, after_bytes: int, there_bytes: int
) -> None:
    assert Backward(before_bytes=before_bytes, after_bytes=after_bytes).at(Fraction(1, 4)) == there_bytes
