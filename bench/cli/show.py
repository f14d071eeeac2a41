"""`observatory show`: lists runs, shows or exports one, or compares one with a file of nccl-tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.completion import complete_run, complete_strategy
from bench.cli.options import DETAILS, FORMAT, OF_ALL_USERS, RUNS, STORE, NamedPath, NamedText
from bench.errors import InfrastructureFailed, Misuse, plural, say
from collectors.files import make_folder, write_named
from workloads.cost_models.absent import Absent

if TYPE_CHECKING:
    from bench.machine.machine import Machine
    from bench.session.recover import RecoveredRuns
    from bench.store.history import History
    from bench.store.summary import Summary

MOST_LISTED = 1_000_000
_OF_THE_LIST = {"strategy": "--strategy", "suite": "--suite", "settings": "--setting", "count": "--limit"}
"""Parameters that choose runs for the list, with their options."""
_PAGE = 500
"""Number of runs that --setting reads at a time."""
RUNS_SEARCHED = 200
"""Number of newest runs of `collectives` that are searched for the most similar one."""


@click.command(name="show")
@click.argument("run", required=False, type=NamedText(), shell_complete=complete_run)
@click.option("--strategy", shell_complete=complete_strategy, help="Only runs of this strategy.")
@click.option("--suite", type=NamedText(), help="Only runs of this suite.")
@click.option(
    "--setting",
    "settings",
    metavar="WORD",
    multiple=True,
    type=NamedText(),
    help="Only runs with this word in the column settings, for example width=256, check or drill. Repeatable.",
)
@click.option(
    "--limit", "count", type=click.IntRange(1, MOST_LISTED), default=20, show_default=True, help="Most runs listed."
)
@click.option(
    "--import",
    "import_path",
    type=NamedPath(is_folder=False),
    help="File of `nccl-tests -J`, compared with RUN or with the most similar run of collectives on the same"
    " number of ranks.",
)
@click.option(
    "--export",
    "export_folder",
    type=NamedPath(is_folder=True),
    help="Output folder for RUN's collectives, in the form of `nccl-tests -J`.",
)
@click.option(
    "--rebuild", "is_rebuild", is_flag=True, help="Add all runs of the folder --runs to the history, and list them."
)
@DETAILS
@click.option("--timeline", "with_timeline", is_flag=True, help="Draw a step of RUN's pipeline stages, and trace it.")
@RUNS
@OF_ALL_USERS
@STORE
@FORMAT
def command(
    run: str | None,
    strategy: str | None,
    suite: str | None,
    settings: tuple[str, ...],
    count: int,
    import_path: Path | None,
    export_folder: Path | None,
    is_rebuild: bool,
    has_details: bool,
    with_timeline: bool,
    runs_folder: Path,
    of_all_users: bool,
    store_url: str | None,
    format_name: str,
) -> None:
    """List runs, or show one run in full.

    RUN is the beginning of a run's name, the path of a run's folder, or the name of a watched program: NAME for its
    newest run, NAME@2026-11-20 for the newest as of that day.

    \b
    Example:
      observatory show --strategy ddp
    """
    if sum((import_path is not None, export_folder is not None, with_timeline, is_rebuild)) > 1:
        raise Misuse("--import, --export, --rebuild and --timeline exclude each other; use one of them")
    if is_rebuild and (settings or not run is strategy is suite is None):
        raise Misuse(
            "--rebuild takes all runs of a folder, and neither RUN nor --strategy, --suite or --setting; --runs says"
            " which folder"
        )
    context = click.get_current_context()
    of_list = [
        option
        for name, option in _OF_THE_LIST.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    is_list = run is None and import_path is None and export_folder is None and not (with_timeline or is_rebuild)
    if of_list and not is_list:
        raise Misuse(f"only the list of runs accepts {' and '.join(of_list)}; leave the others out")
    if has_details and (run is None or with_timeline or import_path is not None or export_folder is not None):
        raise Misuse("--details shows one run; use `observatory show RUN --details` (`observatory show` lists them)")
    if is_rebuild:
        _rebuild(runs_folder, store_url, format_name, of_all_users=of_all_users)
    elif import_path is not None:
        _import(import_path, run, runs_folder, store_url, format_name)
    elif export_folder is not None:
        _export(export_folder, run, runs_folder, store_url)
    elif with_timeline:
        _draw(run, runs_folder, store_url, format_name)
    elif run is not None:
        shown = find_shown(run, runs_folder, store_url, of_all_users=of_all_users)
        _print_run(shown, store_url, format_name, has_details=has_details)
    else:
        _take_in(runs_folder, store_url, of_all_users=of_all_users)
        _list(strategy, suite, settings, count, store_url, format_name)


def find_shown(run: str, runs_folder: Path, store_url: str | None, *, of_all_users: bool = False) -> Summary:
    """Return the run of this folder or name prefix, after adding runs whose runner died to the history.

    Of a watched run that is active, what is known so far.

    Raises:
        Misuse: there is no such run, there are several, or it is still running.
        InfrastructureFailed: the history cannot be read.
    """
    from bench.session.watched.active import active_summary
    from bench.store.history import means_folder

    if (active := active_summary(run, runs_folder)) is not None:
        return active
    if not means_folder(run, store_url):
        _take_in(runs_folder, store_url, of_all_users=of_all_users)
    return _find(run, runs_folder, store_url)


def _take_in(runs_folder: Path, store_url: str | None, *, of_all_users: bool) -> None:
    """Add the folder's runs that the history lacks, and say so; if it can only be read, say that."""
    recovered, failure = _recover(runs_folder, store_url, of_all_users=of_all_users)
    if failure is not None and recovered.runs:
        say(f"this store is read-only, so runs whose runner died are not added: {failure}")
    for notice in recovered.notices() if failure is None else recovered.problems:
        say(notice)
    _say_others(recovered)


def _say_others(recovered: RecoveredRuns) -> None:
    if recovered.others:
        say(f"left out: {plural(recovered.others, 'run')} of other users; --shared adds them to your history")


def _list(
    strategy: str | None,
    suite: str | None,
    settings: Sequence[str],
    count: int,
    store_url: str | None,
    format_name: str,
) -> None:
    """Print the newest runs in the history with these words in their settings."""
    from bench.case import find_spec
    from bench.report.run.summary import print_history
    from bench.store.history import History, NoStoreYet
    from workloads.spec import WATCHED

    summaries: tuple[Summary, ...] = ()
    with suppress(NoStoreYet), History(store_url, writable=False) as history:
        summaries = _with_settings(history, settings, count, strategy, suite)
    if not summaries and settings:
        words = " and ".join(settings)
        say(f"no run with {words} is in the history; `observatory show` lists runs with their settings")
    elif not summaries and suite is not None:
        of = "" if strategy is None else f" of {strategy}"
        say(f"no run{of} of suite {suite} is in the history yet; `observatory suite show` lists suites that ran")
    elif not summaries and strategy == WATCHED:
        say("no watched run is in the history yet; `observatory watch --name NAME -- COMMAND` makes one")
    elif not summaries and strategy is not None:
        find_spec(strategy)
        say(f"no run of {strategy} is in the history yet; `observatory run {strategy}` makes one")
    elif not summaries:
        say("no run is in the history yet; `observatory run ddp` makes one")
    if summaries or format_name != "table":
        print_history(summaries, format_name)


def _with_settings(
    history: History, settings: Sequence[str], count: int, strategy: str | None, suite: str | None
) -> tuple[Summary, ...]:
    """Return the newest runs with each of these words or names of settings: `drill` matches drill=kill@1:7."""
    from bench.store.summary import settings_words

    if not settings:
        return history.runs(limit=count, strategy=strategy, suite=suite)
    summaries: list[Summary] = []
    skipped = 0
    while len(summaries) < count and (page := history.runs(_PAGE, strategy=strategy, suite=suite, skipped=skipped)):
        skipped += len(page)
        for summary in page:
            words = settings_words(summary)
            if set(settings) <= {*words, *(word.partition("=")[0] for word in words)}:
                summaries.append(summary)
    return tuple(summaries[:count])


def _print_run(summary: Summary, store_url: str | None, format_name: str, *, has_details: bool) -> None:
    """Print one run in full, with the step that was predicted for it, or that the history now predicts."""
    from bench.analysis.prediction.scoring.before_run import predicted_steps
    from bench.report.run.summary import print_run
    from bench.store.history import History

    if format_name != "table":  # The other formats contain only measurements.
        print_run(summary, format_name)
        return
    try:
        with History(store_url, writable=False) as history:
            predicted = predicted_steps([summary], history)
    except (InfrastructureFailed, Misuse) as error:  # The run itself can be shown without a history.
        predicted = predicted_steps([summary], Absent(reason=str(error)))
    print_run(summary, format_name, has_details=has_details, predicted=predicted)


def _recover(
    runs_folder: Path, store_url: str | None, *, of_all_users: bool, of_every_store: bool = False
) -> tuple[RecoveredRuns, InfrastructureFailed | None]:
    """Add the folder's runs that the history lacks, and record the new places of moved runs.

    If the history cannot be written, return what would be added, and the reason. If there is nothing to add, no store
    is created.
    """
    from bench.session.recover import new_runs, recover_runs
    from bench.store.history import History, NoStoreYet

    known: dict[str, str] = {}
    with suppress(NoStoreYet), History(store_url, writable=False) as history:
        known = history.folders()
    which = {"of_every_store": of_every_store, "of_all_users": of_all_users}
    additions = new_runs(runs_folder, known, store_url, **which)
    if not additions.runs and not additions.moved:
        return additions, None
    try:
        with History(store_url) as history:
            return recover_runs(runs_folder, history, store_url, **which), None
    except InfrastructureFailed as error:
        return additions, error


def _rebuild(runs_folder: Path, store_url: str | None, format_name: str, *, of_all_users: bool) -> None:
    """Add every run of the folder that the history lacks, whatever its original store."""
    from bench.report.run.summary import print_history

    if not runs_folder.is_dir():
        raise Misuse(f"{runs_folder} is not a folder; name the folder of the runs with --runs")
    recovered, failure = _recover(runs_folder, store_url, of_all_users=of_all_users, of_every_store=True)
    if failure is not None:
        raise failure
    for notice in recovered.notices():
        say(notice)
    _say_others(recovered)
    if recovered.runs or format_name != "table":
        print_history(recovered.runs[::-1], format_name)
    say(f"added {plural(len(recovered.runs), 'run')} of {runs_folder} to the history")


def _import(path: Path, run: str | None, runs_folder: Path, store_url: str | None, format_name: str) -> None:
    """Compare a file of nccl-tests with the named run, or with the most similar run."""
    from bench.report.nccl_tests.comparison import print_comparison
    from bench.report.nccl_tests.reader import read
    from bench.report.nccl_tests.writer import most_like, require_collectives
    from bench.store.history import History

    imported = read(path)
    own: Summary | None = None
    try:
        if run is not None:
            own = _find(run, runs_folder, store_url)
        else:
            with History(store_url, writable=False) as history:
                own = most_like(imported, history.runs(limit=RUNS_SEARCHED, strategy="collectives"))
    except InfrastructureFailed as error:
        if run is not None:
            raise
        say(f"no run of ours can be compared with it: {error}")
    if own is not None:
        require_collectives(own)
    print_comparison(imported, own, format_name)


def _export(folder: Path, run: str | None, runs_folder: Path, store_url: str | None) -> None:
    """Write a run's collectives in nccl-tests' format, one file each."""
    from bench.report.nccl_tests.writer import encode

    if run is None:
        raise Misuse("--export needs a run; `observatory show RUN --export FOLDER` (`observatory show` lists them)")
    summary = _find(run, runs_folder, store_url)
    documents = encode(summary, _machine_of(run, summary, store_url))
    try:
        make_folder(folder)
        for name, data in documents.items():
            write_named(folder / name, data)
            click.echo(folder / name)
    except OSError as error:
        raise InfrastructureFailed(f"{error.filename or folder} cannot be written: {error.strerror}") from None


def _draw(run: str | None, runs_folder: Path, store_url: str | None, format_name: str) -> None:
    """Draw a step of the run's pipeline, and write the trace of all timed steps."""
    from bench.report.run.pipeline import show_timeline
    from bench.store.run_dir import is_gone

    if run is None:
        raise Misuse("--timeline needs a run; `observatory show RUN --timeline` (`observatory show` lists them)")
    summary = _find(run, runs_folder, store_url)
    if is_gone(summary.folder):
        raise Misuse(
            f"{summary.folder} is gone, and the timeline of run {summary.run} with it; name the folder that its runs"
            " were moved to with --runs, or run it again"
        )
    drawing = show_timeline(summary, format_name)
    say(f"timeline: {drawing} opens in ui.perfetto.dev")


def _find(run: str, runs_folder: Path, store_url: str | None) -> Summary:
    """Return the run of this folder or name prefix."""
    from bench.store.history import find_run, means_folder
    from bench.store.run_dir import found_again, load

    if means_folder(run, store_url):
        return load(Path(run))
    summary = find_run(run, store_url)
    # The folder may have moved since the history last saw it.
    moved_to = found_again(summary.run, summary.folder, runs_folder)
    return summary if moved_to is None else replace(summary, folder=str(moved_to))


def _machine_of(run: str, summary: Summary, store_url: str | None) -> Machine | None:
    """Return the machine of the run: from its folder if the user named that, else from the history."""
    from bench.store.history import History, means_folder
    from bench.store.run_dir import machine_of

    if means_folder(run, store_url):
        return machine_of(Path(run))
    with History(store_url, writable=False) as history:
        return history.machine(summary.run)
