"""`observatory suite scaling`: shows how a suite's strategies scale, their ceilings, and where time is lost."""

from __future__ import annotations

from pathlib import Path

import click

from bench.cli.options import FORMAT, RUNS, STORE, NamedText
from bench.cli.suite.show import find_suite_run, suite_runs, whole
from bench.errors import Misuse


@click.command(name="scaling")
@click.argument("name", metavar="[SUITE|ID]", required=False, type=NamedText())
@RUNS
@STORE
@FORMAT
def scaling(name: str | None, runs_folder: Path, store_url: str | None, format_name: str) -> None:
    """Show efficiency, speed-up and ceilings by number of ranks, and where time is lost.

    By default it shows the newest run of the suite, or of any suite; ID selects a suite run and may be abbreviated.
    Weak and strong scaling have separate curves. docs/guides/scaling.md defines each figure.

    \b
    Example:
      observatory suite scaling scaling
    """
    from bench.analysis.scaling.curves import curves_of, not_measured
    from bench.analysis.scaling.report import print_scaling

    results = suite_runs(runs_folder, store_url)
    if not results:
        raise Misuse("no suite has run yet; `observatory suite run scaling` runs one")
    chosen = results[0]
    if name is not None:
        chosen = next((each for each in results if each.suite == name), None) or find_suite_run(name, results)
    result = whole(chosen, store_url)
    curves = curves_of(result.cases)
    if not curves:
        failed = not_measured(result.cases)
        more = f"; and {len(failed) - 1} more" if len(failed) > 1 else ""
        why = (
            f"{failed[0]}{more} (`observatory suite show {result.id}` shows all)"
            if failed
            else 'give a case ranks = [1, 2, 4] and scaling = "weak" or "strong"'
        )
        raise Misuse(f"suite run {result.id} has no scaling curve: no two measured cases differ only in ranks; {why}")
    print_scaling(result.id, curves, format_name)
