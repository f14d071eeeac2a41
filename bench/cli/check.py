"""`observatory check`: the gate, which reports what became worse since earlier nights, and what is missing."""

from __future__ import annotations

import getpass
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from bench.cli.completion import complete_suite
from bench.cli.options import DETAILS, RUNS, STORE, NamedText
from bench.errors import CASE_FAILED, FINE, REGRESSION, InfrastructureFailed, Misuse, plural, say
from bench.store.suite_record import CHOICE

if TYPE_CHECKING:
    from bench.gate.check import SuiteCheck
    from bench.gate.verdicts import KnownSeries, SeriesKey
    from bench.store.history import History

FORMATS = ("table", "json", "junit", "markdown", "benchmark")
LONGEST_REASON = 200


@click.command(name="check")
@click.option(
    "--suite",
    metavar="NAME",
    type=NamedText(),
    shell_complete=complete_suite,
    help="Only this suite.  [default: all but `choose`]",
)
@click.option(
    "--since",
    metavar="NIGHT",
    type=NamedText(),
    help="Also all nights since this one: a date (2026-11-23), or the id of a suite run.",
)
@click.option("--accept", "accepted", metavar="CASE", type=NamedText(), help="Accept the present level of a case.")
@click.option("--because", metavar="TEXT", type=NamedText(), help="Reason for --accept, which requires it.")
@click.option("--metric", metavar="NAME", type=NamedText(), help="With --accept: only this metric of the case.")
@RUNS
@STORE
@click.option(
    "--format",
    "format_name",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="Output format; junit: XML for CI, benchmark: records of PyTorch's OSS benchmark database.",
)
@DETAILS
def command(
    suite: str | None,
    since: str | None,
    accepted: str | None,
    because: str | None,
    metric: str | None,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
    has_details: bool,
) -> int:
    """Report what became worse in the newest night, and what is missing.

    The exit code is 5 if a figure became worse, and 3 if something is missing or failed.

    \b
    Example:
      observatory check --suite nightly
    """
    from bench.gate.check import MOST_RUNS, check_suite, night_ns, require_suite, with_visible
    from bench.report.table import to_reader
    from bench.store.history import History, NoStoreYet

    if accepted is None and (because is not None or metric is not None):
        raise Misuse("--because and --metric belong to --accept CASE; name the case, or leave them out")
    if accepted is not None and because is None:
        raise Misuse(f'--accept {accepted} needs a reason, which is stored with it: --because "..."')
    if accepted is not None:
        _refuse_with_accept("since", "format_name", "has_details", "runs_folder")
    if since is not None and format_name not in ("table", "json"):
        raise Misuse(f"--since shows earlier nights as table or json; --format {format_name} shows only the newest one")
    try:
        with History(store_url, writable=False):  # Without a history there is nothing to judge; do not create one.
            pass
    except NoStoreYet:
        raise Misuse("no suite has run yet; `observatory suite run smoke` runs one") from None
    with ExitStack() as stack:
        reason: InfrastructureFailed | None = None
        try:
            history = stack.enter_context(History(store_url))
        except InfrastructureFailed as error:  # A user who may only read sees earlier judgements.
            if accepted is not None:
                raise
            reason, history = error, stack.enter_context(History(store_url, writable=False))
        records = history.suite_runs(MOST_RUNS)
        suites = tuple(sorted({record.suite for record in records}))
        # A choice ends with its winner: its cases have no nights.
        nightly = tuple(name for name in suites if name != CHOICE)
        chosen = nightly if suite is None else (require_suite(suite, suites),)
        if not chosen:
            only = f" except choices, which `--suite {CHOICE}` checks" if suites else ""
            raise Misuse(f"no suite has run yet{only}; `observatory suite run smoke` runs one")
        now_ns = time.time_ns()
        if accepted is not None and because is not None:
            _accept(history, chosen, accepted, metric, because, now_ns)
            return FINE
        of_suite = {name: [record for record in records if record.suite == name] for name in chosen}
        since_ns = (
            None if since is None else night_ns(since, [record for group in of_suite.values() for record in group])
        )
        checks = [
            check_suite(history, name, of_suite[name], since_ns=since_ns, now_ns=now_ns, is_judging=reason is None)
            for name in chosen
        ]
        for check in checks:
            judged = None if check.night is None else check.night.id
            if reason is not None and judged != of_suite[check.suite][0].id:
                nights = "no night is judged yet" if judged is None else f"nights after {judged} are not judged"
                say(f"suite {check.suite}: {nights}, because that needs a writable store: {reason}")
        if format_name != "benchmark":
            # The table explains only the cases that it shows; traces take long to read, and few formats contain them.
            is_whole = has_details or format_name != "table"
            has_traces = format_name in ("table", "json")
            checks = [
                _explain(history, check, runs_folder, is_whole=is_whole, has_traces=has_traces) for check in checks
            ]
        if format_name in ("table", "json", "markdown"):
            checks = [with_visible(history, check) for check in checks]
        if has_details and format_name in ("table", "json"):
            checks = [_with_regimes(history, check) for check in checks]
    with to_reader():
        _print(checks, format_name, has_details=has_details)
    return exit_code(checks)


def _explain(history: History, check: SuiteCheck, runs_folder: Path, *, is_whole: bool, has_traces: bool) -> SuiteCheck:
    """Return the check with the causes of worse figures."""
    from bench.gate.causes import explain

    causes = explain(history, check.verdicts, check.groups, runs_folder, is_whole=is_whole, has_traces=has_traces)
    return replace(check, causes=causes)


def _with_regimes(history: History, check: SuiteCheck) -> SuiteCheck:
    """Return the check with the regimes of its figures."""
    from bench.gate.regimes import regimes_of

    keys = list(dict.fromkeys(verdict.key for verdict in check.verdicts))
    return replace(check, regimes=regimes_of(history, check.suite, keys))


def _refuse_with_accept(*names: str) -> None:
    """Refuse output options, because --accept prints no result."""
    context = click.get_current_context()
    options = {"format_name": "format", "has_details": "details", "runs_folder": "runs"}
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise Misuse(f"--{options.get(name, name)} has no meaning with --accept; leave one of them out")


def _accept(
    history: History, suites: tuple[str, ...], case: str, metric: str | None, because: str, now_ns: int
) -> None:
    """Pin the present level of the case."""
    from bench.gate.accept import accept
    from bench.gate.check import MOST_RUNS, check_suite
    from bench.gate.report import is_named
    from bench.gate.verdicts import Raced, load_states, save_accepted

    if not because.strip() or not because.isprintable() or len(because) > LONGEST_REASON:
        raise Misuse(f"--because takes a line of up to {LONGEST_REASON} printable characters")
    known: dict[SeriesKey, KnownSeries] = {}
    for suite in suites:  # The level is the one after the newest night.
        check_suite(history, suite, history.suite_runs(MOST_RUNS, suite), since_ns=None, now_ns=now_ns)
        known |= load_states(history, suite)
    owners = sorted({key.suite for key in known if key.case == case})
    if len(owners) > 1:
        raise Misuse(f'case "{case}" is in {" and ".join(owners)}; choose one with --suite')
    levels, after = accept(
        known.values(), case=case, metric=metric, is_named=is_named, who=_who(), because=because, now_ns=now_ns
    )
    try:
        save_accepted(history, levels, known, after)
    except Raced:
        raise InfrastructureFailed("another process is judging this suite now; try again") from None
    places = len({level.key.series for level in levels})
    of = f" on {places} kinds of machine" if places > 1 else ""
    notes = [f"the present level of {plural(len(levels), 'figure')}{of} is accepted"] if levels else []
    if ended := len(after) - len(levels):
        notes.append(f"open verdicts on {plural(ended, 'figure')} that the last night did not measure are closed")
    say(f"{case} of suite {owners[0]}: {'; '.join(notes)}")


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # This user number has no name, for example in a container.
        return "unknown"


def _print(checks: list[SuiteCheck], format_name: str, *, has_details: bool) -> None:
    from bench.gate import ci_formats
    from bench.gate.report import check_document, print_check
    from bench.report.table import print_json

    if format_name == "table":
        print_check(checks, has_details=has_details)
    elif format_name == "json":
        print_json([check_document(check) for check in checks])
    else:
        texts = {"junit": ci_formats.junit_xml, "markdown": ci_formats.comment}
        click.echo(texts.get(format_name, ci_formats.benchmark_records)(checks), nl=False)


def exit_code(checks: list[SuiteCheck]) -> int:
    """Return the exit code; a regression takes precedence over missing or failed cases."""

    if any(check.is_regression for check in checks):
        return REGRESSION
    return CASE_FAILED if any(check.is_missing for check in checks) else FINE
