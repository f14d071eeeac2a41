"""`observatory suite run`: measures the cases of a suite, and goes on with what is missing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.completion import complete_suite
from bench.cli.options import FORMAT, RUNS, SHARING, STORE, NamedText, engine_options
from bench.cli.suite.plan import BUDGET, ONLY, SETTINGS, read_plan
from bench.errors import InfrastructureFailed, Misuse, say

if TYPE_CHECKING:
    from bench.runner.patient_store import PatientStore
    from bench.suites.choice import Choice
    from bench.suites.ledger import LedgerWriter
    from bench.suites.suite_results import SuiteResult
    from bench.suites.suite_run import SuiteEnd

NEWEST = "the newest"
"""In place of an id: --resume without one."""


@click.command(name="run")
@click.argument(
    "suite_name", metavar="NAME|FILE", required=False, type=NamedText(), shell_complete=complete_suite
)  # --resume takes it for its ID where it stands behind it.
@SETTINGS
@ONLY
@BUDGET
@click.option(
    "--resume",
    "resumed",
    is_flag=False,
    flag_value=NEWEST,
    metavar="[ID]",
    help="Go on with a suite run, the newest that has not ended well unless one is named: run what is missing.",
)
@click.option("--repeat-failed", is_flag=True, help="Resume, and run failed cases again, too.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Print the plan of what this command would run; start nothing.")
@engine_options
@click.option(
    "--preflight/--no-preflight",
    "has_preflight",
    default=None,
    help="Check the nodes before the suite.  [default: where they are a cluster's]",
)
@click.option("--drop-bad", "is_dropping", is_flag=True, help="Leave out nodes that the check finds to be bad.")
@click.option(
    "--gate/--no-gate",
    "has_gate",
    default=None,
    help="At the end, measure suspected changes once more and judge the night.  [default: of nightly suites]",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Port of this suite's /metrics."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the final result.")
@click.option("-v", "--verbose", is_flag=True, help="Say when each trial ends.")
@RUNS
@SHARING
@STORE
@FORMAT
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
    port: int,
    quiet: bool,
    verbose: bool,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> int:
    """Measure the cases of a suite; completed work survives any failure.

    NAME is a suite that is shipped: collectives, levers, nightly, scaling, single_node or smoke.

    \b
    Example:
      observatory suite run smoke --budget 30m
    """
    from bench.doctor.fleet import last_good, save
    from bench.doctor.preflight import Preflight
    from bench.engines.cluster import NodeRequest
    from bench.engines.registry import ENGINES, nodes_to_ask
    from bench.errors import FINE, interrupt_in_order
    from bench.exporter.server import serving
    from bench.reports.suites.plan import print_plan
    from bench.reports.suites.progress import SuiteProgress
    from bench.reports.suites.results import print_suite
    from bench.reports.table import print_page
    from bench.runner.case_args import read_node
    from bench.runner.patient_store import PatientStore
    from bench.runs.history import History, check_store
    from bench.runs.run_dir import check_place
    from bench.suites.choice import as_chosen, choose
    from bench.suites.gate.nightly import suspected_cases
    from bench.suites.ledger import LEDGER, SuiteState, fold, read_ledger
    from bench.suites.suite_folder import begin, find_to_resume, resume, suite_run_folders
    from bench.suites.suite_results import read_result
    from bench.suites.suite_run import Setup, SuiteRunner

    if quiet and verbose:
        raise Misuse("--quiet and --verbose cannot be together; take one of them")
    if suite_name is None and resumed not in (None, NEWEST):
        suite_name, resumed = resumed, NEWEST
    if suite_name is None:
        raise click.UsageError("Missing argument 'NAME|FILE'.")
    is_checked = has_preflight if has_preflight is not None else is_dropping or engine_name != "local"
    if is_dropping and not is_checked:
        raise Misuse("--drop-bad leaves out what the check finds; leave --no-preflight out")
    if is_checked and engine_name == "local" and nodes == 1:
        raise Misuse("this machine alone has no peers to be compared with; leave --preflight and --drop-bad out")
    node = read_node(nodes, ranks_per_node, engine=engine_name, engine_file=engine_file)
    if is_dry:
        check_store(store_url)
    planned = read_plan(suite_name, settings, store_url, node)
    suite = planned.suite
    is_gated = has_gate if has_gate is not None else suite.is_nightly
    check_place(runs_folder)

    def asked_for(choice: Choice) -> int:
        """Return how many nodes the suite takes: where bad ones are left out, or reruns take others, some are spare."""
        cases = [one.case for one in choice.cases if one.case is not None]
        return nodes if is_dropping or is_gated else nodes_to_ask(engine_name, nodes, cases)

    if is_dry:
        state, tags = SuiteState(), only
        if resumed is not None or repeat_failed:
            folder = find_to_resume(suite, runs_folder, None if resumed in (None, NEWEST) else resumed)
            state = fold(read_ledger(folder / LEDGER).records)
            tags = only or (() if state.begun is None else state.begun.tags)
        choice = choose(planned, state, tags=tags, budget_s=budget_s, is_failed_repeated=repeat_failed)
        if (asked := asked_for(choice)) != nodes:
            node = read_node(asked, ranks_per_node, engine=engine_name, engine_file=engine_file, tell=lambda text: None)
        print_plan(*as_chosen(planned, choice, state), format_name, node.cluster)
        if format_name == "table":
            print_page(["nothing was started, and nothing written"])
        return FINE

    # What is wrong with the request is said before anything is written.
    resumed_ledger: LedgerWriter | None = None
    state = SuiteState()
    if resumed is not None or repeat_failed:
        resumed_ledger = resume(suite, runs_folder, None if resumed in (None, NEWEST) else resumed)
        state = resumed_ledger.state
        only = only or (() if state.begun is None else state.begun.tags)
    try:
        choice = choose(planned, state, tags=only, budget_s=budget_s, is_failed_repeated=repeat_failed)
    except Misuse:
        if resumed_ledger is not None:
            resumed_ledger.close()
        raise

    interrupt_in_order()
    is_drawn = False if verbose else None  # What is drawn in place would hide the lines of --verbose.
    progress = SuiteProgress(suite.name, is_drawn=is_drawn, is_long=verbose, is_quiet=quiet)
    request = NodeRequest(nodes=asked_for(choice), file=engine_file, tell=progress.tell)
    if request.nodes < nodes:
        progress.tell(f"no case uses more than {request.nodes} of {nodes} nodes, so that no more are asked for")
    if not choice.cases and not (is_gated and resumed_ledger is not None):  # Nothing runs on a node.
        engine_name, request = "local", NodeRequest()
    with (
        PatientStore(History(store_url), runs=runs_folder, url=store_url, tell=progress.tell) as store,
        serving(runs_folder, store_url, port=port, on_notice=progress.tell, cluster=node.cluster),
        ENGINES[engine_name](request) as allocation,
        Preflight(allocation, runs_folder, ranks_per_node=ranks_per_node, tell=progress.tell) as preflight,
    ):
        with resumed_ledger or begin(suite, runs_folder, only) as ledger, progress:
            folder = ledger.folder
            progress.tell(f"suite run {folder.name}{' goes on' if ledger.is_resumed else ''}")
            if is_checked and choice.cases:
                fleet = preflight.check(last_good(suite_run_folders(runs_folder)), is_dropping=is_dropping)
                if fleet is not None:
                    save(fleet, folder)
                if preflight.dropped:
                    planned = read_plan(suite_name, settings, store_url, replace(node, nodes=nodes - preflight.dropped))
                    choice = choose(planned, state, tags=only, budget_s=budget_s, is_failed_repeated=repeat_failed)
            if not choice.cases and not choice.not_run:
                progress.tell(f"nothing is missing in {folder.name}")
            crowds = [(line, one.suite_case.name) for one in choice.cases for line in one.crowds]
            for line in dict.fromkeys(line for line, _ in crowds):
                progress.tell(f"{', '.join(name for found, name in crowds if found == line)}: {line}")
            setup = Setup(
                runs=runs_folder.absolute(),
                store_url=store_url,
                store=store,
                open_engine=preflight.open,
                display=progress,
                budget_s=budget_s,
                suspects=suspected_cases if is_gated else None,
            )
            end = SuiteRunner(planned, ledger, setup).run(choice)
        result, not_judged = read_result(folder), None
        print_suite(result, format_name)
        if is_gated and not end.is_interrupted:
            lines, not_judged = _judged(suite.name, store)
            for line in lines:
                progress.tell(line)
    for failure in (end.failure, *end.reruns.failed, end.reruns.failure, not_judged):
        if failure is not None:
            say(str(failure))
    if store.failure is not None:
        say(f"{store.failure}; what it lacks is taken in by the next command that reads it, from {runs_folder}")
    words = ["observatory", "suite", "run", suite_name, *(word for text in settings for word in ("--set", text))]
    words += places_given(runs_folder, store_url)
    for line in _next_moves(words, result, len(choose(planned, end.state, tags=only).cases)):
        progress.tell(line)
    return exit_code(end, result, is_store_gone=store.failure is not None, is_judged=not_judged is None)


def _judged(suite: str, store: PatientStore) -> tuple[list[str], str | None]:
    """Judge the night; return what the gate says in a line and how to see more, or why an earlier night forbids it.

    Without a store nothing is judged.
    """
    from bench.reports.gate.check import exit_words
    from bench.suites.gate.check import MOST_RUNS, check_suite

    history = store.history
    if history is None:
        return [], None
    try:
        check = check_suite(history, suite, history.suite_runs(MOST_RUNS, suite), since_ns=None, now_ns=time.time_ns())
    except InfrastructureFailed as error:
        store.failed(error)
        return [], None
    except Misuse as error:  # This night is kept all the same.
        return [], f"the night is not judged: {error}"
    return [*exit_words([check]), f"`observatory check --suite {suite}` says more"], None


def places_given(runs_folder: Path, store_url: str | None) -> list[str]:
    """Return the options of this command line that say where it runs and where results are, without a secret."""
    from bench.machine.machine import redact

    context = click.get_current_context()
    places = {"runs_folder": ("--runs", str(runs_folder)), "store_url": ("--store", redact(store_url or ""))}
    for name in ("engine_name", "nodes", "ranks_per_node", "engine_file"):
        option = "engine" if name == "engine_name" else name.replace("_", "-")
        places[name] = (f"--{option}", str(context.params[name]))
    return [
        word
        for name, words in places.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for word in words
    ]


def _next_moves(words: Sequence[str], result: SuiteResult, missing: int) -> list[str]:
    """Return how the suite run is gone on with, where something is missing or failed.

    words: of the command line that began it. missing: cases that it would run when it is resumed.
    """
    again = f"{shlex.join(words)} --resume {result.id}"
    moves = [f"`{again}` runs the {missing} case(s) that are missing"] if missing else []
    if failed := result.named("failed", "timed_out"):
        moves.append(f"`{again} --repeat-failed` runs the {len(failed)} case(s) that failed again")
    return moves


def exit_code(end: SuiteEnd, result: SuiteResult, *, is_store_gone: bool, is_judged: bool = True) -> int:
    """Return the exit code: interrupted before infrastructure before a case that failed or could not run.

    A suspicion that is not measured again, other than for the budget, is a failure like that of a case: the night has
    no verdict on it.
    """
    from bench.errors import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED

    if end.is_interrupted:
        return INTERRUPTED
    cases = [end.state.case(case.name) for case in result.cases]
    is_unmeasured = is_store_gone or end.failure is not None or end.reruns.failure is not None
    if is_unmeasured or not is_judged or any(case.is_infrastructure for case in cases):
        return INFRASTRUCTURE
    return CASE_FAILED if end.reruns.failed or result.named("failed", "timed_out", "skipped") else FINE
