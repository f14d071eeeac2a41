"""The measured part of `observatory choose`: races the cases on this machine, and prints the winner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import InfrastructureFailed, say

if TYPE_CHECKING:
    from bench.analysis.race.race import RaceCase
    from bench.analysis.race.referee import Objective

BUDGET_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceOptions:
    """Options of a measured choice.

    budget_s: None for BUDGET_S. resumed: id of the suite run to resume. notices: lines to print before it begins.
    """

    objective: Objective
    budget_s: float | None
    limit_s: float
    resumed: str | None
    runs_folder: Path
    store_url: str | None
    format_name: str
    quiet: bool
    notices: Sequence[str] = ()


def measure(cases: Sequence[RaceCase], options: RaceOptions) -> int:
    """Race the cases and print the result; return the exit code.

    Raises:
        Misuse: fewer than two cases can run or fit into the budget.
        InfrastructureFailed: the store cannot be used, or the suite run's folder cannot be written.
    """
    from bench.analysis.race.race import check_race, race, race_suite
    from bench.analysis.race.report import COLUMNS, race_document, race_page, race_rows
    from bench.cli.suite.run import exit_code
    from bench.report.table import write
    from bench.serve.server import serving
    from bench.session.case_args import read_node
    from bench.session.session import open_session
    from bench.store.history import History, NoStoreYet, check_store
    from bench.store.run_dir import check_place
    from bench.store.suite_record import CHOICE
    from bench.suite.folder import find_to_resume
    from bench.suite.plan import plan_suite
    from bench.suite.progress import SuiteProgress

    check_place(options.runs_folder)
    check_store(options.store_url)
    node = read_node()
    suite = race_suite(cases, CHOICE, options.limit_s)
    try:
        with History(options.store_url, writable=False, is_glance=True) as history:
            plan = plan_suite(suite, node, history)
    except NoStoreYet:
        plan = plan_suite(suite, node, "no run is in the history yet")
    except InfrastructureFailed as error:
        say(f"the plan has no estimates: {error}")
        plan = plan_suite(suite, node, "the history cannot be read")
    check_race(plan)
    if options.resumed is not None:
        find_to_resume(suite, options.runs_folder, options.resumed)
    progress = SuiteProgress(suite.name, is_quiet=options.quiet)
    for line in options.notices:
        progress.tell(line)
    with open_session(
        runs=options.runs_folder,
        store_url=options.store_url,
        tell=progress.tell,
        work="choice",
        serving=partial(serving, port=0),
    ) as session:
        with progress:
            raced = race(
                cases,
                plan,
                session,
                objective=options.objective,
                budget_s=options.budget_s or BUDGET_S,
                resumed=options.resumed,
                display=progress,
            )
        write(options.format_name, race_page(raced), lambda: race_document(raced), race_rows(raced), COLUMNS)
    progress.tell(f"`observatory suite show {raced.result.id}` shows it in full")
    for failure in (raced.end.failure, session.store.failure):
        if failure is not None:
            say(str(failure))
    return exit_code(raced.end, raced.result, is_store_gone=session.store.failure is not None)
