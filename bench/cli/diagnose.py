"""`observatory diagnose`: explains on one page what limits a run, with evidence and what to try."""

from __future__ import annotations

from pathlib import Path

import click

from bench.cli.completion import complete_run
from bench.cli.options import FORMAT, RUNS, STORE, NamedText
from bench.cli.show import find_shown
from bench.errors import InfrastructureFailed, Misuse
from workloads.cost_models.absent import Absent


@click.command(name="diagnose")
@click.argument("run", type=NamedText(), shell_complete=complete_run)
@RUNS
@STORE
@FORMAT
def command(run: str, runs_folder: Path, store_url: str | None, format_name: str) -> None:
    """Explain what limits a run, with evidence and what to try.

    Possible limits are computing, exposed communication, a bubble, imbalance, a straggler, the host, memory and the
    input. Without traces the diagnosis is partial. RUN is the beginning of a run's name, or the path of a run's folder.
    A watched run may also be given as NAME or NAME@DAY; its diagnosis names the late rank and its phase.

    \b
    Example:
      observatory diagnose 2026
    """
    from bench.analysis.diagnose.observing import observe
    from bench.analysis.diagnose.report import print_diagnosis
    from bench.analysis.diagnose.rule import diagnose
    from bench.store.history import History

    summary = find_shown(run, runs_folder, store_url)
    if summary.watched is not None:
        from bench.report.run.watched import print_watched_diagnosis

        print_watched_diagnosis(summary, format_name)
        return
    try:
        with History(store_url, writable=False) as history:
            observed = observe(summary, history)
    except (InfrastructureFailed, Misuse) as error:  # A run's folder can be diagnosed without a history.
        observed = observe(summary, Absent(reason=str(error)))
    print_diagnosis(diagnose(observed), format_name)
