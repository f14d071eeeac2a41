"""The learning rate of each step as a multiple of the given one, by the rules that scale it with data ranks."""

from __future__ import annotations

import math
from typing import Literal, get_args

Rule = Literal["base", "linear", "sqrt"]
"""How the rate grows with the data ranks: not at all, as their number, or as its square root."""

RULES: tuple[Rule, ...] = get_args(Rule)


def scale(rule: Rule, data_ranks: int) -> float:
    """What the rule multiplies the rate by, once it is warm.

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


def factor(rule: Rule, *, data_ranks: int, warm_up: int, step: int) -> float:
    """What the rate of a step, counted from 0, is multiplied by: from 1 in equal increments to the rule's scale.

    Step `warm_up` is the first that has the whole scale.
    Source: Goyal et al. 2017, section 2.2, gradual warm-up.
    """
    warm = scale(rule, data_ranks)
    return warm if step >= warm_up else 1.0 + (warm - 1.0) * step / warm_up
