"""`observatory run`: its options; plans, measures and presents a case."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click
from click.core import ParameterSource

from bench.cli.completion import complete_run, complete_strategy
from bench.cli.options import DETAILS, FORMAT, ON, RUNS, SHARING, STORE, NamedText, engine_options
from bench.cli.run.case_options import LIMIT, RANKS, GroupedCommand, case_options, named_option
from bench.errors import FINE
from workloads.cost_models.shape import DIMENSIONS
from workloads.options import MISTAKES

GROUPS = {
    "What runs": (
        *("ranks", "options", "with_baseline", "baseline_run", "is_check", "device", "backend"),
        *(
            "engine_name",
            "nodes",
            "ranks_per_node",
            "engine_file",
            "precision",
            "threads",
            "bind",
            "seed",
            "is_dry",
            "on",
        ),
    ),
    "The model": ("shape_name", *DIMENSIONS),
    "How it is measured": ("trials", "steps", "warm_up", "limit_s"),
    "What is observed": ("trace_steps", "keep_traces", "trace_every", "memory_snapshot", "with_timeline", "port"),
    "Checkpoints": ("save_every", "save_mode", "keep_checkpoint"),
    "Where results go, and messages": (
        *("runs_folder", "shared", "store_url", "format_name", "has_details", "quiet", "verbose", "note", "is_nightly"),
    ),
    "Fire drills": ("fault_text", "mistakes"),
}


@click.command(
    name="run", cls=GroupedCommand, groups=GROUPS, too_many="`observatory choose` ranks several strategies for a model"
)
@click.argument("strategy", shell_complete=complete_strategy)
@RANKS
@case_options(trials=3)
@click.option("--keep-traces", is_flag=True, help="Also keep each rank's full trace, as torch.profiler wrote it.")
@click.option("--trace-every", type=int, metavar="STEPS", help="Interval between traced steps, in measured steps.")
@click.option("--memory-snapshot", is_flag=True, help="Record the memory of one step, by category and block.")
@click.option("--keep-checkpoint", is_flag=True, help="Keep the last checkpoint of each trial in the run's folder.")
@click.option("--with-baseline", type=click.Choice(["weak", "strong"]), help="Also measure `single`, in turn.")
@click.option(
    "--baseline",
    "baseline_run",
    type=NamedText(),
    metavar="RUN",
    shell_complete=complete_run,
    help="Run that scaling efficiency is relative to.",
)
@LIMIT
@engine_options
@named_option("port", "Port of this run's /metrics.", type=click.IntRange(0, 65535), default=9464)
@click.option("--note", metavar="TEXT", help="Purpose of the run, which makes it ad hoc: /metrics does not show it.")
@click.option(
    "--nightly", "is_nightly", is_flag=True, help="Show the run at /metrics even if it measures less than usual."
)
@click.option(
    "--inject",
    "fault_text",
    metavar="KIND@RANK:STEP",
    help="Inject a fault: raise, kill, stop, hang, wait, memory, exit, leave.",
)
@click.option(
    "--check-convergence",
    "is_check",
    is_flag=True,
    help="Compare losses with those of one rank, and explain differences.",
)
@click.option(
    "--inject-cause",
    "mistakes",
    multiple=True,
    type=click.Choice(MISTAKES),
    help="Inject a fault for --check-convergence to find.",
)
@click.option("--timeline", "with_timeline", is_flag=True, help="Draw a step of a pipeline's stages, and trace it.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would run and what each rank needs; start nothing.")
@ON
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the final result.")
@click.option("-v", "--verbose", is_flag=True, help="Print what will run, and when each trial ends.")
@RUNS
@SHARING
@STORE
@FORMAT
@DETAILS
def command(**parameters: Any) -> int:
    """Measure one strategy, on this machine or on nodes.

    \b
    Example:
      observatory run ddp --ranks 2 --with-baseline weak
    """
    from bench.cli.run.dry_run import plan_lines, print_plan
    from bench.cli.run.execute import execute, present
    from bench.cli.run.planning import RunOptions, plan
    from bench.session.case_args import CaseArgs
    from bench.session.session import exit_code

    context = click.get_current_context()
    command_line = {
        parameter.name: parameter.opts[0].removeprefix("--")
        for parameter in context.command.params
        if parameter.name is not None and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    parameters["dimensions"] = {name: parameters.pop(name) for name in DIMENSIONS}
    args = CaseArgs(**{field.name: parameters.pop(field.name) for field in fields(CaseArgs)})
    options = RunOptions(command_line=command_line, **parameters)

    planned = plan(args, options)
    if planned.device_reason is not None:
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
    return exit_code([results.runs])
