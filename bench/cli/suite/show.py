"""`observatory suite show`: lists suite runs and how they ended, or shows one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.options import FORMAT, OF_ALL_USERS, RUNS, STORE, NamedText
from bench.errors import Misuse, say

if TYPE_CHECKING:
    from bench.suite.results import SuiteResult


@click.command(name="show")
@click.argument("name", metavar="[SUITE|ID]", required=False, type=NamedText())
@click.option(
    "--limit", "count", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Most suite runs listed."
)
@RUNS
@OF_ALL_USERS
@STORE
@FORMAT
def show(
    name: str | None, count: int, runs_folder: Path, of_all_users: bool, store_url: str | None, format_name: str
) -> None:
    """List suite runs and how they ended, or show one in full.

    ID is the id of a suite run, or the beginning of one.

    \b
    Example:
      observatory suite show smoke
    """
    from bench.suite.report import print_suite, print_suite_runs

    results = suite_runs(runs_folder, store_url, of_all_users=of_all_users)
    wanted = results
    if name is not None:
        wanted = [result for result in results if result.suite == name]
        if not wanted:
            result = find_suite_run(name, results)
            if click.get_current_context().get_parameter_source("count") is ParameterSource.COMMANDLINE:
                raise Misuse(f"--limit is for a list of suite runs, and {result.id} is a single one; leave it out")
            print_suite(whole(result, store_url), format_name)
            return
    if not wanted:
        say("no suite has run yet; `observatory suite run smoke` runs one")
    if wanted or format_name != "table":
        print_suite_runs(wanted[:count], format_name)


def find_suite_run(name: str, results: list[SuiteResult]) -> SuiteResult:
    """Return the suite run with this id or prefix.

    Raises:
        Misuse: there is none, or several ids have this prefix.
    """
    matches = [result for result in results if result.id == name]
    matches = matches or [result for result in results if result.id.startswith(name)]
    if len(matches) != 1:
        what = "may be any of" if matches else "is unknown; the newest are"
        newest = ", ".join(result.id for result in (matches or results)[:6]) or "none"
        raise Misuse(f'suite or suite run "{name}" {what}: {newest}')
    return matches[0]


def suite_runs(runs_folder: Path, store_url: str | None, *, of_all_users: bool = False) -> list[SuiteResult]:
    """Return the suite runs of the folder and of the history, newest first, without the cases' measurements."""
    from bench.store.history import History, NoStoreYet
    from bench.suite.folder import suite_run_folders
    from bench.suite.results import read_result, result_of_record

    results: dict[str, SuiteResult] = {}
    for folder in suite_run_folders(runs_folder, of_all_users=of_all_users):
        try:
            results[folder.name] = read_result(folder, has_summaries=False)
        except Misuse as error:  # An unreadable suite run must not hide the others.
            say(str(error))
    with suppress(NoStoreYet), History(store_url, writable=False) as history:
        for record in history.suite_runs(limit=1_000_000):
            if record.id not in results:
                results[record.id] = result_of_record(record)
    return sorted(results.values(), key=lambda result: (result.started_ns, result.id), reverse=True)


def whole(result: SuiteResult, store_url: str | None) -> SuiteResult:
    """Return the suite run with its cases' measurements, from their folders or else from the history."""
    from bench.store.history import History, NoStoreYet
    from bench.suite.results import read_result, result_of_record, with_summaries

    if result.folder is not None:
        result = read_result(result.folder)
        if any(case.run is not None and case.summary is None for case in result.cases):  # Its folder was pruned.
            with suppress(NoStoreYet), History(store_url, writable=False) as history:
                return with_summaries(result, history.runs(limit=1_000_000, suite_run=result.id))
        return result
    with History(store_url, writable=False) as history:
        record = next(record for record in history.suite_runs(limit=1_000_000) if record.id == result.id)
        return result_of_record(record, history.runs(limit=1_000_000, suite_run=result.id))
