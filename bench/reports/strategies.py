"""Prints the strategies, all options with the strategies that take them, or one strategy in full; also gives JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.case import Case, parse_options
from bench.reports.format import open_console, print_words
from workloads.cost_models.shape import PRESETS
from workloads.spec import Card, Option, OptionValue

# What a strategy refuses, found by asking its spec: each option alone and with each other one, on a small shape.

_PLACES: tuple[dict[str, Any], ...] = (
    {},
    {"precision": "fp16"},
    {"precision": "bf16"},
    {"device": "cuda", "backend": "nccl"},
    {"device": "cuda", "backend": "gloo"},
)
_VALUES = re.compile(r"(?<= is )\S+|(?<==)\w+|\d+")
"""The values in a refusal, which alone tell two refusals of one kind apart."""


def tried_refusals(card: Card) -> list[str]:
    """Return the spec's refusals, one of each kind, with the values that were tried.

    The shape is `tiny`; nothing is started. Not covered: refusals of three options together.
    """
    found: dict[str, str] = {}
    for case in _tried(card):
        for reason in card.all_refusals(case):
            found.setdefault(_VALUES.sub("", reason.partition(";")[0]), reason)
    return list(found.values())


def default_case(card: Card) -> Case:
    """Return the strategy's default case on a CPU, on the fewest useful ranks."""
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
    """Return a command line that runs the strategy, with the first options that its parity is tested with."""
    case = default_case(card)
    chosen = next((variant for variant in card.parity.variants if variant), {})
    if card.all_refusals(replace(case, options={**case.options, **chosen})):
        chosen = {}
    words = [f"--option {name}={written(value)}" for name, value in chosen.items()]
    return " ".join([f"observatory run {card.name} --ranks {case.ranks}", *words])


def written(value: OptionValue) -> str:
    """Return the value as it is written behind `--option NAME=`."""
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
    """Return values other than the default: the other choices, larger numbers; none for free text."""
    default = option.default
    if isinstance(default, bool):
        return [not default]
    if option.choices:
        return [choice for choice in option.choices if choice != default]
    if isinstance(default, int):
        return [default + 1, 2 * default + 1]
    return [2 * default + 0.5] if isinstance(default, float) else []


# Printing strategies and options.

WIDE = 120
"""Least width at which a strategy's kind and parity are shown, too."""


def print_strategies(cards: Sequence[Card], console: Console | None = None) -> None:
    """Print what each strategy is and needs."""
    console = console or open_console()
    is_wide = console.width >= WIDE
    columns = ("strategy", "kind", "needs", "parity", "what it is") if is_wide else ("strategy", "needs", "what it is")
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "strategy")
    for card in cards:
        cells = {
            "strategy": card.name,
            "kind": card.kind,
            "needs": card.needs.text(),
            "parity": card.parity.kind,
            "what it is": card.summary,
        }
        table.add_row(*(Text(cells[column]) for column in columns))
    console.print(table)
    console.print()
    print_words(console, "`observatory list STRATEGY` tells its options and refusals; --options tells all options")


def print_options(cards: Sequence[Card], console: Console | None = None) -> None:
    """Print every option with the strategies that take it."""
    console = console or open_console()
    table = Table(box=None, pad_edge=False)
    for column in ("--option", "taken by", "what it does"):
        table.add_column(column, no_wrap=column == "--option")
    for option, takers in _takers(cards):
        table.add_row(Text(_with_default(option)), Text(takers), Text(_what_it_does(option)))
    console.print(table)


def print_strategy(card: Card, console: Console | None = None) -> None:
    """Print what one strategy is, needs, takes and refuses, and a command line that runs it."""
    console = console or open_console()
    print_words(console, f"{card.name}: {card.summary}")
    facts = Table(box=None, pad_edge=False, show_header=False)
    parity = card.parity.kind + (f": {card.parity.reason}" if card.parity.reason else "")
    for name, value in (("kind", card.kind), ("needs", card.needs.text()), ("parity", parity)):
        facts.add_row(name, Text(value.replace("_", " ")))
    console.print(facts)
    console.print()
    options = Table(box=None, pad_edge=False)
    options.add_column("--option", no_wrap=True)
    options.add_column("what it does (what it may be)")
    for option in card.options:
        options.add_row(Text(_with_default(option)), Text(_what_it_does(option)))
    console.print(options)
    refusals = tried_refusals(card)
    if refusals:
        console.print()
        print_words(console, "refused, found by trying each option and each two together:")
        for reason in refusals:
            console.print(Padding(Text(f"- {reason}"), (0, 0, 0, 2)))
    console.print()
    print_words(console, f"example: {example(card)}")


def card_fields(card: Card, *, is_whole: bool) -> dict[str, object]:
    """Return the spec's facts for JSON. is_whole: with its refusals, which take a while to find, and an example."""
    return {
        "name": card.name,
        "kind": card.kind,
        "summary": card.summary,
        "version": card.version,
        "cuda_version": card.version_on("cuda"),
        "needs": card.needs.text(),
        "parity": card.parity.kind,
        "options": [
            {"name": option.name, "default": option.default, "allowed": option.allowed, "help": option.help}
            for option in card.options
        ],
        **({"refusals": tried_refusals(card), "example": example(card)} if is_whole else {}),
    }


def _with_default(option: Option) -> str:
    return f"{option.name}={written(option.default)}"


def _what_it_does(option: Option) -> str:
    return f"{option.help} ({option.allowed})"


def _takers(cards: Sequence[Card]) -> list[tuple[Option, str]]:
    """Return each option once, with the strategies that take it."""
    takers: dict[Option, list[str]] = {}
    for card in cards:
        for option in card.options:
            takers.setdefault(option, []).append(card.name)
    training = [card.name for card in cards if card.kind == "training"]
    return [
        (option, "all training" if names == training and len(names) > 1 else ", ".join(names))
        for option, names in takers.items()
    ]
