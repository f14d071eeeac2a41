"""`observatory run`: its options, and the way from them over the plan and the measurement to the presented results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import click
from click.core import ParameterSource

from bench.cli.completion import complete_option, complete_run, complete_strategy
from bench.cli.options import DETAILS, FORMAT, RUNS, STORE, NamedText, engine_options
from workloads.cost_models.shape import DIMENSIONS, PRESETS
from workloads.options import MISTAKES
from workloads.spec import Backend, Device, Precision


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups.

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


GROUPS = {
    "What runs": (
        *("ranks", "options", "with_baseline", "baseline_run", "is_check", "device", "backend"),
        *("engine_name", "nodes", "ranks_per_node", "engine_file", "precision", "threads", "seed", "is_dry"),
    ),
    "The model": ("shape_name", *DIMENSIONS),
    "How it is measured": ("trials", "steps", "warm_up", "limit_s"),
    "What is watched": ("trace_steps", "keep_traces", "trace_every", "memory_snapshot", "with_timeline", "port"),
    "Where it is kept, and what is said": (
        *("runs_folder", "store_url", "format_name", "has_details", "quiet", "verbose", "note", "is_nightly"),
    ),
    "Fire drills": ("fault_text", "mistakes"),
}


def _counts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Parse --ranks: one number, or several different ones that are measured in turn."""
    if text is None:
        return None
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a valid integer, and no list of such as 1,2,4.") from None
    if len(counts) > 1 and (min(counts) < 1 or len(set(counts)) < len(counts)):
        raise click.BadParameter(f"{text!r} is no list of different numbers of ranks, such as 1,2,4.")
    return counts


def _option(name: str, text: str, **keywords: Any) -> Callable[[Any], Any]:
    """Return the option of a parameter by its name, such as --warm-up of `warm_up`, whose default the help shows."""
    return click.option(f"--{name.replace('_', '-')}", name, help=text, show_default=True, **keywords)


def _dimensions(function: Any) -> Any:
    """Add an option for each dimension of a shape."""
    for name in reversed(DIMENSIONS):
        text = "Sequences of one step over all ranks." if name == "batch" else f"Overrides the shape's {name}."
        function = _option(name, text, type=int)(function)
    return function


@click.command(name="run", cls=GroupedCommand, groups=GROUPS)
@click.argument("strategy", shell_complete=complete_strategy)
@click.option(
    "--ranks",
    callback=_counts,
    metavar="N[,N...]",
    help="Number of ranks; several are measured in turn, as a curve.  [default: the GPUs, or 2 on a CPU, as the"
    " strategy allows]",
)
@click.option("--shape", "shape_name", default="tiny", show_default=True, help=f"One of {', '.join(PRESETS)}.")
@_dimensions
@_option("trials", "Times that fresh ranks measure it.", default=3)
@_option("steps", "Measured steps of a trial.", default=20)
@_option("warm_up", "Unmeasured steps before them.", default=5)
@_option("trace_steps", "Steps under the profiler, after the measured ones.", default=3)
@click.option("--keep-traces", is_flag=True, help="Keep each rank's trace beside its Timeline.")
@click.option("--trace-every", type=int, metavar="STEPS", help="Trace again after each so many measured steps.")
@click.option("--memory-snapshot", is_flag=True, help="Record the memory of one step: by category, and its blocks.")
@_option("precision", "Of the arithmetic.", type=click.Choice(get_args(Precision)), default="fp32")
@click.option("--device", type=click.Choice(get_args(Device)), help="[default: cuda where a GPU is, else cpu]")
@click.option("--backend", type=click.Choice(get_args(Backend)), help="[default: nccl on cuda, gloo on cpu]")
@_option("threads", "CPU threads of a rank.", default=1)
@_option("seed", "Of weights and data.", default=0)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_option,
    help="An option of the strategy; `observatory list STRATEGY` shows all.",
)
@click.option("--with-baseline", type=click.Choice(["weak", "strong"]), help="Measure `single` too, in turn with it.")
@click.option(
    "--baseline",
    "baseline_run",
    type=NamedText(),
    metavar="RUN",
    shell_complete=complete_run,
    help="Run that the scaling efficiency is relative to.",
)
@click.option("--limit", "limit_s", type=float, default=600.0, show_default=True, help="Seconds that a trial may take.")
@engine_options
@_option("port", "Port of this run's /metrics.", type=click.IntRange(0, 65535), default=9464)
@click.option("--note", metavar="TEXT", help="What the run is for; it is ad hoc then, and not shown at /metrics.")
@click.option("--nightly", "is_nightly", is_flag=True, help="Show it at /metrics though it measures less than usual.")
@click.option(
    "--inject",
    "fault_text",
    metavar="KIND@RANK:STEP",
    help="Inject a fault: raise, kill, stop, hang, wait, memory, exit, leave.",
)
@click.option("--check-convergence", "is_check", is_flag=True, help="Compare losses with one rank's, and name causes.")
@click.option(
    "--inject-cause", "mistakes", multiple=True, type=click.Choice(MISTAKES), help="Inject a cause for that check."
)
@click.option("--timeline", "with_timeline", is_flag=True, help="Draw a step of a pipeline's stages, and trace it.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would run and what each rank needs; start nothing.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the final result.")
@click.option("-v", "--verbose", is_flag=True, help="Say what is about to run, and when each trial ends.")
@RUNS
@STORE
@FORMAT
@DETAILS
def command(**parameters: Any) -> int:
    """Measure one strategy on this machine.

    \b
    Example:
      observatory run ddp --ranks 2 --with-baseline weak
    """
    from bench.cli.dry_run import plan_lines, print_plan
    from bench.cli.execute import execute, exit_code, present
    from bench.cli.main import FINE
    from bench.cli.planning import RunOptions, plan
    from bench.runner.case_args import CaseArgs

    context = click.get_current_context()
    given = {
        parameter.name: parameter.opts[0].removeprefix("--")
        for parameter in context.command.params
        if parameter.name is not None and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    parameters["dimensions"] = {name: parameters.pop(name) for name in DIMENSIONS}
    args = CaseArgs(**{field.name: parameters.pop(field.name) for field in fields(CaseArgs)})
    options = RunOptions(given=given, **parameters)

    planned = plan(args, options)
    if planned.device_reason is not None and not options.is_dry:
        options.tell(planned.device_reason)
    for line in planned.crowds:
        options.tell(line)
    if options.is_dry:
        print_plan(planned, options)
        return FINE
    if options.verbose:
        for line in plan_lines(planned, options):
            options.tell(line)
    results = execute(planned, options)
    present(planned, options, results)
    return exit_code(results)
