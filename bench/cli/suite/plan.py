"""`observatory suite plan` and `suite schema`: show what a suite would run here, and the schema of suite files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bench.cli.completion import complete_suite
from bench.cli.options import FORMAT, ON, RUNS, STORE, Duration, NamedText, engine_options
from bench.cli.run.case_options import NO_BIND
from bench.errors import InfrastructureFailed, Misuse, say

if TYPE_CHECKING:
    from bench.session.case_args import NodeResources
    from bench.suite.plan import SuitePlan

SUITE = click.argument("suite_name", metavar="NAME|FILE", type=NamedText(), shell_complete=complete_suite)
SETTINGS = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Value that replaces one in the file, for example defaults.trials=5 or case.ddp.ranks=[1,2].",
)


def with_binding(function: Callable[..., Any]) -> Any:
    """Add --no-bind to a command of a suite, which sets the default of its cases."""

    @wraps(function)
    def bound(*, bind: bool, settings: tuple[str, ...], **others: Any) -> Any:
        return function(settings=settings if bind else (*settings, "defaults.bind=false"), **others)

    return NO_BIND(bound)


ONLY = click.option(
    "--only",
    multiple=True,
    metavar="TAG",
    help="Only cases with this tag, and the cases they are compared with; all: every case.  [default: all but extra]",
)
BUDGET = click.option("--budget", "budget_s", type=Duration(), help="Time for all cases, for example 2h.")


@click.command(name="plan")
@SUITE
@SETTINGS
@ONLY
@BUDGET
@engine_options
@ON
@RUNS
@STORE
@FORMAT
@with_binding
def plan(
    suite_name: str,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    on: str | None,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> None:
    """Show which cases a suite would run here, what each needs, and how long it takes.

    Also shows why some cases cannot run here, and warns if checkpoints do not fit on the disk of --runs. Durations come
    from the history. The command starts nothing and writes nothing; with --engine slurm, it asks Slurm what its nodes
    have; with --on, it predicts memory and step of each case on another machine. NAME is a shipped suite: collectives,
    levers, nightly, scaling, single_node or smoke.

    \b
    Example:
      observatory suite plan smoke --set defaults.trials=5
    """
    from bench.session.case_args import read_node
    from bench.suite.plan import left_out
    from bench.suite.plan_report import print_plan

    if on is not None:
        source = click.get_current_context().get_parameter_source
        of_ranks = ("engine_name", "nodes", "ranks_per_node", "engine_file")
        if any(source(name) is ParameterSource.COMMANDLINE for name in of_ranks):
            raise Misuse(
                "--on defines the nodes, so --engine, --engine-file, --nodes and --ranks-per-node cannot be set"
                " with it; leave them out"
            )
        _print_plan_on(on, suite_name, settings, only, budget_s, format_name)
        return
    node = read_node(nodes, ranks_per_node, engine=engine_name, engine_file=engine_file)
    planned = read_plan(suite_name, settings, store_url, node, runs_folder)
    out = left_out(planned, only, budget_s)
    print_plan(planned, out, format_name, node.cluster)


def _print_plan_on(
    on: str,
    suite_name: str,
    settings: Sequence[str],
    only: Sequence[str],
    budget_s: float | None,
    format_name: str,
) -> None:
    """Print the plan on a remote machine, for which no history has times."""
    from bench.analysis.prediction.suite_report import print_plan_on
    from bench.machine.machines.machine_file import read_machine
    from bench.session.case_args import node_on
    from bench.suite.file import read_suite
    from bench.suite.form.document import find_suite
    from bench.suite.plan import left_out, plan_suite

    machine = read_machine(on)
    suite = read_suite(find_suite(suite_name), settings)
    planned = plan_suite(suite, node_on(machine), f"{machine.name} is not here")
    print_plan_on(planned, machine, left_out(planned, only, budget_s), format_name)


def read_plan(
    suite_name: str, settings: Sequence[str], store_url: str | None, node: NodeResources, runs_folder: Path
) -> SuitePlan:
    """Return the plan of a suite on such nodes, with estimates from the history if it can be read.

    runs_folder: where checkpoints would be; the disks of a cluster's nodes are unknown.

    Raises:
        Misuse: the suite is unknown or wrong.
    """
    from bench.store.history import History, NoStoreYet
    from bench.suite.file import read_suite
    from bench.suite.form.document import find_suite
    from bench.suite.plan import plan_suite, with_disk_warnings

    suite = read_suite(find_suite(suite_name), settings)
    try:
        with History(store_url, writable=False, is_glance=True) as history:
            planned = plan_suite(suite, node, history)
    except NoStoreYet:
        planned = plan_suite(suite, node, "no run is in the history yet")
    except InfrastructureFailed as error:
        say(f"the plan has no estimates: {error}")
        planned = plan_suite(suite, node, "the history cannot be read")
    return with_disk_warnings(planned, runs_folder) if node.cluster is None else planned


@click.command(name="schema")
def schema() -> None:
    """Print the JSON Schema of suite files.

    With this schema, an editor completes and checks suite files (docs/guides/suites.md).

    \b
    Example:
      observatory suite schema
    """
    from bench.report.table import print_json
    from bench.suite.form.tables import json_schema

    print_json(json_schema())
