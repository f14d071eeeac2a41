"""What all training refuses of its options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workloads.training.setups import SMALL, ranks_of, small_setup
from workloads.options import training_refusals
from workloads.registry import spec_of
from workloads.spec import OptionValue

STRATEGIES = ("single", "ddp", "zero1", "zero2", "fsdp", "hsdp", "deepspeed", "parameter_server")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_warm_up_to_the_rate_that_is_there_is_refused(strategy: str) -> None:
    spec = spec_of(strategy)
    (reason,) = spec.refusals(small_setup(strategy, ranks=ranks_of(spec), options={"lr_warm_up": 3}))
    assert reason == (
        "option lr_warm_up is 3 with lr_rule=base, which does not scale the learning rate: leave it out, or use"
        " lr_rule=linear or sqrt, or lr_warm_up_start=0.1"
    )


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_a_warm_up_to_a_scaled_rate_is_not_refused(rule: OptionValue) -> None:
    options: dict[str, OptionValue] = {"lr_rule": rule, "lr_warm_up": 3}
    assert training_refusals(small_setup("ddp", ranks=2, options=options), data_ranks=2) == []


def test_a_batch_that_ranks_and_parts_do_not_divide_is_refused_with_those_that_they_would() -> None:
    setup = small_setup("ddp", ranks=2, shape=replace(SMALL, batch=6), options={"accumulate": 2})
    assert training_refusals(setup, data_ranks=2) == [
        "batch 6 cannot be shared equally by 2 data ranks x accumulate 2; --batch 4 or 8 would fit"
    ]
