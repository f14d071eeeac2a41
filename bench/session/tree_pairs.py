"""Runs of two commits in turn, on the same nodes at the same time, so that common effects cancel."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.case import LONGEST_NOTE, Purpose
from bench.session.checkouts import check_checkout, check_out, require_commit
from bench.session.measure import CaseOrder, Listener
from bench.session.session import Session
from bench.store.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRuns:
    """The runs of both commits, whose trials took turns. is_interrupted: a person ended it."""

    first: Summary
    second: Summary
    is_interrupted: bool

    @property
    def failure(self) -> str | None:
        """Why a run does not have all of its trials."""
        causes = (summary.cause for summary in (self.first, self.second))
        return next((cause.text for cause in causes if cause is not None), None)


def measure_pair(
    session: Session,
    order: CaseOrder,
    commits: tuple[str, str],
    repository: Path,
    *,
    pairs: int,
    note: str,
    listener: Listener,
) -> PairedRuns:
    """Measure a case with the trees of two commits in turn, A B B A, and store the runs as ad hoc.

    Both run in the present environment, from temporary trees that are removed at the end. note: purpose of the runs.

    Raises:
    Raises:
        Misuse, InfrastructureFailed: a commit is gone, its tree cannot be run, or the engine failed.
    """
    case = replace(order.case, trials=pairs)
    with ExitStack() as stack:
        checked_trees = [
            check_checkout(stack.enter_context(check_out(require_commit(repository, commit), repository)), case)
            for commit in commits
        ]
        places = stack.enter_context(session.open_trees([tree_and_case.tree for tree_and_case in checked_trees]))
        orders = [
            replace(
                order,
                case=tree_and_case.case,
                title=f"{order.title or case.title}, commit {commit[:7]}",
                place=place,
                settings=replace(
                    order.settings,
                    keep_traces=False,
                    purpose=Purpose(note=f"{note}: commit {commit[:12]}"[:LONGEST_NOTE]),
                ),
            )
            for tree_and_case, place, commit in zip(checked_trees, places, commits, strict=True)
        ]
        with session.measure(orders, listener, is_counterbalanced=True) as measured:
            session.keep(measured)
            first, second = measured.summaries
            return PairedRuns(first=first, second=second, is_interrupted=measured.is_interrupted)
