"""Strategies train what only a file can say of a shape as `single` does, or refuse it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, ranks_of, small_setup
from tests.workloads.training.training_runs import StepRecord, train
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import RopeScaling, Shape
from workloads.registry import SPECS, spec_of
from workloads.spec import LIMITS, OptionValue

STEPS = 2
GOALS: Mapping[str, OptionValue] = {"learning_rate": 1e-4, "clip": 0.5}
ONCE_IN_A_PROCESS = ("deepspeed", "parameter_server")
SCALING = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=4.0, original_positions=32)
APART = replace(SMALL, head_dim=24, norm_epsilon=1e-3, rope_theta=1e4, rope_scaling=SCALING)
"""All that a file may say, but for ties."""
TIED = replace(APART, layers=2, is_tied=True)
TRAINING = [spec.name for spec in SPECS if spec.kind == "training" and spec.parity.kind != "none"]
REFUSES_TIES = (
    "tensor_parallel",
    "pipeline_naive",
    "gpipe",
    "one_f_one_b",
    "interleaved",
    "zero_bubble",
    "three_d",
)
VARIANTS: Mapping[str, tuple[Mapping[str, OptionValue], ...]] = {
    "ddp": ({"overlap": False}, {"bucket_mb": 0.05, "accumulate": 2}),
    "fsdp": ({"wrap": "layer"}, {"accumulate": 2, "checkpoint": "full"}),
    "tensor_parallel": ({"sequence_parallel": True, "checkpoint": "selective"},),
    "deepspeed": ({"stage": 0}, {"stage": 1}, {"stage": 3}),
}
"""Options with which a tie, or heads apart from the width, might be handled by other code."""

Reference = Callable[[SmallSetup], list[StepRecord]]


def cases() -> Iterator[Any]:
    """Both shapes with each strategy that takes them; one process for each start of DeepSpeed takes long."""
    for name in TRAINING:
        for shape in (APART,) if name in REFUSES_TIES else (APART, TIED):
            for options in ({}, *VARIANTS.get(name, ())):
                words = [name, "tied" if shape.is_tied else "apart", *(f"{key}={options[key]}" for key in options)]
                marks = [pytest.mark.slow] if name in ONCE_IN_A_PROCESS and not (shape.is_tied and not options) else []
                yield pytest.param(name, shape, options, id=" ".join(words), marks=marks)


@pytest.fixture(scope="module")
def reference(on_ranks: OnRanks) -> Reference:
    known: dict[Shape, list[StepRecord]] = {}

    def run(setup: SmallSetup) -> list[StepRecord]:
        if setup.shape not in known:
            (known[setup.shape],) = on_ranks(1, train, small_setup(shape=setup.shape, options=GOALS), STEPS)
        return known[setup.shape]

    return run


@pytest.mark.parametrize(("name", "shape", "options"), [*cases()])
def test_losses_and_gradients_are_those_of_single(
    name: str,
    shape: Shape,
    options: Mapping[str, OptionValue],
    on_ranks: OnRanks,
    on_fresh_ranks: OnRanks,
    reference: Reference,
) -> None:
    spec = spec_of(name)
    setup = small_setup(name, ranks=ranks_of(spec), shape=shape, options={**GOALS, **options})
    assert not spec.refusals(setup)
    start = on_fresh_ranks if name in ONCE_IN_A_PROCESS else on_ranks
    records = start(setup.ranks, train, setup, STEPS)
    for step, expected in enumerate(reference(setup)):
        losses = [record[step].loss for record in records]
        known_losses = [loss for loss in losses if loss is not None]
        assert expected.loss is not None
        assert sum(known_losses) / len(known_losses) == pytest.approx(expected.loss, rel=LIMITS["fp32"])
        for record in records:
            gradients = record[step].gradients
            assert gradients.keys() == expected.gradients.keys()
            for weight, gradient in gradients.items():
                truth = expected.gradients[weight]
                difference = ((gradient - truth).norm() / truth.norm()).item()
                assert difference <= LIMITS["fp32"], f"step {step}: {weight} is off by {difference:.1e}"


@pytest.mark.parametrize("name", REFUSES_TIES)
def test_a_tie_is_refused_by_name_where_head_and_embedding_lie_apart(name: str) -> None:
    setup = small_setup(name, ranks=ranks_of(spec_of(name)), shape=replace(APART, is_tied=True))
    (reason,) = spec_of(name).refusals(setup)
    assert reason.startswith("the shape ties head and embedding (tie_word_embeddings), but ")
    assert reason.endswith(": set tie_word_embeddings to false in its config.json, or use fsdp")


HEAVY = Shape(layers=2, width=128, heads=4, kv_heads=2, mlp_width=352, vocabulary=300, sequence=4, batch=4, head_dim=64)
"""Most of it is weights, so that the peak is where their gradients are."""
LONG = Shape(layers=4, width=32, heads=4, kv_heads=1, mlp_width=96, vocabulary=40, sequence=48, batch=8, head_dim=24)
"""Most of it is activations of blocks."""


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["none", "selective"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("single", HEAVY),
        *[(name, LONG) for name in ("single", "fsdp", "tensor_parallel", "gpipe")],
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_peak_of_a_step_is_as_predicted_with_heads_apart_from_the_width(
    name: str, shape: Shape, precision: Any, checkpoint: str, on_ranks: OnRanks
) -> None:
    if name == "tensor_parallel":
        shape = replace(shape, kv_heads=2)
    spec = spec_of(name)
    ranks = 1 if name == "single" else 2
    options: dict[str, OptionValue] = {"checkpoint": checkpoint, "weights": "autocast"}
    setup = small_setup(name, ranks=ranks, shape=shape, precision=precision, options=options)
    prediction = spec.peak(setup)
    assert isinstance(prediction, Prediction)
    live = on_ranks(ranks, peak_by_category, setup)
    assert prediction.total_bytes == pytest.approx(max(each["total"] for each in live), rel=0.04)


@pytest.mark.parametrize("name", ["single", "fsdp"])
def test_the_peak_with_a_tie_is_not_predicted(name: str) -> None:
    peak = spec_of(name).peak(small_setup(name, ranks=ranks_of(spec_of(name)), shape=TIED))
    assert isinstance(peak, Absent)
    assert "tied" in peak.reason
