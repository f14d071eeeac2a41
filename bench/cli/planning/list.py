"""`observatory list`: shows the strategies, all their options, or one strategy in full, from the registry's specs."""

from __future__ import annotations

import click

from bench.cli.completion import complete_strategy
from bench.cli.options import FORMAT, ON
from bench.errors import Misuse


@click.command(name="list")
@click.argument("strategy", required=False, shell_complete=complete_strategy)
@click.option(
    "--options",
    "has_options",
    is_flag=True,
    help="List the options of all strategies, and which strategies accept each.",
)
@ON
@FORMAT
def command(strategy: str | None, has_options: bool, on: str | None, format_name: str) -> None:
    """List strategies and probes, with the requirements and options of each.

    With --on, list the largest preset that each strategy could train on another machine.

    \b
    Example:
      observatory list ddp
    """
    from bench.case import find_spec
    from bench.report.run.strategies import options_page, spec_fields, strategies_page, strategy_page
    from bench.report.table import write
    from workloads.registry import SPECS

    if has_options and strategy is not None:
        raise Misuse(f"--options lists the options of all strategies; `observatory list {strategy}` shows its own")
    specs = SPECS if strategy is None else (find_spec(strategy),)
    if on is not None:
        if has_options:
            raise Misuse("--options lists options, and --on what a machine holds; leave one of the two out")
        from bench.analysis.prediction.presets import PRESET_COLUMNS, presets_document, presets_page
        from bench.machine.machines.machine_file import read_machine

        machine = read_machine(on)
        rows = presets_document(specs, machine)
        write(format_name, presets_page(specs, machine, rows), lambda: rows, rows, PRESET_COLUMNS)
        return
    if strategy is not None:
        page = strategy_page(specs[0])
    else:
        page = options_page(specs) if has_options else strategies_page(specs)
    write(
        format_name,
        page,
        lambda: [spec_fields(spec, is_whole=strategy is not None) for spec in specs],
        (
            {"strategy": spec.name, "option": option.name, "default": option.default, "allowed": option.allowed}
            for spec in specs
            for option in spec.options
        ),
        ("strategy", "option", "default", "allowed"),
    )
