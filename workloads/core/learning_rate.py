"""Learning rate of each step: the rule that scales it with the data ranks, its warm-up and its decay. Imports no torch.

The options are those of all trainings. AdamW itself is in `workloads.core.trainer`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

from workloads.spec import Option, OptionValue, Setup

RateRule = Literal["base", "linear", "sqrt"]
"""How the rate grows with the data ranks: not at all, with their number, or with its square root."""

RULES: tuple[RateRule, ...] = get_args(RateRule)

Decay = Literal["constant", "cosine", "linear"]
"""How the rate falls after warm-up: not at all, along half a cosine, or along a line."""

DECAYS: tuple[Decay, ...] = get_args(Decay)

START = Option(
    name="lr_warm_up_start",
    default=1.0,
    minimum=0.0,
    help="multiple of learning_rate at which the warm-up begins, for example 0.1",
    added_later=True,
)
DECAY = Option(
    name="lr_decay",
    default="constant",
    choices=DECAYS,
    help="fall of the learning rate after warm-up: none (constant), along half a cosine, or along a line",
    added_later=True,
)
DECAY_STEPS = Option(
    name="lr_decay_steps",
    default=0,
    minimum=0,
    help="steps after warm-up in which the learning rate falls to lr_min; 0: the run's own steps",
    added_later=True,
)
LEAST = Option(
    name="lr_min",
    default=0.1,
    minimum=0.0,
    help="share of the learning rate after warm-up to which it decays",
    added_later=True,
)

RATE_OPTIONS: tuple[Option, ...] = (
    Option(name="learning_rate", default=3e-4, minimum=0.0, help="learning rate of AdamW"),
    Option(
        name="lr_rule",
        default="base",
        choices=RULES,
        help="scaling of the learning rate: none (base), by the number of data ranks (linear), or by its square"
        " root (sqrt)",
    ),
    Option(
        name="lr_warm_up",
        default=0,
        minimum=0,
        help="steps over which the learning rate grows from learning_rate x lr_warm_up_start to its value by lr_rule",
    ),
    START,
    DECAY,
    DECAY_STEPS,
    LEAST,
)

RECIPE: Mapping[str, OptionValue] = {
    "lr_warm_up": 1,
    "lr_warm_up_start": 0.1,
    "lr_decay": "cosine",
    "lr_decay_steps": 2,
}
"""A short schedule for comparing strategies with `single`."""


def scale(rule: RateRule, data_ranks: int) -> float:
    """Return what the rule multiplies the rate by after warm-up.

    Source: linear: Goyal et al. 2017, Accurate, large minibatch SGD, section 2.1. sqrt: Krizhevsky 2014, One weird
    trick for parallelizing convolutional neural networks; Hoffer et al. 2017, Train longer, generalize better.
    """
    match rule:
        case "base":
            return 1.0
        case "linear":
            return float(data_ranks)
        case "sqrt":
            return math.sqrt(data_ranks)


def factor(rule: RateRule, *, data_ranks: int, warm_up: int, step: int, start: float = 1.0) -> float:
    """Return what the rate of a step, counted from 0, is multiplied by before any decay.

    It grows from `start` in equal increments to the rule's scale, which it first reaches at step `warm_up`.
    Source: Goyal et al. 2017, section 2.2, gradual warm-up.
    """
    warm = scale(rule, data_ranks)
    return warm if step >= warm_up else start + (warm - start) * step / warm_up


def decayed(decay: Decay, *, steps: int, least: float, step: int) -> float:
    """Return the share of its highest value that the rate has at a step, counted from 0 at the end of warm-up.

    It first reaches the share `least` at step `steps`, and stays there.
    Source: Loshchilov and Hutter 2017, SGDR, equation 5 without restarts; for the floor of 0.1 Hoffmann et al. 2022,
    Training compute-optimal large language models, appendix B.
    """
    progress = min(1.0, step / steps) if step > 0 else 0.0
    match decay:
        case "constant":
            return 1.0
        case "cosine":
            return least + (1.0 - least) * (1.0 + math.cos(math.pi * progress)) / 2
        case "linear":
            return least + (1.0 - least) * (1.0 - progress)


def rate_factor(setup: Setup, *, data_ranks: int, step: int) -> float:
    """Return the factor of a step's learning rate; steps count from 0. data_ranks: those that share a batch."""
    rule: RateRule = setup.options["lr_rule"]  # type: ignore[assignment]  # The option allows no other word.
    decay: Decay = DECAY.of(setup)  # type: ignore[assignment]  # The option allows no other word.
    warm_up = int(setup.options["lr_warm_up"])
    warm = factor(rule, data_ranks=data_ranks, warm_up=warm_up, step=step, start=float(START.of(setup)))
    if decay == "constant":
        return warm
    return warm * decayed(decay, steps=int(DECAY_STEPS.of(setup)), least=float(LEAST.of(setup)), step=step - warm_up)


def decay_steps(setup: Setup, run_steps: int) -> int:
    """Return the steps of the decay: the user's choice, or the run's own steps after warm-up.

    run_steps: all optimizer steps of a trial.
    """
    steps = int(DECAY_STEPS.of(setup))
    if steps or DECAY.of(setup) == DECAY.default:
        return steps
    return max(0, run_steps - int(setup.options["lr_warm_up"]))


def rate_refusals(setup: Setup) -> Iterator[str]:
    """Yield why the warm-up or the decay of the learning rate would have no effect, or has no length."""
    options, start, decay = setup.options, START.of(setup), DECAY.of(setup)
    if options["lr_warm_up"] and options["lr_rule"] == "base" and start == START.default:
        yield (
            f"option lr_warm_up is {options['lr_warm_up']} with lr_rule=base, which does not scale the learning rate:"
            " leave it out, or use lr_rule=linear or sqrt, or lr_warm_up_start=0.1"
        )
    if start != START.default and not options["lr_warm_up"]:
        yield f"option {START.name} is {start:g} without a warm-up; leave it out, or use lr_warm_up=10"
    if decay == DECAY.default:
        for option in (DECAY_STEPS, LEAST):
            if (value := option.of(setup)) != option.default:
                yield (
                    f"option {option.name} is {value:g} with {DECAY.name}={decay}, which does not decay: leave it out,"
                    f" or use {DECAY.name}=cosine or linear"
                )
        return
    if not DECAY_STEPS.of(setup):
        yield (
            f"option {DECAY.name} is {decay} and warm-up leaves the run no step to decay in; use"
            f" {DECAY_STEPS.name}=10, more --steps, or a shorter lr_warm_up"
        )
    if float(LEAST.of(setup)) > 1:
        yield f"option {LEAST.name} is {LEAST.of(setup):g}; it is a share of the learning rate and may be 0 to 1"
