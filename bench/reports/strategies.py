"""The table of strategies and their options."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bench.reports.console import open_console
from workloads.cards.card import Card, Option


def print_strategies(cards: Sequence[Card]) -> None:
    """Print what each strategy is and needs, then every option with the strategies that take it."""
    console = open_console()
    strategies = Table(box=None, pad_edge=False)
    for column in ("strategy", "kind", "needs", "parity", "what it is"):
        strategies.add_column(column)
    for card in cards:
        strategies.add_row(card.name, card.kind, card.needs.text(), card.parity.kind, card.summary)
    console.print(strategies)
    console.print()
    options = Table(box=None, pad_edge=False)
    for column in ("--option", "default", "may be", "taken by", "what it does"):
        options.add_column(column, overflow="fold")
    for option, takers in _takers(cards):
        default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
        options.add_row(option.name, default, option.allowed, takers, option.help)
    console.print(options)


def _takers(cards: Sequence[Card]) -> list[tuple[Option, str]]:
    """Each option once, with the strategies that take it."""
    takers: dict[Option, list[str]] = {}
    for card in cards:
        for option in card.options:
            takers.setdefault(option, []).append(card.name)
    training = [card.name for card in cards if card.kind == "training"]
    return [
        (option, "all training" if names == training and len(names) > 1 else ", ".join(names))
        for option, names in takers.items()
    ]
