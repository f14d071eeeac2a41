"""Options of a case and its trials, for `observatory run`, `predict` and both sides of `compare --ab`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import click

from bench.cli.completion import complete_option
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.spec import Backend, ChosenPrecision, Device, SaveMode


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups.

    groups: each group's title with the names of its parameters; other options, for example --help, come last.
    too_many: advice for a user who gives more arguments than the command accepts.
    """

    def __init__(
        self, *arguments: Any, groups: Mapping[str, Sequence[str]], too_many: str = "", **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self.groups, self.too_many = groups, too_many

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; if there are too many, add the advice to the error."""
        try:
            return super().parse_args(context, args)
        except click.UsageError as error:
            if not self.too_many or "unexpected extra argument" not in error.message:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}; {self.too_many}", context) from None

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


def named_option(name: str, text: str, **keywords: Any) -> Callable[[Any], Any]:
    """Return the option for a parameter, for example --warm-up for `warm_up`; help shows its default."""
    return click.option(f"--{name.replace('_', '-')}", name, help=text, show_default=True, **keywords)


def dimension_options(function: Any) -> Any:
    """Add an option for each dimension of a shape."""
    for name in reversed(DIMENSIONS):
        text = "Sequences in a step, over all ranks." if name == "batch" else f"Overrides the shape's {name}."
        function = named_option(name, text, type=int)(function)
    return function


def counts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Parse --ranks: one number, or several different ones that are measured in turn."""
    if text is None:
        return None
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a valid integer, nor a list like 1,2,4.") from None
    if len(counts) > 1 and (min(counts) < 1 or len(set(counts)) < len(counts)):
        raise click.BadParameter(f"{text!r} is not a list of different numbers of ranks; for example 1,2,4.")
    return counts


RANKS = click.option(
    "--ranks",
    callback=counts,
    metavar="N[,N...]",
    help="Number of ranks; several numbers are measured in turn, as a scaling curve.  [default: one for each GPU, or 2"
    " on a CPU, as the strategy allows]",
)
NO_BIND = click.option(
    "--no-bind", "bind", flag_value=False, default=True, help="Do not bind ranks to the cores of their GPUs."
)
LIMIT = click.option(
    "--limit", "limit_s", type=float, default=600.0, show_default=True, help="Time limit of a trial, in seconds."
)


def case_options(*, trials: int) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of a case, except strategy and ranks. trials: the default."""
    options = (
        click.option(
            "--shape",
            "shape_name",
            help=f"One of {', '.join(PRESETS)}, or the path of a Llama-like model's config.json."
            " [default: tiny on a CPU; 125m or 1b by a GPU's memory]",
        ),
        dimension_options,
        named_option("trials", "Number of trials, each with fresh ranks.", default=trials),
        named_option("steps", "Measured steps of a trial.", default=20),
        named_option("warm_up", "Unmeasured steps before the measured ones.", default=5),
        named_option("trace_steps", "Steps under the profiler, after the measured ones.", default=3),
        click.option(
            "--save-every", type=int, metavar="STEPS", help="Interval between checkpoints, in measured steps."
        ),
        named_option(
            "save_mode",
            "Whether training waits until a checkpoint is on disk (sync) or only until it is copied (async).",
            type=click.Choice(get_args(SaveMode)),
            default="sync",
        ),
        named_option(
            "precision",
            "Arithmetic precision of the model. [default: bf16 for models on a GPU, else fp32]",
            type=click.Choice(get_args(ChosenPrecision)),
        ),
        click.option(
            "--device", type=click.Choice(get_args(Device)), help="[default: cuda if there is a GPU, else cpu]"
        ),
        click.option("--backend", type=click.Choice(get_args(Backend)), help="[default: nccl on cuda, gloo on cpu]"),
        named_option("threads", "CPU threads of a rank.", default=1),
        NO_BIND,
        named_option("seed", "Seed for weights and data.", default=0),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE",
            shell_complete=complete_option,
            help="An option of the strategy; `observatory list STRATEGY` shows all.",
        ),
    )

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return add
