"""`observatory suite`: suites of cases, declared in a file: planned, run, resumed and shown; and the files' schema."""

from __future__ import annotations

import click

from bench.cli.suite.plan import plan, schema
from bench.cli.suite.render import render
from bench.cli.suite.run import run
from bench.cli.suite.show import show


@click.group(name="suite")
def command() -> None:
    """Suites: many cases, declared in a file.

    \b
    Example:
      observatory suite plan smoke
    """


for one in (plan, schema, render, run, show):
    command.add_command(one)
