"""Every training strategy of the roster computes what `single` computes, as far as its spec declares."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, ranks_of, small_setup
from tests.workloads.training.training_runs import StepRecord, train
from workloads.registry import SPECS, spec_of
from workloads.spec import LIMITS, OptionValue, Precision, StrategySpec

STEPS = 3
GOALS = ("learning_rate", "lr_warm_up", "lr_warm_up_start", "lr_decay", "lr_decay_steps", "clip", "weights")
"""Options that say what is to be computed and not how; `single` gets them as the variant has them."""

ONCE_IN_A_PROCESS = ("deepspeed", "parameter_server")
"""Their libraries start once in a process, and leave what a second start stumbles over."""

LEARNING_RATE = 1e-4
"""Small: AdamW makes of a difference in the order of additions, in its first steps, one that grows with the rate."""

TWO_BLOCKS = replace(SMALL, layers=2)
"""Enough where no stages share the blocks: what a block costs the CPU is the same for each one more."""

Reference = Callable[[SmallSetup], list[StepRecord]]


def cases() -> Iterator[tuple[StrategySpec, Precision, Mapping[str, OptionValue]]]:
    """Each variant in fp32, and the first in each precision; without clipping but once.

    Clipping to a norm makes gradients alike that are wrong by a factor, such as a sum taken for a mean.
    """
    for spec in SPECS:
        if spec.kind != "training" or spec.parity.kind == "none":
            continue
        without_clip = {"learning_rate": LEARNING_RATE, "clip": 0.0}
        yield spec, "fp32", {"learning_rate": LEARNING_RATE}
        for variant in spec.parity.variants:
            yield spec, "fp32", {**without_clip, **variant}
        yield spec, "bf16", {**without_clip}
        if "fp16" in spec.parity.limits:
            yield spec, "fp16", {**without_clip}


def name_of(spec: StrategySpec, precision: Precision, options: Mapping[str, OptionValue]) -> str:
    return " ".join([spec.name, precision, *(f"{key}={value}" for key, value in options.items())])


@pytest.fixture(scope="module")
def reference(on_ranks: OnRanks) -> Reference:
    known: dict[str, list[StepRecord]] = {}

    def run(setup: SmallSetup) -> list[StepRecord]:
        goals = {name: setup.options[name] for name in GOALS}
        key = f"{setup.precision} {setup.shape.layers} {goals}"
        if key not in known:
            alone = small_setup(shape=setup.shape, precision=setup.precision, options=goals)
            (known[key],) = on_ranks(1, train, alone, STEPS)
        return known[key]

    return run


def marked_cases() -> Iterator[Any]:
    """In halves of a number a strategy does what it does in fp32, and DeepSpeed starts for seconds."""
    told = set[str]()
    for spec, precision, options in cases():
        takes_long = precision != "fp32" or (spec.name in ONCE_IN_A_PROCESS and spec.name in told)
        told.add(spec.name)
        marks = [pytest.mark.slow] if takes_long else []
        yield pytest.param(spec, precision, options, id=name_of(spec, precision, options), marks=marks)


@pytest.mark.parametrize(("spec", "precision", "options"), [*marked_cases()])
def test_losses_and_gradients_are_those_of_single(
    spec: StrategySpec,
    precision: Precision,
    options: Mapping[str, OptionValue],
    on_ranks: OnRanks,
    on_fresh_ranks: OnRanks,
    reference: Reference,
) -> None:
    setup = small_setup(spec.name, ranks=ranks_of(spec), precision=precision, options=options)
    if "stage" not in spec.mesh(setup):
        setup = replace(setup, shape=TWO_BLOCKS)
    assert not spec.refusals(setup)
    assert spec.incomparable(setup) is None
    limit = spec.parity.limits[precision]
    start = on_fresh_ranks if spec.name in ONCE_IN_A_PROCESS else on_ranks
    records = start(setup.ranks, train, setup, STEPS)
    for step, expected in enumerate(reference(setup)):
        losses = [record[step].loss for record in records]
        known_losses = [loss for loss in losses if loss is not None]
        assert expected.loss is not None
        assert sum(known_losses) / len(known_losses) == pytest.approx(expected.loss, rel=limit)
        for record in records:
            gradients = record[step].gradients
            assert gradients.keys() == expected.gradients.keys()
            for name, gradient in gradients.items():
                truth = expected.gradients[name]
                difference = ((gradient - truth).norm() / truth.norm()).item()
                assert difference <= limit, f"step {step}: {name} is off by {difference:.1e}"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_strategy_without_parity_says_why(spec: StrategySpec) -> None:
    assert spec.parity.reason or spec.parity.kind != "none"


COMPILED: tuple[tuple[str, int, dict[str, OptionValue]], ...] = (
    ("gpipe", 2, {}),
    ("interleaved", 2, {"checkpoint": "selective"}),
    ("ulysses", 2, {"checkpoint": "full", "accumulate": 2}),
    ("three_d", 4, {"tensor_ranks": 1, "data_axis": "fsdp"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "options"), COMPILED, ids=lambda value: str(value))
def test_compiled_blocks_compute_the_same(
    name: str, ranks: int, options: Mapping[str, OptionValue], on_ranks: OnRanks, reference: Reference
) -> None:
    goals: dict[str, OptionValue] = {"learning_rate": LEARNING_RATE, "clip": 0.0}
    setup = small_setup(name, ranks=ranks, options={**goals, **options, "compile": "default"})
    assert not spec_of(name).refusals(setup)
    truth = reference(small_setup(options=goals))[0].gradients
    for (step,) in on_ranks(ranks, train_compiled, setup):
        for weight, gradient in step.gradients.items():
            difference = ((gradient - truth[weight]).norm() / truth[weight].norm()).item()
            assert difference <= LIMITS["fp32"], weight


def train_compiled(setup: SmallSetup) -> list[StepRecord]:
    """Compilation warns of torch's own code."""
    warnings.simplefilter("ignore")
    return train(setup, 1)
