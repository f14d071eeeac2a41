"""`observatory suite run`: measures the cases of a suite, or the missing cases of an earlier suite run."""

from __future__ import annotations

import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.completion import complete_suite
from bench.cli.options import FORMAT, RUNS, SHARING, STORE, NamedPath, NamedText, engine_options
from bench.cli.suite.plan import BUDGET, ONLY, SETTINGS, read_plan, with_binding
from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED, InfrastructureFailed, Misuse, plural, say

if TYPE_CHECKING:
    from bench.session.patient_store import PatientStore
    from bench.suite.choice import Choice
    from bench.suite.ledger import LedgerWriter
    from bench.suite.results import SuiteResult
    from bench.suite.run import SuiteEnd, SuiteRunner

NEWEST = "the newest"
"""The value of --resume without an id."""


@click.command(name="run")
@click.argument(
    "suite_name", metavar="NAME|FILE", required=False, type=NamedText(), shell_complete=complete_suite
)  # If it follows --resume, click takes it for its ID.
@SETTINGS
@ONLY
@BUDGET
@click.option(
    "--resume",
    "resumed",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[ID]",
    help="Resume a suite run and run what is missing; by default the newest incomplete or failed one.",
)
@click.option("--repeat-failed", is_flag=True, help="Resume, and also run failed cases again.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the plan of what this command would run; start nothing.")
@engine_options
@click.option(
    "--preflight/--no-preflight",
    "has_preflight",
    default=None,
    help="Check the nodes before the suite.  [default: on a cluster]",
)
@click.option("--drop-bad", "is_dropping", is_flag=True, help="Leave out nodes that the check reports as bad.")
@click.option(
    "--gate/--no-gate",
    "has_gate",
    default=None,
    help="At the end, measure suspected changes again and judge the night.  [default: for nightly suites]",
)
@click.option(
    "--repository",
    type=NamedPath(),
    metavar="FOLDER",
    help="Git repository with this program's commits, for pairs of source trees.  [default: where it was installed"
    " from]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Port of this suite's /metrics."
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and the final result.")
@click.option("-v", "--verbose", is_flag=True, help="Print when each trial ends.")
@RUNS
@SHARING
@STORE
@FORMAT
@with_binding
def run(
    suite_name: str | None,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    resumed: str | None,
    repeat_failed: bool,
    is_dry: bool,
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    has_preflight: bool | None,
    is_dropping: bool,
    has_gate: bool | None,
    repository: Path | None,
    port: int,
    quiet: bool,
    verbose: bool,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> int:
    """Measure the cases of a suite; completed work survives any failure.

    NAME is a shipped suite: collectives, levers, nightly, scaling, single_node or smoke.

    \b
    Example:
      observatory suite run smoke --budget 30m
    """
    from bench.engines.cluster import NodeRequest
    from bench.engines.registry import nodes_to_ask
    from bench.gate.nightly import suspected_cases
    from bench.machine.doctor.fleet import last_good, save
    from bench.machine.doctor.preflight import check_nodes
    from bench.report.table import print_page
    from bench.serve.server import serving
    from bench.session.case_args import read_node
    from bench.session.checkouts import find_repository
    from bench.session.session import open_session
    from bench.store.history import check_store
    from bench.store.run_dir import check_place
    from bench.suite.choice import as_chosen, choose
    from bench.suite.folder import begin, find_to_resume, resume, suite_run_folders
    from bench.suite.ledger import LEDGER, SuiteState, fold, read_ledger
    from bench.suite.plan_report import print_plan
    from bench.suite.progress import SuiteProgress
    from bench.suite.report import print_suite
    from bench.suite.results import read_result
    from bench.suite.run import SuiteRunner

    if quiet and verbose:
        raise Misuse("--quiet and --verbose exclude each other; use one of them")
    if suite_name is None and resumed not in (None, NEWEST):
        suite_name, resumed = resumed, NEWEST
    if suite_name is None:
        raise click.UsageError("Missing argument 'NAME|FILE'.")
    is_checked = has_preflight if has_preflight is not None else is_dropping or engine_name != "local"
    if is_dropping and not is_checked:
        raise Misuse("--drop-bad leaves out what the check finds; leave --no-preflight out")
    if is_checked and engine_name == "local" and nodes == 1:
        raise Misuse("a single machine has no peers to compare it with; leave --preflight and --drop-bad out")
    if repository is not None:
        find_repository(repository)
    node = read_node(nodes, ranks_per_node, engine=engine_name, engine_file=engine_file)
    if is_dry:
        check_store(store_url)
    plan = read_plan(suite_name, settings, store_url, node, runs_folder)
    suite = plan.suite
    is_gated = has_gate if has_gate is not None else suite.is_nightly
    check_place(runs_folder)

    def nodes_for(choice: Choice) -> int:
        """Return the number of nodes to request; spare ones if bad nodes are left out, or if reruns use other nodes."""
        cases = [planned.case for planned in choice.cases if planned.case is not None]
        return nodes if is_dropping or is_gated else nodes_to_ask(engine_name, nodes, cases)

    # Errors in the request are reported before anything is written.
    resumed_ledger: LedgerWriter | None = None
    state = SuiteState()
    if resumed is not None or repeat_failed:
        suite_run = None if resumed == NEWEST else resumed
        if is_dry:
            state = fold(read_ledger(find_to_resume(suite, runs_folder, suite_run) / LEDGER).records)
        else:
            resumed_ledger = resume(suite, runs_folder, suite_run)
            state = resumed_ledger.state
        only = only or (() if state.begun is None else state.begun.tags)
    try:
        choice = choose(plan, state, tags=only, budget_s=budget_s, is_failed_repeated=repeat_failed)
    except Misuse:
        if resumed_ledger is not None:
            resumed_ledger.close()
        raise
    if is_dry:
        if (requested := nodes_for(choice)) != nodes:
            node = read_node(
                requested, ranks_per_node, engine=engine_name, engine_file=engine_file, tell=lambda text: None
            )
        print_plan(*as_chosen(plan, choice, state), format_name, node.cluster)
        if format_name == "table":
            print_page(["nothing was started, and nothing written"])
        return FINE

    is_drawn = False if verbose else None  # Bars would hide the lines of --verbose.
    progress = SuiteProgress(suite.name, is_drawn=is_drawn, is_long=verbose, is_quiet=quiet)
    request = NodeRequest(nodes=nodes_for(choice), file=engine_file, tell=progress.tell)
    if request.nodes < nodes:
        progress.tell(f"no case uses more than {request.nodes} of {nodes} nodes, so no more are requested")
    if not choice.cases and not (is_gated and resumed_ledger is not None):  # Nothing runs on a node.
        engine_name, request = "local", NodeRequest()
    with open_session(
        runs=runs_folder,
        store_url=store_url,
        tell=progress.tell,
        work="suite",
        serving=partial(serving, port=port, cluster=node.cluster),
        engine=engine_name,
        request=request,
    ) as session:
        with resumed_ledger or begin(suite, runs_folder, only) as ledger, progress:
            folder = ledger.folder
            progress.tell(f"suite run {folder.name}{' continues' if ledger.is_resumed else ''}")
            if is_checked and choice.cases:
                fleet = check_nodes(
                    session,
                    last_good(suite_run_folders(runs_folder)),
                    ranks_per_node=ranks_per_node,
                    is_dropping=is_dropping,
                )
                if fleet is not None:
                    save(fleet, folder)
                if session.dropped:
                    node = replace(node, nodes=nodes - len(session.dropped))
                    plan = read_plan(suite_name, settings, store_url, node, runs_folder)
                    choice = choose(plan, state, tags=only, budget_s=budget_s, is_failed_repeated=repeat_failed)
            if not choice.cases and not choice.not_run:
                progress.tell(f"nothing is missing in {folder.name}")
            crowds: dict[str, list[str]] = defaultdict(list)
            for planned in choice.cases:
                for line in planned.crowds:
                    crowds[line].append(planned.suite_case.name)
            for line, names in crowds.items():
                progress.tell(f"{', '.join(names)}: {line}")
            suspects = suspected_cases if is_gated else None
            pairs = partial(_pair_trees, repository=repository) if is_gated else None
            end = SuiteRunner(plan, ledger, session, progress, budget_s=budget_s, suspects=suspects, pairs=pairs).run(
                choice
            )
        result, not_judged = read_result(folder), None
        print_suite(result, format_name)
        if is_gated and not end.is_interrupted:
            lines, not_judged = _judge(suite.name, session.store)
            for line in lines:
                progress.tell(line)
    for failure in (end.failure, *end.reruns.failed, end.reruns.failure, not_judged):
        if failure is not None:
            say(str(failure))
    if session.store.failure is not None:
        say(f"{session.store.failure}; the next command that reads it adds the missing runs from {runs_folder}")
    words = ["observatory", "suite", "run", suite_name, *(word for text in settings for word in ("--set", text))]
    words += places_given(runs_folder, store_url)
    for line in _next_moves(words, result, len(choose(plan, end.state, tags=only).cases)):
        progress.tell(line)
    return exit_code(end, result, is_store_gone=session.store.failure is not None, is_judged=not_judged is None)


def _pair_trees(runner: SuiteRunner, left_s: float | None, *, repository: Path | None) -> bool:
    """Measure pairs of source trees for likely changes of the gate; return whether a person interrupted it."""
    from bench.suite.tree_pairs import TreePairs

    return TreePairs(
        suite=runner.plan.suite.name,
        suite_run=runner.ledger.folder.name,
        cases={planned.suite_case.name: planned for planned in runner.plan.cases if planned.refusal is None},
        session=runner.session,
        order_of=runner.order_again,
        watch=runner.save_now_and_then,
        repository=repository,
    ).run(left_s)


def _judge(suite: str, store: PatientStore) -> tuple[list[str], str | None]:
    """Judge the night; return the gate's lines and how to see more, or why an earlier night prevents it.

    Without a store, nothing is judged.
    """
    from bench.gate.check import MOST_RUNS, check_suite
    from bench.gate.report import exit_words

    history = store.history
    if history is None:
        return [], None
    try:
        check = check_suite(history, suite, history.suite_runs(MOST_RUNS, suite), since_ns=None, now_ns=time.time_ns())
    except InfrastructureFailed as error:
        store.failed(error)
        return [], None
    except Misuse as error:  # This night is stored anyway.
        return [], f"the night is not judged: {error}"
    return [*exit_words([check]), f"`observatory check --suite {suite}` shows more"], None


def places_given(runs_folder: Path, store_url: str | None) -> list[str]:
    """Return the options of this command line that name the engine, the nodes and the stores, without secrets."""
    from bench.machine.machine import redact

    context = click.get_current_context()
    places = {"runs_folder": ("--runs", str(runs_folder)), "store_url": ("--store", redact(store_url or ""))}
    for name in ("engine_name", "nodes", "ranks_per_node", "engine_file", "repository"):
        option = "engine" if name == "engine_name" else name.replace("_", "-")
        places[name] = (f"--{option}", str(context.params[name]))
    return [
        word
        for name, words in places.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for word in words
    ]


def _next_moves(words: Sequence[str], result: SuiteResult, missing: int) -> list[str]:
    """Return the commands that resume the suite run, if something is missing or failed.

    words: the command line that began it. missing: the number of cases that a resumed run would measure.
    """

    again = f"{shlex.join(words)} --resume {result.id}"
    moves = [f"`{again}` runs the {plural(missing, 'missing case')}"] if missing else []
    if failed := result.named("failed", "timed_out"):
        moves.append(f"`{again} --repeat-failed` runs the {plural(len(failed), 'failed case')} again")
    return moves


def exit_code(end: SuiteEnd, result: SuiteResult, *, is_store_gone: bool, is_judged: bool = True) -> int:
    """Return the exit code; an interruption precedes infrastructure, which precedes failed and skipped cases.

    A suspected change that was not measured again, other than for lack of budget, counts as a failed case: the night
    has no verdict on it.
    """

    if end.is_interrupted:
        return INTERRUPTED
    cases = [end.state.case(case.name) for case in result.cases]
    is_unmeasured = is_store_gone or end.failure is not None or end.reruns.failure is not None
    if is_unmeasured or not is_judged or any(case.is_infrastructure for case in cases):
        return INFRASTRUCTURE
    return CASE_FAILED if end.reruns.failed or result.named("failed", "timed_out", "skipped") else FINE
