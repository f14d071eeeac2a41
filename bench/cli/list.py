"""`observatory list`: the strategies, all their options, or one strategy in full, from the registry's specs."""

from __future__ import annotations

import click

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT
from bench.errors import Misuse
from bench.reports.format import print_csv, print_json


@click.command(name="list")
@click.argument("strategy", required=False, shell_complete=complete_strategy)
@click.option("--options", "has_options", is_flag=True, help="All options, with the strategies that take them.")
@FORMAT
def command(strategy: str | None, has_options: bool, format_name: str) -> None:
    """Strategies: what each is, needs and takes.

    \b
    Example:
      observatory list ddp
    """
    from bench.case import find_card
    from workloads.registry import CARDS

    if has_options and strategy is not None:
        raise Misuse(f"--options lists those of all strategies; `observatory list {strategy}` has its own")
    cards = CARDS if strategy is None else (find_card(strategy),)
    if format_name == "json":
        from bench.reports.strategies import card_fields

        print_json([card_fields(card, is_whole=strategy is not None) for card in cards])
    elif format_name == "csv":
        print_csv(
            [
                {"strategy": card.name, "option": option.name, "default": option.default, "allowed": option.allowed}
                for card in cards
                for option in card.options
            ],
            ("strategy", "option", "default", "allowed"),
        )
    else:
        from bench.reports.strategies import print_options, print_strategies, print_strategy

        if strategy is not None:
            print_strategy(cards[0])
        elif has_options:
            print_options(cards)
        else:
            print_strategies(cards)
