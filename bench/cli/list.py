"""`observatory list`: the strategies, all their options, or one strategy in full, from the registry's specs."""

from __future__ import annotations

import click

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT
from bench.errors import Misuse
from bench.reports.table import print_csv, print_json


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
    from bench.case import find_spec
    from workloads.registry import SPECS

    if has_options and strategy is not None:
        raise Misuse(f"--options lists those of all strategies; `observatory list {strategy}` has its own")
    specs = SPECS if strategy is None else (find_spec(strategy),)
    if format_name == "json":
        from bench.reports.strategies import spec_fields

        print_json([spec_fields(spec, is_whole=strategy is not None) for spec in specs])
    elif format_name == "csv":
        print_csv(
            [
                {"strategy": spec.name, "option": option.name, "default": option.default, "allowed": option.allowed}
                for spec in specs
                for option in spec.options
            ],
            ("strategy", "option", "default", "allowed"),
        )
    else:
        from bench.reports.strategies import print_options, print_strategies, print_strategy

        if strategy is not None:
            print_strategy(specs[0])
        elif has_options:
            print_options(specs)
        else:
            print_strategies(specs)
