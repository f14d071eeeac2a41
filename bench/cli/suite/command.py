"""`observatory suite`: the group of commands for suites of cases, which are declared in a file."""

from __future__ import annotations

import click

from bench.cli.options import OfferingGroup
from bench.cli.suite.bisect import bisect
from bench.cli.suite.plan import plan, schema
from bench.cli.suite.render import render
from bench.cli.suite.run import run
from bench.cli.suite.scaling import scaling
from bench.cli.suite.show import show


@click.group(name="suite", cls=OfferingGroup)
def command() -> None:
    """Run, plan and show suites: many cases from one file.

    \b
    Example:
      observatory suite plan smoke
    """


for subcommand in (plan, schema, render, run, show, scaling, bisect):
    command.add_command(subcommand)
