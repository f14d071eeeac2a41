"""`observatory list`: the strategies, from their cards."""

from __future__ import annotations

import click

from bench.reports.formats import FORMAT, print_csv, print_json
from workloads.cards.card import Card
from workloads.roster import CARDS


@click.command(name="list")
@FORMAT
def command(format_name: str) -> None:
    """Strategies: what each is, needs and takes.

    \b
    Example:
      observatory list --format json
    """
    if format_name == "json":
        print_json([_card_fields(card) for card in CARDS])
    elif format_name == "csv":
        print_csv(
            [
                {"strategy": card.name, "option": option.name, "default": option.default, "allowed": option.allowed}
                for card in CARDS
                for option in card.options
            ],
            ("strategy", "option", "default", "allowed"),
        )
    else:
        from bench.reports.strategies import print_strategies

        print_strategies(CARDS)


def _card_fields(card: Card) -> dict[str, object]:
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
    }
