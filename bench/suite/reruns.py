"""Measure cases again in the same night if the gate suspects that they changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from bench.engines.cluster import ClusterEngine
from bench.engines.registry import Engine
from bench.errors import InfrastructureFailed, Misuse
from bench.session.measure import CaseOrder, Listener, MeasuredRuns
from bench.session.persist import NamedBaseline
from bench.session.session import Session
from bench.store.history import History
from bench.store.suite_record import FAILED
from bench.suite.ledger import LedgerWriter, Reran
from bench.suite.plan import PlannedCase, SuitePlan, within_budget

RERUN_TRIALS = 3
"""Trials of a rerun: the fewest that a robust centre needs."""

ATTEMPTS = 2
"""How often a group is tried if the engine fails; after that the reruns end."""

Suspects = Callable[[History, str, str], Mapping[str, bool]]
"""Called with the history, the suite and the suite run; returns the cases to measure again, most suspicious first. The
value says whether a case's scaling efficiency is suspected, so that its baseline is measured again in turn with it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunsEnd:
    """How the reruns of a suite run ended.

    is_interrupted: by a person. failure: why suspected cases were not measured again, other than the budget. failed: a
    line for each case whose own rerun failed.
    """

    is_interrupted: bool = False
    failure: str | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reruns(Listener):
    """Measures reruns of a suite run.

    order_of: returns a case's order as defined by the suite. watch: called repeatedly while ranks measure.
    """

    plan: SuitePlan
    ledger: LedgerWriter
    session: Session
    order_of: Callable[[PlannedCase], CaseOrder]
    watch: Callable[[], None]

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """Report that the suite is not stalled."""
        self.watch()

    def run(self, suspects: Suspects, left_s: float | None) -> RerunsEnd:
        """Measure the suspected cases again, as far as they fit into the remaining time; return how this ended.

        A failure ends only the reruns: the suite run itself is complete.
        """
        history = self.session.store.ready()
        if history is None:
            return RerunsEnd(failure="the store does not answer, so nothing is measured again")
        failed: list[str] = []
        try:
            suspected = suspects(history, self.plan.suite.name, self.ledger.folder.name)
            for group in self._fitting(suspected, left_s):
                names = " and ".join(planned.suite_case.name for planned in group)
                self.session.tell(f"{names}: the gate suspects a change; {RERUN_TRIALS} more trials are measured")
                for attempt in range(ATTEMPTS):
                    try:
                        engine = self.separate(max(planned.case.nodes for planned in group if planned.case is not None))
                        measured = self._measure(group)
                        break
                    except InfrastructureFailed as error:
                        self.session.stop_engine()
                        if attempt == ATTEMPTS - 1:
                            raise
                        self.session.tell(f"{error}; another attempt begins")
                failed += _failures(group, measured)
                if measured.is_interrupted:
                    return RerunsEnd(is_interrupted=True)
                if isinstance(engine, ClusterEngine):  # It lacks the nodes that were dropped for this group.
                    self.session.stop_engine()
        except (InfrastructureFailed, Misuse) as error:  # Misuse: an earlier night cannot be read.
            return RerunsEnd(failure=f"the reruns ended: {error}", failed=tuple(failed))
        return RerunsEnd(failed=tuple(failed))

    def _fitting(self, suspected: Mapping[str, bool], left_s: float | None) -> list[list[PlannedCase]]:
        """Return the cases to measure again, each with its baseline if needed, as far as time allows."""
        by_name = {planned.suite_case.name: _short(planned) for planned in self.plan.cases if planned.case is not None}
        fitting = []
        for name, is_efficiency in suspected.items():
            if name not in by_name:
                continue
            baseline = by_name[name].suite_case.baseline if is_efficiency else None
            group = [by_name[member] for member in dict.fromkeys((baseline, name)) if member in by_name]
            if left_s is not None:
                _, left_out = within_budget(replace(self.plan, cases=tuple(group)), left_s)
                if left_out:
                    self.session.tell(f"{name} is not measured again: the budget leaves {left_s:.0f} s")
                    continue
                left_s -= sum(planned.estimate_s or 0.0 for planned in group)
            fitting.append(group)
        return fitting

    def separate(self, nodes: int) -> Engine:
        """Return an engine on nodes other than those that measured the case, if the allocation has enough.

        Raises:
            InfrastructureFailed: no engine can be opened, or its agents do not connect.
        """
        engine = self.session.engine()
        if isinstance(engine, ClusterEngine):
            names = [node.name for node in engine.nodes()]
            if len(names) >= 2 * nodes:
                engine.drop(names[:nodes])
        return engine

    def _measure(self, group: Sequence[PlannedCase]) -> MeasuredRuns:
        """Measure the cases in turn, and store them.

        Raises:
            InfrastructureFailed: the engine failed, and was stopped; what was complete is stored.
        """
        with self.session.measure([_as_rerun(self.order_of(planned)) for planned in group], self) as measured:
            # As in the suite: both in one block or not, since only efficiencies with the same kind of baseline are
            # comparable.
            is_beside = len({planned.suite_case.block for planned in group}) == 1
            baselines = {
                rerun.run: NamedBaseline(summary=measured.summaries[0], is_beside=is_beside)
                for rerun in measured.summaries[1:]
            }
            self.session.keep(measured, baselines=baselines)
            for planned, summary in zip(group, measured.summaries, strict=True):
                self.ledger.write(
                    Reran(
                        case=planned.suite_case.name,
                        run=summary.run,
                        outcome=summary.outcome,
                        time_ns=time.time_ns(),
                    )
                )
        if measured.lost_engine:
            causes = [summary.cause for summary in measured.summaries]
            raise InfrastructureFailed(
                next(cause.text for cause in causes if cause is not None and cause.kind == "agent")
            )
        return measured


def _failures(group: Sequence[PlannedCase], measured: MeasuredRuns) -> list[str]:
    """Return a line for each case whose rerun failed."""
    return [
        f"{planned.suite_case.name}: its rerun {summary.outcome.replace('_', ' ')}: {summary.cause.text}"
        for planned, summary in zip(group, measured.summaries, strict=True)
        if summary.outcome in FAILED and summary.cause is not None
    ]


def _short(planned: PlannedCase) -> PlannedCase:
    """Return the case with the trials of a rerun, and their estimate."""
    assert planned.case is not None, "a case without refusal is resolved"
    share = RERUN_TRIALS / planned.case.trials
    estimate_s = None if planned.estimate_s is None else planned.estimate_s * share
    return replace(planned, case=replace(planned.case, trials=RERUN_TRIALS), estimate_s=estimate_s)


def _as_rerun(order: CaseOrder) -> CaseOrder:
    purpose = order.settings.purpose
    assert purpose.member is not None, "a suite orders its cases by name"
    member = msgspec.structs.replace(purpose.member, is_rerun=True)
    settings = replace(order.settings, purpose=msgspec.structs.replace(purpose, member=member))
    return replace(order, settings=settings)
