"""Measuring cases once more on the same night: those of which the gate suspects that they changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.engines.cluster import ClusterEngine
from bench.engines.registry import Engine
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.runner.measure import CaseOrder, measure
from bench.runner.patient_store import PatientStore
from bench.runner.persist import NamedBaseline, persist
from bench.runs.history import History
from bench.runs.suite_record import FAILED
from bench.runs.summary import Summary
from bench.suites.ledger import LedgerWriter, Reran
from bench.suites.plan import PlannedCase, SuitePlan, within_budget

RERUN_TRIALS = 3
"""Trials of a rerun: as many as a robust centre takes at least."""

ATTEMPTS = 2
"""How often cases are measured again where the engine fails: once more, and then the reruns end."""

Suspects = Callable[[History, str, str], Mapping[str, bool]]
"""Called with the history, the suite and the suite run; returns the cases to measure again, most suspicious first, and
of each whether its scaling efficiency is suspected, so that its baseline is to be measured again beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunsEnd:
    """How the reruns of a suite run ended.

    is_interrupted: by a person. failure: what left suspicions without a rerun, other than the budget. failed: a line on
    each case whose own rerun failed.
    """

    is_interrupted: bool = False
    failure: str | None = None
    failed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reruns:
    """Where reruns of a suite run are measured and kept.

    runs: the folder of runs. order_of: makes the order of a case as the suite has it. tell: is told what is done.
    watch: is called again and again meanwhile.
    """

    plan: SuitePlan
    ledger: LedgerWriter
    runs: Path
    store: PatientStore
    open_engine: Callable[[], Engine]
    order_of: Callable[[PlannedCase, Machine], CaseOrder]
    tell: Callable[[str], None]
    watch: Callable[[], None]

    def run(self, suspects: Suspects, left_s: float | None) -> RerunsEnd:
        """Measure the suspected cases again, as far as they fit the time that is left; return how that ended.

        A failure ends the reruns alone: the suite run itself is complete.
        """
        history = self.store.ready()
        if history is None:
            return RerunsEnd(failure="the store does not answer, so that nothing is measured again")
        engine: Engine | None = None
        failed: list[str] = []
        try:
            named = suspects(history, self.plan.suite.name, self.ledger.folder.name)
            for together in self._fitting(named, left_s):
                names = " and ".join(one.suite_case.name for one in together)
                self.tell(f"{names}: the gate suspects a change; {RERUN_TRIALS} more trials are measured")
                for attempt in range(ATTEMPTS):
                    try:
                        engine = self._apart(engine, max(one.case.nodes for one in together if one.case is not None))
                        measured = self._measure(together, engine)
                        failed += measured.failed
                        if measured.is_interrupted:
                            return RerunsEnd(is_interrupted=True)
                        break
                    except InfrastructureFailed as error:
                        if engine is not None:
                            engine.stop()
                            engine = None
                        if attempt == ATTEMPTS - 1:
                            raise
                        self.tell(f"{error}; another attempt begins")
        except (InfrastructureFailed, Misuse) as error:  # Misuse: an earlier night cannot be read.
            return RerunsEnd(failure=f"the reruns ended: {error}", failed=tuple(failed))
        finally:
            if engine is not None:
                engine.stop()
        return RerunsEnd(failed=tuple(failed))

    def _fitting(self, named: Mapping[str, bool], left_s: float | None) -> list[list[PlannedCase]]:
        """Return the cases to measure again, each with its baseline where that is needed, as far as time allows."""
        by_name = {one.suite_case.name: _short(one) for one in self.plan.cases if one.case is not None}
        groups = []
        for name, is_efficiency in named.items():
            if name in by_name:
                baseline = by_name[name].suite_case.baseline if is_efficiency else None
                groups.append([by_name[one] for one in dict.fromkeys((baseline, name)) if one in by_name])
        fitting = []
        for group in groups:
            if left_s is not None:
                kept, _ = within_budget(replace(self.plan, cases=tuple(group)), left_s)
                if len(kept) < len(group):
                    self.tell(f"{group[-1].suite_case.name} is not measured again: the budget leaves {left_s:.0f} s")
                    continue
                left_s -= sum(one.estimate_s or 0.0 for one in group)
            fitting.append(group)
        return fitting

    def _apart(self, engine: Engine | None, nodes: int) -> Engine:
        """Return an engine on other nodes than those that measured the case, where the allocation has enough.

        Raises:
            InfrastructureFailed: none can be opened, or its agents do not come; it is stopped.
        """
        if engine is not None and not isinstance(engine, ClusterEngine):
            return engine
        if engine is not None:
            engine.stop()
        engine = self.open_engine()
        if isinstance(engine, ClusterEngine):
            try:
                names = [node.name for node in engine.nodes()]
            except InfrastructureFailed:
                engine.stop()
                raise
            if len(names) >= 2 * nodes:
                engine.drop(names[:nodes])
        return engine

    def _measure(self, together: Sequence[PlannedCase], engine: Engine) -> RerunsEnd:
        """Measure the cases in turn, and keep them; return how that ended.

        Raises:
            InfrastructureFailed: the engine failed, and was stopped; what was complete is kept.
        """
        machine = engine.machine()
        measured = measure(
            [_as_rerun(self.order_of(one, machine)) for one in together],
            engine=engine,
            machine=machine,
            folder=self.runs,
            watch=lambda case, trial, steps: self.watch(),
        )
        try:
            # Beside, where the suite measures both in one block: only efficiencies with the same origin are comparable.
            is_beside = len({one.suite_case.block for one in together}) == 1
            baselines = {
                rerun.run: NamedBaseline(summary=measured.summaries[0], is_beside=is_beside)
                for rerun in measured.summaries[1:]
            }
            persist(measured.summaries, machine, self.store.ready(), None, baselines=baselines)
            for one, summary in zip(together, measured.summaries, strict=True):
                self.ledger.write(_record(one, summary))
        finally:
            measured.close()
        if measured.lost_engine:
            lost = next(one.cause for one in measured.summaries if one.cause is not None and one.cause.kind == "agent")
            raise InfrastructureFailed(lost.text)
        failed = (
            f"{one.suite_case.name}: its rerun {summary.outcome.replace('_', ' ')}: {summary.cause.text}"
            for one, summary in zip(together, measured.summaries, strict=True)
            if summary.outcome in FAILED and summary.cause is not None
        )
        return RerunsEnd(is_interrupted=measured.is_interrupted, failed=tuple(failed))


def _short(one: PlannedCase) -> PlannedCase:
    """Return the case with the trials of a rerun, and the estimate of these."""
    assert one.case is not None, "a case without refusal is resolved"
    share = RERUN_TRIALS / one.case.trials
    estimate_s = None if one.estimate_s is None else one.estimate_s * share
    return replace(one, case=replace(one.case, trials=RERUN_TRIALS), estimate_s=estimate_s)


def _as_rerun(order: CaseOrder) -> CaseOrder:
    purpose = order.settings.purpose
    assert purpose.member is not None, "a suite orders its cases by name"
    member = msgspec.structs.replace(purpose.member, is_rerun=True)
    settings = replace(order.settings, purpose=msgspec.structs.replace(purpose, member=member))
    return replace(order, settings=settings)


def _record(one: PlannedCase, summary: Summary) -> Reran:
    return Reran(case=one.suite_case.name, run=summary.run, outcome=summary.outcome, time_ns=time.time_ns())
