"""What a strategy refuses, found by asking its card: each option alone and beside each other one, on a small shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from bench.case import Case, parse_options
from workloads.cards.card import Card, Option, OptionValue
from workloads.parts.shape import PRESETS

_PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp16"},
    {"precision": "bf16"},
    {"device": "cuda", "backend": "nccl"},
    {"device": "cuda", "backend": "gloo"},
)
_VALUES = re.compile(r"(?<= is )\S+|(?<==)\w+|\d+")
"""What tells two refusals of one kind apart."""


def tried_refusals(card: Card) -> list[str]:
    """The card's refusals, one of each kind, with the values that were tried; others may lie in three options together.

    The shape is `tiny`; nothing is started.
    """
    found: dict[str, str] = {}
    for case in _tried(card):
        for reason in card.all_refusals(case):
            found.setdefault(_VALUES.sub("", reason.partition(";")[0]), reason)
    return list(found.values())


def default_case(card: Card) -> Case:
    """The strategy as it is measured on a CPU where nothing but the fewest useful ranks is said."""
    ranks = max(2, card.needs.minimum_ranks)
    case = Case(
        strategy=card.name,
        version=card.version,
        ranks=ranks if card.needs.maximum_ranks is None else min(ranks, card.needs.maximum_ranks),
        model=None if card.kind == "probe" else PRESETS["tiny"],
        device="cpu",
        backend="gloo",
        precision="fp32",
        threads=1,
        trials=1,
        steps=1,
        warm_up=0,
        trace_steps=0,
        seed=0,
        options=parse_options(card, ()),
    )
    return replace(case, options=card.settled(case))


def example(card: Card) -> str:
    """A command line that runs the strategy, with the first option that its parity is tested with."""
    case = default_case(card)
    chosen = next((variant for variant in card.parity.variants if variant), {})
    if card.all_refusals(replace(case, options={**case.options, **chosen})):
        chosen = {}
    words = [f"--option {name}={written(value)}" for name, value in chosen.items()]
    return " ".join([f"observatory run {card.name} --ranks {case.ranks}", *words])


def written(value: OptionValue) -> str:
    """The value as it is written behind `--option NAME=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tried(card: Card) -> Iterator[Case]:
    base = default_case(card)
    ones = [(option.name, value) for option in card.options for value in _other_values(option)]
    for place in _PLACES:
        case = replace(base, **place)
        yield case
        for name, value in ones:
            yield replace(case, options={**case.options, name: value})
    for (name, value), (other, beside) in combinations(ones, 2):
        if name != other:
            yield replace(base, options={**base.options, name: value, other: beside})


def _other_values(option: Option) -> list[OptionValue]:
    """Values that are not the default: the others of a choice, larger numbers; none of free text."""
    default = option.default
    if isinstance(default, bool):
        return [not default]
    if option.choices:
        return [choice for choice in option.choices if choice != default]
    if isinstance(default, int):
        return [default + 1, 2 * default + 1]
    return [2 * default + 0.5] if isinstance(default, float) else []
