"""Warm-up and decay of the learning rate are those of torch's own schedulers; settings without effect are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from tests.workloads.training.setups import small_setup
from workloads.core.learning_rate import decay_steps, rate_factor
from workloads.core.trainer import LearningRate
from workloads.options import training_refusals
from workloads.spec import OptionValue

RATE = 0.02
RECIPE: dict[str, OptionValue] = {"lr_warm_up": 4, "lr_warm_up_start": 0.1}


def ours(options: Mapping[str, OptionValue], steps: int) -> list[float]:
    """The rates that an optimizer of rate RATE gets."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = LearningRate(small_setup(options=options))
    rates = []
    for _ in range(steps):
        schedule.begin_step(optimizer)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def torchs(decay: str, *, decay_steps: int, least: float, steps: int, warm_up: int = 4) -> list[float]:
    """The rates that torch's schedulers give, one after the other."""
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    parts: list[torch.optim.lr_scheduler.LRScheduler] = []
    if warm_up:
        parts.append(LinearLR(optimizer, start_factor=0.1, total_iters=warm_up))
    if decay == "cosine":
        parts.append(CosineAnnealingLR(optimizer, T_max=decay_steps, eta_min=least * RATE))
    else:
        parts.append(LinearLR(optimizer, start_factor=1.0, end_factor=least, total_iters=decay_steps))
    schedule = SequentialLR(optimizer, parts, milestones=[warm_up] if warm_up else [])
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("least", [0.0, 0.1])
@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_a_warm_up_and_a_decay_are_those_of_torch(decay: str, least: float) -> None:
    options: dict[str, OptionValue] = {**RECIPE, "lr_decay": decay, "lr_decay_steps": 10, "lr_min": least}
    # Torch's cosine rises again after its end; ours stays.
    assert ours(options, 15) == pytest.approx(torchs(decay, decay_steps=10, least=least, steps=15), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_a_decay_without_a_warm_up_begins_with_the_first_step(decay: str) -> None:
    rates = ours({"lr_decay": decay, "lr_decay_steps": 6}, 7)
    assert rates == pytest.approx(torchs(decay, decay_steps=6, least=0.1, steps=7, warm_up=0), rel=1e-9)
    assert rates[0] == RATE
    assert rates[-1] == pytest.approx(0.1 * RATE)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_after_its_steps_a_decayed_rate_stays(decay: str) -> None:
    rates = ours({"lr_decay": decay, "lr_decay_steps": 3, "lr_min": 0.25}, 8)
    assert rates[3:] == pytest.approx([0.25 * RATE] * 5)


def test_without_a_decay_the_rate_stays_after_its_warm_up() -> None:
    assert ours(RECIPE, 6) == pytest.approx([RATE * share for share in (0.1, 0.325, 0.55, 0.775, 1.0, 1.0)])


def test_a_rule_scales_what_decays() -> None:
    setup = small_setup("ddp", ranks=4, options={"lr_rule": "linear", "lr_decay": "linear", "lr_decay_steps": 2})
    factors = [rate_factor(setup, data_ranks=4, step=step) for step in range(3)]
    assert factors == pytest.approx([4.0, 4.0 * 0.55, 4.0 * 0.1])


def test_a_warm_up_may_begin_at_nothing() -> None:
    assert ours({"lr_warm_up": 2, "lr_warm_up_start": 0.0}, 3) == pytest.approx([0.0, RATE / 2, RATE])


def test_a_setup_from_before_the_schedules_keeps_its_rate() -> None:
    setup = small_setup()
    older = replace(setup, options={name: setup.options[name] for name in ("lr_rule", "lr_warm_up", "learning_rate")})
    assert [rate_factor(older, data_ranks=1, step=step) for step in (0, 50)] == [1.0, 1.0]


@pytest.mark.parametrize(("options", "steps"), [({}, 0), ({"lr_decay": "cosine"}, 30)])
def test_a_decay_lasts_as_long_as_the_run_where_nobody_chose(options: dict[str, OptionValue], steps: int) -> None:
    assert decay_steps(small_setup(options=options), 30) == steps


def test_the_run_s_own_steps_are_those_that_warm_up_leaves() -> None:
    options: dict[str, OptionValue] = {**RECIPE, "lr_decay": "linear"}
    assert decay_steps(small_setup(options=options), 30) == 26
    assert decay_steps(small_setup(options={**options, "lr_decay_steps": 7}), 30) == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_warm_up_start": 0.1}, "option lr_warm_up_start is 0.1 without a warm-up; leave it out, or use"),
        ({"lr_decay_steps": 3}, "option lr_decay_steps is 3 with lr_decay=constant, which does not decay"),
        ({"lr_min": 0.0}, "option lr_min is 0 with lr_decay=constant, which does not decay"),
        ({"lr_decay": "cosine"}, "option lr_decay is cosine and warm-up leaves the run no step to decay in; use"),
        ({"lr_decay": "linear", "lr_decay_steps": 3, "lr_min": 2.0}, "option lr_min is 2; it is a share"),
    ],
)
def test_a_schedule_without_effect_or_length_is_refused(options: dict[str, OptionValue], words: str) -> None:
    (reason,) = training_refusals(small_setup(options=options), data_ranks=1)
    assert reason.startswith(words)
