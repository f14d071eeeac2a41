"""Cases for tests, small enough to run in a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.case import Case
from workloads.cards.card import OptionValue
from workloads.parts.shape import Shape
from workloads.roster import card_of

SMALL = Shape(layers=1, width=16, heads=2, kv_heads=1, mlp_width=32, vocabulary=32, sequence=8, batch=4)


def small_case(
    strategy: str = "ddp", ranks: int = 2, *, options: Mapping[str, OptionValue] | None = None, **fields: Any
) -> Case:
    """A case of the strategy with its default options, some replaced."""
    card = card_of(strategy)
    case = Case(
        strategy=strategy,
        version=card.version,
        ranks=ranks,
        shape=SMALL,
        device="cpu",
        backend="gloo",
        precision="fp32",
        threads=1,
        trials=1,
        steps=3,
        warm_up=1,
        seed=0,
        options={option.name: option.default for option in card.options} | dict(options or {}),
    )
    return replace(case, **fields)
