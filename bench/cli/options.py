"""Options that several commands share: the folder of runs, the history, the output format and others."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from bench.cli.completion import complete_machine
from bench.errors import Misuse
from bench.store.files import RUNS_VARIABLE, STORE_VARIABLE, data_folder
from collectors.files import SHARED

MOST_S = 366 * 86400.0
"""Upper limit of a duration: a year."""


def offer_nearest(context: click.Context, args: list[str], names: Collection[str]) -> None:
    """Suggest the nearest name if the first word is close to a name but not equal to one.

    Raises:
        click.UsageError: the message suggests the name.
    """
    name = args[0] if args else ""
    if name not in names and not name.startswith("-"):
        from collectors.settings_file import near_name  # Imported here: known commands do not need it.

        if (near := near_name(name, names)) is not None:
            context.fail(f"No such command '{name}'. Did you mean '{near}'?")


class FullTextGroup(click.Group):
    """A group whose help has the whole line of each subcommand, wrapped, instead of its beginning."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(context, name) for name in self.list_commands(context)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(limit=sys.maxsize)) for name, each in commands.items() if each]
            )


class OfferingGroup(FullTextGroup):
    """A group that suggests the nearest subcommand."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        offer_nearest(context, args, self.commands)
        return super().resolve_command(context, args)


class NamedPath(click.Path):
    """A path that must not be empty: an empty path, for example from an unset variable, would mean the current folder.

    is_folder: True refuses files, False refuses folders, None accepts both.
    """

    def __init__(self, *, is_folder: bool | None = None, exists: bool = False) -> None:
        super().__init__(path_type=Path, file_okay=not is_folder, dir_okay=is_folder is not False, exists=exists)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail(f"it is empty; name a {'folder' if self.dir_okay else 'file'}", param, ctx)
        return super().convert(value, param, ctx)


class NamedText(click.types.StringParamType):
    """A text that must not be empty, for example from an unset variable."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            is_needed = param is not None and param.required
            self.fail(f"it is empty; {'name one' if is_needed else 'leave it out, or name one'}", param, ctx)
        return super().convert(value, param, ctx)


class StoreURL(NamedText):
    """The URL of a history. Only its syntax is checked, not whether a database exists there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        from bench.store.database import parse_url

        try:
            parse_url(text)
        except Misuse as error:
            if ctx is None or not ctx.resilient_parsing:  # Completion must not print errors.
                self.fail(str(error), param, ctx)
        return text


class Duration(click.ParamType):  # type: ignore[type-arg]  # Generic only in newer versions of click.
    """A time above 0, for example 90s, 45m, 2h or 1h30m, or a number of seconds; converted to seconds."""

    name = "duration"
    examples = "90s, 45m, 2h or 1h30m"
    _FORM = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = self._FORM.fullmatch(value.strip().replace(" ", "")) if value.isascii() and len(value) <= 40 else None
        sizes_s = (86400, 3600, 60, 1)
        parts = (None,) * 4 if match is None else match.groups()
        elapsed_s = sum(size_s * float(part) for size_s, part in zip(sizes_s, parts, strict=True) if part is not None)
        if match is None or all(part is None for part in parts):
            self.fail(f"{value!r} is not a time; use for example {self.examples}", param, ctx)
        if not 0 < elapsed_s <= MOST_S:
            what = "too short" if not elapsed_s else "too long"
            self.fail(
                f"{value!r} is {what}; it must be above 0 and at most a year, for example {self.examples}", param, ctx
            )
        return elapsed_s


class Ratio(click.FloatRange):
    """A number above 0 and up to 1. It refuses NaN, which click accepts in every range."""

    def __init__(self) -> None:
        super().__init__(0, 1, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"nan is not in the range {self._describe_range()}.", param, ctx)
        return number


def seconds_within(
    least_s: float, most_s: float, name: str
) -> Callable[[click.Context, click.Parameter, float | None], float | None]:
    """Return a callback that refuses seconds outside these limits, and NaN, which click's range accepts.

    name: of a valid value, for the refusal.
    """

    def check(context: click.Context, option: click.Parameter, value_s: float | None) -> float | None:
        if value_s is not None and not least_s <= value_s <= most_s:
            raise click.BadParameter(f"{value_s:g} s is not a {name}; it may be {least_s:g} to {most_s:g} seconds")
        return value_s

    return check


RUNS = click.option(
    "--runs",
    "runs_folder",
    type=NamedPath(is_folder=True),
    default=lambda: data_folder() / "runs",
    envvar=RUNS_VARIABLE,
    show_envvar=True,
    show_default="the user's data folder",
    help="Folder of all runs.",
)
OF_ALL_USERS = click.option(
    "--shared", "of_all_users", is_flag=True, help="Include runs of other users in the runs folder."
)


def _share(_context: click.Context, _option: click.Parameter, is_shared: bool) -> None:
    if is_shared:
        os.umask(SHARED)


SHARING = click.option(
    "--shared",
    is_flag=True,
    expose_value=False,
    callback=_share,
    help="Let the group of the runs folder read the results.",
)
STORE = click.option(
    "--store",
    "store_url",
    metavar="URL",
    type=StoreURL(),
    envvar=STORE_VARIABLE,
    show_envvar=True,
    show_default="SQLite in the user's data folder",
    help="History: an SQLAlchemy URL, for example sqlite:////data/history.sqlite or postgresql://host/name.",
)
FORMAT = click.option(
    "--format",
    "format_name",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="Output format.",
)

DETAILS = click.option("--details", "has_details", is_flag=True, help="All rows and notes of the table.")


ON = click.option(
    "--on",
    "on",
    type=NamedText(),
    metavar="MACHINE",
    shell_complete=complete_machine,
    help="Other machine to plan for: for example h100x8, h100x8x64 (64 nodes), or a TOML file.",
)


ENGINE_NAMES = ("local", "ray", "slurm", "kubernetes")
"""The keys of `ENGINES` in `bench.engines.registry`, which --help does not import."""


def nodes_options(function: Any) -> Any:
    """Add --nodes and --ranks-per-node."""
    for option in (
        click.option(
            "--ranks-per-node", type=click.IntRange(1, 4096), help="Maximum ranks on a node.  [default: spread]"
        ),
        click.option("--nodes", type=click.IntRange(1, 4096), default=1, show_default=True, help="Number of nodes."),
    ):
        function = option(function)
    return function


def engine_options(function: Any) -> Any:
    """Add --engine and --engine-file, --nodes and --ranks-per-node."""
    for option in (
        click.option(
            "--engine-file",
            type=NamedPath(),
            metavar="FILE",
            help="TOML file with the engine's settings, for example Slurm's partition (docs/clusters).",
        ),
        nodes_options,
        click.option(
            "--engine",
            "engine_name",
            type=click.Choice(ENGINE_NAMES),
            default="local",
            show_default=True,
            help="Where ranks run; local: this machine, which acts as all nodes.",
        ),
    ):
        function = option(function)
    return function
