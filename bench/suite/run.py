"""Run a suite block by block, repeat what the infrastructure broke, and write each step to a ledger for a resume."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.case import Purpose, SuiteMember
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.device_checks import check_torch
from bench.machine.machine import Machine
from bench.rank.messages import FailureCause, TrialEnded, TrialOutcome
from bench.session.measure import CaseOrder, Listener, TrialSettings
from bench.session.persist import NamedBaseline, persist
from bench.session.session import Session
from bench.store import run_dir
from bench.store.resume import changes_since, check_same_machine
from bench.store.suite_record import FAILED, CaseOutcome, SuiteOutcome, SuiteRecord
from bench.store.summary import Summary
from bench.suite import ledger as records
from bench.suite.choice import Choice, Referee, blocks_of, why_left_out
from bench.suite.file import SuiteCase
from bench.suite.ledger import EndOutcome, Judgement, LedgerWriter, SuiteState, judge
from bench.suite.plan import PlannedCase, SuitePlan, within_budget
from bench.suite.reruns import Reruns, RerunsEnd, Suspects
from collectors.files import is_ours
from workloads.cost_models.absent import Absent

SAVED_S = 10.0
"""Least time between two records of a suite run in the history while a case runs."""
ENGINE_ATTEMPTS = 3
"""How often opening an engine is tried before the suite ends: without an engine, no case can run."""


class Display:
    """Is notified of the progress of a suite run; this one shows nothing. The suite waits for each call to return."""

    def tell(self, line: str) -> None:
        """Show a line that stays."""

    def begins(self, cases: Sequence[PlannedCase]) -> None:
        """These cases will be measured; a budget may leave some out later."""

    def case_begins(self, planned: PlannedCase, run: run_dir.Run) -> None:
        """The run's folder exists, and its first missing trial is next."""

    def steps(self, planned: PlannedCase, trial: int, steps: int) -> None:
        """The slowest rank of the trial has finished this many steps."""

    def trial_ended(self, planned: PlannedCase, ended: TrialEnded) -> None:
        """A trial has ended, successfully or not."""

    def case_ended(self, planned: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        """The case has ended, and its results are stored; or it did not run."""


# The run


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEnd:
    """How a suite run ended.

    is_interrupted: by a person or a signal. failure: the failure of the infrastructure that ended it, if any. reruns:
    how the reruns of suspected cases ended; `outcome` does not include them.
    """

    outcome: EndOutcome
    state: SuiteState
    is_interrupted: bool
    failure: InfrastructureFailed | None
    reruns: RerunsEnd


@dataclass(slots=True)
class _Waiting:
    """A case of the block that still has to be measured. folder: of the run to resume; None begins a new run."""

    planned: PlannedCase
    folder: Path | None
    attempt: int = 0


@dataclass(slots=True)
class _Ended:
    """A case of the block whose trials are over, before its results are stored; its run stays locked until then."""

    planned: PlannedCase
    summary: Summary
    run: run_dir.Run


@dataclass(slots=True)
class SuiteRunner(Listener):
    """Measures the chosen cases of a plan. The open ledger is the only state that outlives the process.

    budget_s: for everything, from the beginning of the run. suspects: returns the cases to measure again at the end;
    None: no reruns. pairs: measures pairs of source trees after that; called with the runner and the seconds left,
    returns whether a person interrupted it; None: no pairs. referee: ends cases early, and reverses the order of cases
    in every other round; None: no case ends early. clock_s: monotonic.
    """

    plan: SuitePlan
    ledger: LedgerWriter
    session: Session
    display: Display
    budget_s: float | None = None
    suspects: Suspects | None = None
    pairs: Callable[[SuiteRunner, float | None], bool] | None = None
    referee: Referee | None = None
    clock_s: Callable[[], float] = time.monotonic
    _is_interrupted: bool = False
    _reruns: RerunsEnd = field(default_factory=RerunsEnd)
    _ledger_failure: InfrastructureFailed | None = None
    _saved_s: float = 0.0
    _steps: int = 0  # Of the present trial.
    _waiting: dict[str, _Waiting] = field(default_factory=dict)

    def run(self, choice: Choice) -> SuiteEnd:
        """Measure the cases; whatever happens, completed work is kept, and the ledger says how the suite run ended."""
        begun_s = self.clock_s()
        failure: InfrastructureFailed | None = None
        try:
            if self.ledger.is_resumed:
                self.ledger.write(records.Resumed(time_ns=time.time_ns()))
            self.display.begins(choice.cases)
            for planned, outcome, reason in choice.not_run:
                self._leave(planned, outcome, reason)
            self._save()
            for block in blocks_of(choice.cases):
                self._run_block(self._those_that_fit(block, begun_s))
                if self._is_interrupted:
                    break
            if self.suspects is not None and not self._is_interrupted:
                self._rerun(self.suspects, begun_s)
            if self.pairs is not None and not self._is_interrupted:
                self._is_interrupted |= self.pairs(self, self._left_s(begun_s))
        except KeyboardInterrupt:
            self._is_interrupted = True
        except InfrastructureFailed as error:
            failure = error
        except Misuse as error:  # Another process is working on the run to resume.
            failure = InfrastructureFailed(str(error))
        finally:
            self.session.stop_engine()
        return self._end(failure)

    def _rerun(self, suspects: Suspects, begun_s: float) -> None:
        """Measure suspected cases again; the suite run itself is complete, whatever happens."""
        self.session.stop_engine()
        reruns = Reruns(
            plan=self.plan,
            ledger=self.ledger,
            session=self.session,
            order_of=self.order_again,
            watch=self.save_now_and_then,
        )
        self._reruns = reruns.run(suspects, self._left_s(begun_s))
        self._is_interrupted |= self._reruns.is_interrupted

    def _left_s(self, begun_s: float) -> float | None:
        """Return the remaining budget; None if there is no budget."""
        return None if self.budget_s is None else self.budget_s - (self.clock_s() - begun_s)

    def _end(self, failure: InfrastructureFailed | None) -> SuiteEnd:
        outcomes = {self.ledger.state.case(planned.suite_case.name).outcome for planned in self.plan.cases}
        outcome: EndOutcome = "failed" if outcomes & (FAILED | {"skipped"}) else "done"
        if self._is_interrupted or failure is not None:
            outcome = "interrupted"
        try:
            self.ledger.write(records.Ended(outcome=outcome, time_ns=time.time_ns()))
        except InfrastructureFailed as error:
            failure = failure or error
        self._waiting.clear()
        self.session.store.ready(is_last=True)
        self._save(outcome)
        return SuiteEnd(
            outcome=outcome,
            state=self.ledger.state,
            is_interrupted=self._is_interrupted,
            failure=failure,
            reruns=self._reruns,
        )

    def _those_that_fit(self, block: tuple[PlannedCase, ...], begun_s: float) -> tuple[PlannedCase, ...]:
        """Return the cases of the block that still fit the budget; the others end as left out."""
        if (left_s := self._left_s(begun_s)) is None:
            return block
        _, left_out = within_budget(replace(self.plan, cases=block), left_s)
        names = {planned.suite_case.name for planned in left_out}
        for planned in left_out:
            self._leave(planned, "left_out", why_left_out(planned, left_s))
        return tuple(planned for planned in block if planned.suite_case.name not in names)

    def _leave(self, planned: PlannedCase, outcome: CaseOutcome, reason: str) -> None:
        """End a case that is not measured; a case that failed before and should be repeated stays failed."""
        if outcome == "left_out" and self.ledger.state.case(planned.suite_case.name).outcome in FAILED:
            self.display.tell(f"{planned.suite_case.name} is not repeated: {reason}")
        else:
            self._end_case(planned, Judgement(outcome=outcome, reason=reason), None)

    # A block: its cases in turn, again after a failure of the infrastructure

    def _run_block(self, block: Sequence[PlannedCase]) -> None:
        self._waiting = {}
        for planned in block:
            run = self.ledger.state.case(planned.suite_case.name).run_to_resume
            self._waiting[planned.suite_case.name] = _Waiting(planned, None if run is None else self.session.runs / run)
        ended: list[_Ended] = []
        try:
            while self._waiting and not self._is_interrupted:
                self._refuse_what_cannot_run(self.session.machine(attempts=ENGINE_ATTEMPTS))
                if self._waiting:
                    ended += self._measure()
        finally:
            try:
                self._keep(ended)
            finally:
                for case in ended:
                    case.run.close()
        if self._ledger_failure is not None:
            raise self._ledger_failure
        for case in ended:
            if case.summary.cause is not None and case.summary.cause.kind == "disk":
                raise InfrastructureFailed(f"{case.planned.suite_case.name}: {case.summary.cause.text}; make room")

    def _refuse_what_cannot_run(self, machine: Machine) -> None:
        """Skip cases whose ranks cannot use torch here; begin a new run if another machine measured the old one."""
        for name, waiting in list(self._waiting.items()):
            assert waiting.planned.case is not None, "a case without refusal is resolved"
            try:
                check_torch(waiting.planned.case, machine)
            except (Misuse, InfrastructureFailed) as error:
                del self._waiting[name]
                self._end_case(waiting.planned, Judgement(outcome="skipped", reason=str(error)), None)
                continue
            if waiting.folder is not None:
                try:
                    check_same_machine(waiting.folder, machine)
                    before = run_dir.case_file(waiting.folder)
                    if before.case.nodes != waiting.planned.case.nodes:
                        raise Misuse(
                            f"run {before.run} cannot be continued: it began as {before.case.title}, and is"
                            f" {waiting.planned.case.title} now"
                        )
                except Misuse as error:
                    self.display.tell(f"{name} begins a new run: {error}")
                    waiting.folder = None

    def _measure(self) -> list[_Ended]:
        """Measure the waiting cases once; return those that are over; the others wait for another attempt."""
        cases = list(self._waiting.values())
        orders = [self._order(waiting) for waiting in cases]
        measured = self.session.measure(orders, self, is_counterbalanced=self.referee is not None)
        self._is_interrupted = measured.is_interrupted
        ended: list[_Ended] = []
        is_engine_broken = False
        for waiting, summary, run in zip(cases, measured.summaries, measured.runs, strict=True):
            suite_case = waiting.planned.suite_case
            judgement = self._judged(suite_case, summary.outcome, summary.cause)
            is_engine_broken |= judgement.is_infrastructure
            is_lost_beside = run.id in measured.lost_beside  # Another run's trial failed: uses up no attempt.
            is_again = is_lost_beside or (judgement.is_infrastructure and waiting.attempt < suite_case.retries)
            if is_again and not self._is_interrupted and self._ledger_failure is None:
                run.close()
                waiting.folder, waiting.attempt = run.folder, waiting.attempt + (not is_lost_beside)
                self.display.tell(
                    f"{suite_case.name}: {judgement.reason}; attempt {waiting.attempt + 1} of"
                    f" {suite_case.retries + 1} keeps the complete trials ({summary.trials_done})"
                )
                continue
            del self._waiting[suite_case.name]
            if self.referee is not None and judgement.outcome in FAILED:
                self.referee.failed(suite_case.name)
            ended.append(_Ended(waiting.planned, summary, run))
        if is_engine_broken:
            self.session.stop_engine()
        return ended

    def order_again(self, planned: PlannedCase) -> CaseOrder:
        """Return the order of a new run of a case, as defined by the suite."""
        return self._order(_Waiting(planned, None))

    def _order(self, waiting: _Waiting) -> CaseOrder:
        planned, suite = waiting.planned, self.plan.suite
        assert planned.case is not None, "a case without refusal is resolved"
        suite_case = planned.suite_case
        name = suite_case.name
        member = SuiteMember(suite=suite.name, id=self.ledger.folder.name, case=name, margin=suite.margins.get(name))
        return CaseOrder(
            case=planned.case,
            title=name,
            fault=planned.fault,
            settings=TrialSettings(
                limit_s=suite_case.limit_s,
                keep_traces=suite_case.keep_traces,
                instrumentation=suite_case.instrumentation,
                purpose=Purpose(origin="nightly" if suite.is_nightly else "run", member=member),
            ),
            resumes=waiting.folder,
        )

    # Reports of `measure`

    def begun(self, order: CaseOrder, run: run_dir.Run) -> None:
        """Record that the case began."""
        name, waiting = self._case_of(order)
        self.ledger.write(records.CaseBegun(case=name, run=run.id, attempt=waiting.attempt, time_ns=time.time_ns()))
        if self.referee is not None:
            self.referee.begun(name, run)
        self.display.case_begins(waiting.planned, run)
        self._save()

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """Show the step; sometimes save the suite run's progress."""
        self.display.steps(self._case_of(order)[1].planned, trial, steps)
        if steps != self._steps:  # The suite is not stalled while steps end.
            self._steps = steps
            self.save_now_and_then()

    def trial_ended(self, order: CaseOrder, run: run_dir.Run, ended: TrialEnded) -> None:
        """Record how the trial ended."""
        name, waiting = self._case_of(order)
        try:
            self.ledger.write(
                records.TrialEnded(
                    case=name,
                    run=run.id,
                    trial=ended.trial,
                    attempt=waiting.attempt,
                    outcome=ended.outcome,
                    cause=ended.cause,
                    time_ns=time.time_ns(),
                )
            )
            judgement = judge(waiting.planned.suite_case, ended.outcome, ended.cause)
            if ended.outcome in FAILED and not judgement.is_infrastructure:
                # The case is over, though its block continues: if this process dies now, the case is not measured
                # again.
                self.ledger.write(_case_ended(waiting.planned, judgement, run.id))
                if self.referee is not None:
                    self.referee.failed(name)
        except InfrastructureFailed as error:  # Unlike an engine failure, this allows no retry.
            self._ledger_failure = error
            raise
        if self.referee is not None:
            self.referee.trial_ended(name)
        self.display.trial_ended(waiting.planned, ended)
        self.save_now_and_then()

    def round_ended(self, rounds: int, collect: Callable[[], None]) -> None:
        """Record the cases that the referee drops, so that they are not measured again if this process dies now."""
        if self.referee is None:
            return
        for name, reason in self.referee.round_ended(rounds, collect):
            planned = self._waiting[name].planned
            try:
                judgement = Judgement(outcome="dropped", reason=reason)
                self.ledger.write(_case_ended(planned, judgement, self.ledger.state.case(name).run))
            except InfrastructureFailed as error:
                self._ledger_failure = error
                raise
            self.display.tell(f"{name} is dropped: {reason}")

    def is_over(self, order: CaseOrder) -> bool:
        """Whether the referee has seen enough of the case."""
        return self.referee is not None and self.referee.is_over(self._case_of(order)[0])

    def _judged(self, case: SuiteCase, ended: TrialOutcome, cause: FailureCause | None) -> Judgement:
        """Return how the case ended: the referee's judgement if all its trials ended well."""
        judgement = judge(case, ended, cause)
        return judgement if self.referee is None or judgement.outcome != "done" else self.referee.judgement(case.name)

    def _case_of(self, order: CaseOrder) -> tuple[str, _Waiting]:
        """Return the name of the order's case in the suite, and its waiting state."""
        assert order.title is not None, "a suite orders its cases by name"
        return order.title, self._waiting[order.title]

    # What is stored

    def _keep(self, ended: Sequence[_Ended]) -> None:
        """Store the results, then record that the cases ended.

        Raises:
            InfrastructureFailed: the disk or the ledger cannot be written; a resumed suite run continues the cases.
        """
        if not ended:
            return
        stored = persist(
            [case.summary for case in ended],
            ended[-1].run.machine,
            self.session.store.ready(),
            None,
            baselines=self._baselines(ended),
        )
        unsaved = [summary for summary in stored.summaries if not (Path(summary.folder) / "summary.json").exists()]
        if stored.failures and not unsaved:
            self.session.store.failed(stored.failures[0])
        for case, summary in zip(ended, stored.summaries, strict=True):
            if summary not in unsaved:
                judgement = self._judged(case.planned.suite_case, summary.outcome, summary.cause)
                self._end_case(case.planned, judgement, summary)
        self._save()
        if unsaved:
            raise next(error for error in stored.failures if "summary.json" in str(error))

    def _baselines(self, ended: Sequence[_Ended]) -> dict[str, NamedBaseline]:
        """Return, by run, the baselines that the suite names for the cases."""
        by_name = {case.planned.suite_case.name: case.summary for case in ended}
        blocks = {planned.suite_case.name: planned.suite_case.block for planned in self.plan.cases}
        baselines = {}
        for case in ended:
            suite_case = case.planned.suite_case
            name = suite_case.baseline
            if name is None or name == suite_case.name:
                continue
            is_beside = name in by_name and blocks[name] == suite_case.block
            baseline = by_name.get(name) or self._baseline_before(name, case.run.machine)
            if isinstance(baseline, Summary) and baseline.outcome != "done":
                how = baseline.outcome.replace("_", " ")
                why = "" if baseline.cause is None else f" ({baseline.cause.text})"
                baseline = Absent(reason=f"its baseline {name} {how}{why}")
            baselines[case.summary.run] = NamedBaseline(summary=baseline, is_beside=is_beside)
        return baselines

    def _baseline_before(self, name: str, machine: Machine) -> Summary | Absent:
        """Return the summary of the case of this name, from an earlier block or an earlier session."""
        state = self.ledger.state.case(name)
        if state.run is None or state.outcome != "done":
            how = "was not measured" if state.outcome is None else f"was {state.outcome.replace('_', ' ')}"
            return Absent(reason=f"its baseline {name} {how}{'' if state.reason is None else f' ({state.reason})'}")
        try:
            folder = self.session.runs / state.run
            if folder.exists() and not is_ours(folder):
                raise Misuse(f"{folder} belongs to another user")
            changes = changes_since(folder, machine)
            summary = run_dir.load(folder)
        except Misuse as error:
            return Absent(reason=f"its baseline {name} cannot be read: {error}")
        return Absent(reason=f"its baseline {name} was measured with {changes}") if changes else summary

    def _end_case(self, planned: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        self.ledger.write(_case_ended(planned, judgement, None if summary is None else summary.run))
        self.display.case_ended(planned, judgement, summary)

    def save_now_and_then(self) -> None:
        """Store the record of the suite run if the last time was a while ago."""
        if self.clock_s() - self._saved_s >= SAVED_S:
            self._save()

    def _save(self, outcome: SuiteOutcome = "running") -> None:
        """Store the record of the suite run in the history, which may be temporarily unreachable."""
        self._saved_s = self.clock_s()
        state, now_ns = self.ledger.state, time.time_ns()
        assert state.begun is not None, "a ledger is opened with its beginning"
        names = [planned.suite_case.name for planned in self.plan.cases]
        outcomes = {name: state.case(name).outcome for name in names}
        self.session.store.save(
            SuiteRecord(
                id=self.ledger.folder.name,
                suite=self.plan.suite.name,
                started_ns=state.begun.time_ns,
                progress_ns=now_ns,
                ended_ns=None if outcome == "running" else now_ns,
                outcome=outcome,
                period_s=self.plan.suite.period_s,
                cases=dict(Counter(outcome for outcome in outcomes.values() if outcome is not None)),
                total=len(names),
                running=tuple(self._waiting),
                left_out=tuple(name for name, case in state.cases.items() if case.outcome == "left_out"),
                failed=tuple(name for name, ended in outcomes.items() if ended in FAILED),
                folder=str(self.ledger.folder),
                schema_version=2 if "dropped" in outcomes.values() else 1,
            )
        )


def _case_ended(planned: PlannedCase, judgement: Judgement, run: str | None) -> records.CaseEnded:
    return records.CaseEnded(
        case=planned.suite_case.name,
        run=run,
        outcome=judgement.outcome,
        reason=judgement.reason,
        is_infrastructure=judgement.is_infrastructure,
        time_ns=time.time_ns(),
    )
