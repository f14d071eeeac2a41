"""A command whose help shows its options in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class GroupedCommand(click.Command):
    """A command with many options.

    groups: each group's title with the names of its parameters; options of no group, such as --help, come last.
    """

    def __init__(self, *arguments: Any, groups: Mapping[str, Sequence[str]], **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.groups = groups

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.name: record
            for parameter in self.get_params(context)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context)) is not None
        }
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Other"):
            formatter.write_dl(list(records.values()))
