"""`observatory suite`: suites of cases, declared in a file: planned, run, resumed and shown; and the files' schema."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.completion import complete_suite
from bench.cli.options import FORMAT, RUNS, STORE, Duration, NamedPath, NamedText, engine_options, nodes_options
from bench.errors import InfrastructureFailed, Misuse, say

if TYPE_CHECKING:
    from bench.engines.kubernetes.manifests import Form
    from bench.suites.ledger import LedgerWriter
    from bench.suites.plan import SuitePlan
    from bench.suites.suite_results import SuiteResult
    from bench.suites.suite_run import SuiteEnd

NEWEST = "the newest"
"""In place of an id: --resume without one."""


@click.group(name="suite")
def command() -> None:
    """Suites: many cases, declared in a file.

    \b
    Example:
      observatory suite plan smoke
    """


SUITE = click.argument("suite_name", metavar="NAME|FILE", type=NamedText(), shell_complete=complete_suite)
SETTINGS = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="A value in place of the file's, such as defaults.trials=5 or case.ddp.ranks=[1,2].",
)
ONLY = click.option(
    "--only",
    multiple=True,
    metavar="TAG",
    help="Only cases with this tag, and what they are compared with; all: every case.  [default: all but extra]",
)
BUDGET = click.option("--budget", "budget_s", type=Duration(), help="Time for all cases, such as 2h.")


@command.command(name="plan")
@SUITE
@SETTINGS
@ONLY
@BUDGET
@nodes_options
@STORE
@FORMAT
def plan(
    suite_name: str,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    nodes: int,
    ranks_per_node: int | None,
    store_url: str | None,
    format_name: str,
) -> None:
    """What a suite runs here, and what it takes.

    The cases, what each needs, why some cannot run here, and how long they take by the history. Starts nothing and
    writes nothing. NAME is a suite that is shipped: collectives, levers, nightly, scaling, single_node or smoke.

    \b
    Example:
      observatory suite plan smoke --set defaults.trials=5
    """
    from bench.reports.format import to_reader
    from bench.reports.suites.plan import print_plan
    from bench.suites.plan import left_out

    planned = read_plan(suite_name, settings, store_url, nodes=nodes, ranks_per_node=ranks_per_node)
    out = left_out(planned, only, budget_s)
    with to_reader():
        print_plan(planned, format_name, out)


def read_plan(
    suite_name: str,
    settings: Sequence[str],
    store_url: str | None,
    *,
    nodes: int = 1,
    ranks_per_node: int | None = None,
) -> SuitePlan:
    """Return the plan of a suite on this machine, with estimates from the history where it can be read.

    nodes, ranks_per_node: see `bench.runner.case_args.Node`.

    Raises:
        Misuse: the suite is unknown or wrong.
    """
    from bench.runner.case_args import read_node
    from bench.runs.database import parse_url
    from bench.runs.history import History, NoStoreYet
    from bench.suites.form.document import find_suite
    from bench.suites.plan import plan_suite
    from bench.suites.suite_file import read_suite

    suite = read_suite(find_suite(suite_name), settings)
    if store_url is not None:
        parse_url(store_url)
    node = read_node(nodes, ranks_per_node)
    try:
        with History(store_url, writable=False, is_glance=True) as history:
            return plan_suite(suite, node, history)
    except NoStoreYet:
        return plan_suite(suite, node, "no run is in the history yet")
    except InfrastructureFailed as error:
        say(f"the plan has no estimates: {error}")
        return plan_suite(suite, node, "the history cannot be read")


@command.command(name="schema")
def schema() -> None:
    """The JSON Schema of suite files.

    By it, an editor completes and checks them: docs/suites.md.

    \b
    Example:
      observatory suite schema
    """
    from bench.reports.format import print_json
    from bench.suites.form.suite_keys import json_schema

    print_json(json_schema())


@command.command(name="render")
@SUITE
@SETTINGS
@ONLY
@BUDGET
@click.option(
    "--engine",
    "engine_name",
    type=click.Choice(["kubernetes"]),
    default="kubernetes",
    show_default=True,
    help="What the manifests are for.",
)
@click.option(
    "--engine-file",
    type=NamedPath(),
    metavar="FILE",
    help="Image, volume and pods, in TOML: docs/clusters.md.",
)
@nodes_options
@click.option(
    "--as",
    "form",
    type=click.Choice(["jobset", "trainjob"]),
    default="jobset",
    show_default=True,
    help="A JobSet, or a TrainJob of Kubeflow Trainer with its runtime.",
)
@click.option(
    "--key-secret", metavar="NAME", type=NamedText(), help="A Secret that has the key, in place of a new one."
)
@click.option(
    "--output", type=NamedPath(is_folder=False), metavar="FILE", help="Where to write.  [default: standard output]"
)
def render(
    suite_name: str,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    engine_name: str,
    engine_file: Path | None,
    nodes: int,
    ranks_per_node: int | None,
    form: Form,
    key_secret: str | None,
    output: Path | None,
) -> None:
    """Write manifests with which kubectl runs a suite in pods.

    They have a Secret with a new key, so a file is one that its owner alone can read. Nothing is started.

    \b
    Example:
      observatory suite render scaling --nodes 4 --ranks-per-node 8 --engine-file kubernetes.toml
    """
    from bench.engines.kubernetes.manifests import SuiteJob, as_yaml, check_nodes, manifests
    from bench.engines.kubernetes.settings import read_kubernetes_settings
    from bench.reports.format import to_reader
    from bench.suites.form.document import find_suite, shipped_suites
    from bench.suites.suite_file import read_suite
    from collectors.files import replace_file

    path = find_suite(suite_name)
    suite = read_suite(path, settings)
    counts = [(case.name, None if case.args.ranks is None else case.args.ranks[0]) for case in suite.cases]
    check_nodes(suite.name, counts, nodes, ranks_per_node)
    words = [
        word for option, texts in (("--set", settings), ("--only", only)) for text in texts for word in (option, text)
    ]
    job = SuiteJob(
        suite=suite.name,
        file=None if path in shipped_suites().values() else path.read_text(encoding="utf-8"),
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        settings=read_kubernetes_settings(engine_file),
        words=words if budget_s is None else [*words, "--budget", f"{budget_s:g}s"],
        key_secret=key_secret,
    )
    text = as_yaml(manifests(job, form))
    if output is None:
        with to_reader():
            click.echo(text, nl=False)
        return
    draft = output.with_name(f"{output.name}.part")
    try:
        draft.touch(mode=0o600)
        replace_file(output, text.encode(), draft=draft, mode=0o600)
    except OSError as error:
        raise InfrastructureFailed(
            f"{output} cannot be written: {error.strerror}; name another with --output"
        ) from None


@command.command(name="run")
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
@engine_options
@click.option(
    "--preflight/--no-preflight",
    "has_preflight",
    default=None,
    help="Check the nodes before the suite.  [default: where they are a cluster's]",
)
@click.option("--drop-bad", "is_dropping", is_flag=True, help="Leave out nodes that the check finds to be bad.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="Port of this suite's /metrics."
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and the final result.")
@click.option("-v", "--verbose", is_flag=True, help="Say when each trial ends.")
@RUNS
@STORE
@FORMAT
def run(
    suite_name: str | None,
    settings: tuple[str, ...],
    only: tuple[str, ...],
    budget_s: float | None,
    resumed: str | None,
    repeat_failed: bool,
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    has_preflight: bool | None,
    is_dropping: bool,
    port: int,
    quiet: bool,
    verbose: bool,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> int:
    """Measure the cases of a suite, and keep what is measured whatever happens.

    NAME is a suite that is shipped: collectives, levers, nightly, scaling, single_node or smoke.

    \b
    Example:
      observatory suite run smoke --budget 30m
    """
    from bench.cli.main import interrupt_in_order
    from bench.doctor.fleet import last_good, save
    from bench.doctor.preflight import Preflight
    from bench.engines.cluster import Request
    from bench.engines.registry import ENGINES
    from bench.exporter.server import serving
    from bench.reports.format import to_reader
    from bench.reports.progress import SuiteProgress
    from bench.reports.suites.results import print_suite
    from bench.runner.patient_store import PatientStore
    from bench.runner.recover import recover_runs
    from bench.runs.history import History
    from bench.runs.run_dir import check_place
    from bench.suites.choice import choose
    from bench.suites.ledger import SuiteState
    from bench.suites.suite_folder import begin, resume, suite_run_folders
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
    planned = read_plan(suite_name, settings, store_url, nodes=nodes, ranks_per_node=ranks_per_node)
    suite = planned.suite
    check_place(runs_folder)

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
    request = Request(nodes=nodes, file=engine_file, tell=progress.tell)
    with (
        ENGINES[engine_name](request) as allocation,
        Preflight(allocation, runs_folder, ranks_per_node=ranks_per_node, tell=progress.tell) as preflight,
        History(store_url) as history,
        serving(runs_folder, store_url, port=port, on_notice=progress.tell),
    ):
        fleet = None
        if is_checked and choice.cases:
            fleet = preflight.check(last_good(suite_run_folders(runs_folder)), is_dropping=is_dropping)
            if preflight.dropped:
                left = nodes - preflight.dropped
                planned = read_plan(suite_name, settings, store_url, nodes=left, ranks_per_node=ranks_per_node)
                choice = choose(planned, state, tags=only, budget_s=budget_s, is_failed_repeated=repeat_failed)
        for notice in recover_runs(runs_folder, history, store_url).notices():
            progress.tell(notice)
        with resumed_ledger or begin(suite, runs_folder, only) as ledger, progress:
            folder = ledger.folder
            progress.tell(f"suite run {folder.name}{' goes on' if ledger.is_resumed else ''}")
            if fleet is not None:
                save(fleet, folder)
            if not choice.cases and not choice.not_run:
                progress.tell(f"nothing is missing in {folder.name}")
            crowds = [(line, one.suite_case.name) for one in choice.cases for line in one.crowds]
            for line in dict.fromkeys(line for line, _ in crowds):
                progress.tell(f"{', '.join(name for found, name in crowds if found == line)}: {line}")
            store = PatientStore(history, runs=runs_folder, url=store_url, tell=progress.tell)
            setup = Setup(
                runs=runs_folder.absolute(),
                store_url=store_url,
                store=store,
                open_engine=preflight.open,
                display=progress,
                budget_s=budget_s,
            )
            end = SuiteRunner(planned, ledger, setup).run(choice)
    result = read_result(folder)
    with to_reader():
        print_suite(result, format_name)
    if end.failure is not None:
        say(str(end.failure))
    if store.failure is not None:
        say(f"{store.failure}; what it lacks is taken in by the next command that reads it, from {runs_folder}")
    words = ["observatory", "suite", "run", suite_name, *(word for text in settings for word in ("--set", text))]
    words += places_given(runs_folder, store_url)
    for line in _next_moves(words, result, len(choose(planned, end.state, tags=only).cases)):
        progress.tell(line)
    return exit_code(end, result, is_store_gone=store.failure is not None)


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


def exit_code(end: SuiteEnd, result: SuiteResult, *, is_store_gone: bool) -> int:
    """Return the exit code: interrupted before infrastructure before a case that failed or could not run."""
    from bench.cli.main import CASE_FAILED, FINE, INFRASTRUCTURE, INTERRUPTED

    if end.is_interrupted:
        return INTERRUPTED
    cases = [end.state.case(case.name) for case in result.cases]
    if end.failure is not None or is_store_gone or any(case.is_infrastructure for case in cases):
        return INFRASTRUCTURE
    return CASE_FAILED if result.named("failed", "timed_out", "skipped") else FINE


@command.command(name="show")
@click.argument("name", metavar="[SUITE|ID]", required=False, type=NamedText())
@click.option("--limit", "count", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Most listed.")
@RUNS
@STORE
@FORMAT
def show(name: str | None, count: int, runs_folder: Path, store_url: str | None, format_name: str) -> None:
    """Suite runs and how they ended, or all of one of them.

    ID is that of a suite run, or the beginning of it.

    \b
    Example:
      observatory suite show smoke
    """
    from bench.reports.format import to_reader
    from bench.reports.suites.results import print_suite, print_suite_runs

    results = _suite_runs(runs_folder, store_url)
    wanted = results
    if name is not None:
        found = [one for one in results if one.id == name] or [one for one in results if one.id.startswith(name)]
        wanted = [one for one in results if one.suite == name]
        if not wanted:
            if len(found) != 1:
                what = "may be any of" if found else "is unknown; the newest are"
                newest = ", ".join(one.id for one in (found or results)[:6]) or "none"
                raise Misuse(f'suite or suite run "{name}" {what}: {newest}')
            with to_reader():
                print_suite(_whole(found[0], store_url), format_name)
            return
    if not wanted:
        say("no suite has run yet; `observatory suite run smoke` runs one")
    if wanted or format_name != "table":
        with to_reader():
            print_suite_runs(wanted[:count], format_name)


def _suite_runs(runs_folder: Path, store_url: str | None) -> list[SuiteResult]:
    """Return the suite runs of the folder and of the history, newest first, without what their cases measured."""
    from bench.runs.history import History, NoStoreYet
    from bench.suites.suite_folder import suite_run_folders
    from bench.suites.suite_results import read_result, result_of_record

    found: dict[str, SuiteResult] = {}
    for folder in suite_run_folders(runs_folder):
        try:
            found[folder.name] = read_result(folder, has_summaries=False)
        except Misuse as error:  # One that cannot be read must not keep people from the others.
            say(str(error))
    with suppress(NoStoreYet), History(store_url, writable=False) as history:
        for record in history.suite_runs(limit=1_000_000):
            if record.id not in found:
                found[record.id] = result_of_record(record)
    return sorted(found.values(), key=lambda one: (one.started_ns, one.id), reverse=True)


def _whole(result: SuiteResult, store_url: str | None) -> SuiteResult:
    """Return the suite run with what its cases measured: by their folders, else as far as the history tells."""
    from bench.runs.history import History, NoStoreYet
    from bench.suites.suite_results import read_result, result_of_record, with_summaries

    if result.folder is not None:
        result = read_result(result.folder)
        if any(case.run is not None and case.summary is None for case in result.cases):  # Its folder was pruned.
            with suppress(NoStoreYet), History(store_url, writable=False) as history:
                return with_summaries(result, history.runs(limit=1_000_000, suite_run=result.id))
        return result
    with History(store_url, writable=False) as history:
        record = next(one for one in history.suite_runs(limit=1_000_000) if one.id == result.id)
        return result_of_record(record, history.runs(limit=1_000_000, suite_run=result.id))
