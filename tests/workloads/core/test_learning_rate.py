"""The optimizer of every step has the rate that the rule says, whatever the strategy."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.core.trainer import LearningRate
from workloads.options import Check
from workloads.spec import OptionValue

WARM: dict[str, OptionValue] = {"learning_rate": 1e-3, "lr_rule": "linear", "lr_warm_up": 2}


def rates(setup: SmallSetup, steps: int) -> list[float]:
    ready = make_ready(setup)
    used = []
    for _ in range(steps):
        ready.step()
        (group,) = ready.workload.optimizer.param_groups
        used.append(group["lr"])
    return used


def first_update(setup: SmallSetup) -> float:
    """How far the first step of AdamW moved the weights that it moved most: its rate, as nothing has decayed yet."""
    ready = make_ready(setup)
    before = [weight.detach().clone() for weight in ready.workload.model.parameters()]
    ready.step()
    after = ready.workload.model.parameters()
    return max((new - old).abs().max().item() for new, old in zip(after, before, strict=True))


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp"])
def test_each_step_uses_the_rate_of_the_rule_for_its_data_ranks(strategy: str, on_ranks: OnRanks) -> None:
    setup = small_setup(strategy, ranks=2, options=WARM)
    assert on_ranks(2, rates, setup, 4) == [pytest.approx([1e-3, 1.5e-3, 2e-3, 2e-3])] * 2


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_weights_move_by_the_scaled_rate(strategy: str, on_ranks: OnRanks) -> None:
    moved = [
        on_ranks(2, first_update, small_setup(strategy, ranks=2, options={"lr_rule": rule, "learning_rate": 1e-3}))[0]
        for rule in ("base", "linear")
    ]
    assert moved[1] == pytest.approx(2 * moved[0], rel=1e-2)


def set_rates(options: dict[str, OptionValue], steps: int) -> list[float]:
    """The rates that an optimizer of rate 0.5 gets, on one rank."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = LearningRate(small_setup(options=options))
    used = []
    for _ in range(steps):
        schedule.begin_step(optimizer)
        used.append(optimizer.param_groups[0]["lr"])
    return used


def test_an_optimizer_with_a_rate_of_its_own_keeps_it_where_nothing_is_scaled() -> None:
    assert set_rates({}, 2) == [0.5, 0.5]


def test_one_rank_of_a_check_trains_at_the_rates_of_many() -> None:
    check = Check(epoch_steps=2, data_ranks=3, has_batch_norm=False)
    assert set_rates({**check.options(), **WARM}, 4) == [0.5, 1.0, 1.5, 1.5]
