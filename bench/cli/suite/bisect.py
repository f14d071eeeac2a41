"""`observatory suite bisect`: finds the commit that made a case worse, by measuring commits in pairs."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.cli.completion import complete_suite
from bench.cli.options import FORMAT, RUNS, SHARING, STORE, NamedPath, NamedText, engine_options
from bench.cli.run.case_options import LIMIT
from bench.errors import FINE, INTERRUPTED, Misuse, plural, say

if TYPE_CHECKING:
    from bench.store.history import History

PAIRS = 8


@click.command(name="bisect")
@click.argument("case_name", metavar="CASE", type=NamedText())
@click.option("--suite", metavar="NAME", type=NamedText(), shell_complete=complete_suite, help="The suite of the case.")
@click.option("--metric", metavar="NAME", type=NamedText(), help="The figure that got worse.  [default: the likeliest]")
@click.option(
    "--good", metavar="COMMIT", type=NamedText(), help="Commit to begin from.  [default: the last good run's]"
)
@click.option("--bad", metavar="COMMIT", type=NamedText(), help="Commit to end at.  [default: the first bad run's]")
@click.option(
    "--pairs",
    type=click.IntRange(6, 1000),
    default=PAIRS,
    show_default=True,
    help="Trials of each of two commits, in turn.",
)
@click.option(
    "--repository",
    type=NamedPath(),
    metavar="FOLDER",
    help="Git repository with this program's commits.  [default: where it was installed from]",
)
@engine_options
@LIMIT
@RUNS
@SHARING
@STORE
@FORMAT
def bisect(
    case_name: str,
    suite: str | None,
    metric: str | None,
    good: str | None,
    bad: str | None,
    pairs: int,
    repository: Path | None,
    engine_name: str,
    nodes: int,
    ranks_per_node: int | None,
    engine_file: Path | None,
    limit_s: float,
    runs_folder: Path,
    store_url: str | None,
    format_name: str,
) -> int:
    """Find the commit that made a case worse, by measuring commits in pairs.

    Searches the commits between the last good and the first bad run of a case that `observatory check` reports as
    worse. Measures at most log2(n) + 2 of n commits, each in turn with another commit, so that changes of the machine
    cancel. The result is a commit, the environment, or `unsure`.

    \b
    Example:
      observatory suite bisect ddp --suite nightly
    """
    from bench.analysis.compare.bisect import bisect as walk
    from bench.analysis.compare.bisect import most_measured
    from bench.analysis.compare.commit_pairs import (
        CommitPairs,
        bisected_document,
        bisected_lines,
        commits_between,
        worse_figure,
    )
    from bench.engines.cluster import NodeRequest
    from bench.gate.check import standing_of
    from bench.gate.gated import GATED_BY_NAME, figure_words
    from bench.gate.report import is_named
    from bench.report.table import print_csv, print_json, print_page
    from bench.session.checkouts import find_repository, require_commit
    from bench.session.measure import CaseOrder, TrialSettings
    from bench.session.session import open_session
    from bench.store.history import History

    with History(store_url, writable=False) as history:
        verdict = worse_figure(
            standing_of(history, suite, time.time_ns()), case_name, lambda key: metric is None or is_named(key, metric)
        )
        run = history.find(verdict.run)
        first = good or _commit(history, verdict.good_run, "last good run", "--good")
        last = bad or _commit(history, verdict.bad_run or verdict.run, "first bad run", "--bad")
    place = find_repository(repository)
    first, last = require_commit(place, first), require_commit(place, last)
    commits = (first, *commits_between(place, first, last))
    figure = f"{case_name}, {figure_words(verdict.key.metric, verdict.labels)}"
    count = len(commits) - 1
    say(f"{figure}: {plural(count, 'commit')} from {first[:7]} to {last[:7]} that may have changed it")
    if not count:
        print_page([f"{figure}: the environment and no commit: none changes the code that runs"])
        return FINE
    say(f"at most {most_measured(count)} are measured, each in {plural(pairs, 'pair')} with another commit")
    with open_session(
        runs=runs_folder,
        store_url=store_url,
        tell=say,
        work="bisection",
        engine=engine_name,
        request=NodeRequest(nodes=max(nodes, run.case.nodes), file=engine_file),
    ) as session:
        hardware = session.machine().hardware(run.case.device)
        if hardware != run.hardware:
            raise Misuse(f"{run.run} ran on {run.hardware}, and this is {hardware}; bisect where the case was measured")
        order = CaseOrder(case=run.case, title=case_name, settings=TrialSettings(limit_s=limit_s))
        by_pairs = CommitPairs(session=session, order=order, key=verdict.key, repository=place, pairs=pairs)
        try:
            bisected = walk(
                commits,
                by_pairs.measure,
                direction=1 if GATED_BY_NAME[verdict.key.metric].better == "lower" else -1,
                suspected=None if verdict.change_ratio is None else math.log(verdict.change_ratio),
            )
        except KeyboardInterrupt:
            return INTERRUPTED
    if format_name == "table":
        print_page(bisected_lines(bisected, figure, place))
    elif format_name == "json":
        print_json(bisected_document(bisected, verdict.key))
    else:
        document = bisected_document(bisected, verdict.key)
        print_csv([document], list(document))
    return FINE


def _commit(history: History, run: str | None, what: str, option: str) -> str:
    """Return the commit of a run.

    Raises:
        Misuse: the commit is unknown, or the run's tree had changes.
    """
    machine = None if run is None else history.machine(run)
    if machine is None or machine.commit is None:
        raise Misuse(
            f"the {what}{'' if run is None else f', {run},'} has no commit in the history; name one with {option}"
        )
    if machine.is_dirty:
        raise Misuse(
            f"the {what}, {run}, ran from a tree with changes that are in no commit; name a commit with {option}"
        )
    return machine.commit
