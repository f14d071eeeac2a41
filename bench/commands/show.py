"""`observatory show`: the history of runs, or one run whole."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bench.errors import InfrastructureFailed
from bench.places import RUNS, STORE
from bench.reports.formats import FORMAT


@click.command(name="show")
@click.argument("run", required=False)
@click.option("--strategy", help="Only runs of this strategy.")
@click.option("--limit", "count", type=click.IntRange(min=1), default=20, show_default=True, help="Runs listed.")
@RUNS
@STORE
@FORMAT
def command(
    run: str | None, strategy: str | None, count: int, runs_folder: Path, store_url: str | None, format_name: str
) -> None:
    """The history of runs, or one run whole.

    RUN is the beginning of a run's name, or the path of a run's folder.

    \b
    Example:
      observatory show --strategy ddp
    """
    from bench.keeping import adopt
    from bench.reports.terminal import print_history, print_whole
    from bench.run import load
    from bench.store.history import History

    if run is not None and Path(run).is_dir():
        print_whole(load(Path(run)), format_name)
        return
    refusal = None
    try:
        with History(store_url) as history:
            for problem in adopt(runs_folder, history, store_url):
                print(problem, file=sys.stderr)
    except InfrastructureFailed as error:
        refusal = error
    try:
        with History(store_url, writable=False) as history:
            if run is not None:
                print_whole(history.find(run), format_name)
                return
            summaries = history.runs(limit=count, strategy=strategy)
    except InfrastructureFailed:
        raise refusal or InfrastructureFailed("the store cannot be read") from None
    if refusal is not None:
        print(f"this store can only be read, so runs whose runner died are not taken in: {refusal}", file=sys.stderr)
    if not summaries and format_name == "table":
        print("no run is in the history yet; `observatory run ddp` makes one", file=sys.stderr)
        return
    print_history(summaries, format_name)
