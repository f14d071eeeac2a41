"""Pipelines of the product whose blocks sleep in place of computing, timed as a run times them.

A sleeping rank leaves its core to others, so that four ranks on two cores keep a schedule as four machines would.
Backward sleeps in two halves: one on the path of activations and one on that of a weight, so that a schedule that parts
backward parts the sleep as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from collectors.rank.action_clock import HostActionClock, host_clock_name
from collectors.sample_log import TimedActions
from tests.slow.ranks.priority import go_first
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import Ready, make_ready
from workloads.core.transformer import Block
from workloads.cost_models.schedules import Action, Pipeline, ScheduleName
from workloads.cost_models.shape import Shape
from workloads.pipeline_parallel.simulator import StageTimes
from workloads.protocols import RunsStages
from workloads.registry import spec_of
from workloads.spec import OptionValue

WARM_UP = 1
STEPS = 3

STRATEGIES: dict[ScheduleName, tuple[str, dict[str, OptionValue]]] = {
    "naive": ("pipeline_naive", {}),
    "gpipe": ("gpipe", {}),
    "one_f_one_b": ("one_f_one_b", {}),
    "interleaved": ("interleaved", {"stages": 2}),
    "interleaved_zero_bubble": ("zero_bubble", {"variant": "interleaved", "stages": 2}),
    "zbv": ("zero_bubble", {"variant": "zbv", "stages": 2}),
}

PARTED: tuple[ScheduleName, ...] = ("interleaved_zero_bubble", "zbv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pipeline to put to sleep: a block a stage, and a sequence a microbatch.

    blocks_between: what the first rank sleeps after each of its actions, outside of it, in units of a block.
    """

    schedule: ScheduleName
    ranks: int
    microbatches: int
    blocks_between: int = 0

    @property
    def block_s(self) -> float:
        """A block's forward, and each half of its backward.

        torch takes about half a millisecond from one action to the next, and on a busy machine several times that, to
        which each action is long. Sleeps between actions are no part of one that grows by what torch takes, so that the
        ratio of both differs from the planned one, by half as much with twice the sleep.
        """
        if self.blocks_between:
            return 0.06
        return 0.04 if self.schedule in PARTED else 0.03

    def setup(self) -> SmallSetup:
        """As the strategy is built."""
        strategy, options = STRATEGIES[self.schedule]
        shape = Shape(
            layers=self.ranks * int(options.get("stages", 1)),
            width=8,
            heads=2,
            kv_heads=1,
            mlp_width=8,
            vocabulary=8,
            sequence=4,
            batch=self.microbatches,
        )
        cut = {} if self.schedule == "naive" else {"microbatches": self.microbatches}
        return small_setup(strategy, ranks=self.ranks, shape=shape, options={**options, **cut})

    def pipeline(self) -> Pipeline:
        """What the spec says of it."""
        pipeline = spec_of(self.setup().strategy).pipeline(self.setup())
        assert pipeline is not None
        return pipeline

    def slept_s(self) -> StageTimes:
        """What each stage sleeps for a microbatch.

        torch computes nothing for the first stage's inputs, since nobody asks for their gradient, and does all of its
        backward with the weights.
        """
        times: dict[tuple[int, Any], float] = {}
        for stage in range(self.pipeline().stages):
            times[stage, "forward"] = self.block_s
            times[stage, "backward"] = 2 * self.block_s
            times[stage, "input_backward"] = 0.0 if stage == 0 else self.block_s
            times[stage, "weight_backward"] = 2 * self.block_s if stage == 0 else self.block_s
        return times


class SleepOfActivations(torch.autograd.Function):
    """The identity of activations, which lasts in both directions."""

    @staticmethod
    def forward(ctx: Any, x_bsd: Tensor, sleep_s: float) -> Tensor:
        """The same values as a new tensor, later."""
        ctx.sleep_s = sleep_s
        time.sleep(sleep_s)
        return x_bsd.view_as(x_bsd)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The same gradient, later."""
        time.sleep(ctx.sleep_s)
        return gradients[0], None


class SleepOfWeight(torch.autograd.Function):
    """The identity of a weight, whose backward lasts."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, sleep_s: float) -> Tensor:
        """The same value as a new tensor."""
        ctx.sleep_s = sleep_s
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The same gradient, later."""
        time.sleep(ctx.sleep_s)
        return gradients[0], None


@dataclass(slots=True)
class Bed:
    """How long blocks sleep from now on."""

    sleep_s: float = 0.0


def put_to_sleep(module: nn.Module, bed: Bed) -> None:
    """Have it sleep in forward, in the half of backward that makes gradients of inputs, and in the other."""

    def then_sleep(awake: nn.Module, inputs: object, out: Tensor) -> Any:
        slept = SleepOfActivations.apply(out, bed.sleep_s)  # type: ignore[no-untyped-call]
        return slept + SleepOfWeight.apply(awake.pillow, bed.sleep_s)  # type: ignore[no-untyped-call]

    # Of the sleep alone: a weight that the module reads too would have its gradient made in two halves.
    module.register_parameter("pillow", nn.Parameter(torch.zeros(())))
    module.register_forward_hook(then_sleep)


def perform(cases: list[Case]) -> list[list[TimedActions]]:
    """The timed steps of each case, as one of its ranks."""
    go_first()
    return [_perform(case) for case in cases]


def _perform(case: Case) -> list[TimedActions]:
    ready, bed = make_ready(case.setup()), Bed()
    for block in [part for part in ready.workload.model.modules() if isinstance(part, Block)]:
        put_to_sleep(block, bed)
    for _ in range(WARM_UP):
        ready.step()
    bed.sleep_s = case.block_s
    is_held_up = dist.get_rank() == 0
    return time_steps(ready, steps=STEPS, between_s=case.blocks_between * case.block_s if is_held_up else 0.0)


def time_steps(ready: Ready, *, steps: int = 5, between_s: float = 0.0) -> list[TimedActions]:
    """The actions of some steps after the first, as a run times them."""
    workload, clock = ready.workload, HostActionClock()
    assert isinstance(workload, RunsStages)

    @contextmanager
    def mark(action: Action) -> Iterator[None]:
        with clock.mark(action):
            yield
        time.sleep(between_s)

    workload.mark_actions(mark, clock.tell_message)
    performed = []
    for step in range(steps):
        dist.barrier()
        begun_ns = clock.begin_step()
        ready.step()
        performed.append(
            TimedActions(
                trial=0,
                time_ns=time.time_ns(),
                step=step,
                begun_ns=begun_ns,
                clock=host_clock_name(),
                actions=clock.end_step(),
                messages=clock.messages(),
                core_waits_ns=clock.core_waits_ns(),
            )
        )
    return performed
