"""Running a suite: block by block, again where the infrastructure failed, each step in a ledger for who resumes it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.case import Case, Purpose, SuiteMember
from bench.engines.registry import Engine
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.device_checks import check_torch
from bench.machine.machine import Machine
from bench.rank.messages import TrialEnded
from bench.runner.measure import CaseOrder, Listener, TrialSettings, measure
from bench.runner.patient_store import PatientStore
from bench.runner.persist import NamedBaseline, persist
from bench.runs import run_dir
from bench.runs.resume import changes_since, check_same_machine
from bench.runs.suite_record import FAILED, CaseOutcome, SuiteOutcome, SuiteRecord
from bench.runs.summary import Summary
from bench.suites import ledger as records
from bench.suites.choice import Choice, blocks_of, why_left_out
from bench.suites.ledger import EndOutcome, Judgement, LedgerWriter, SuiteState, judge
from bench.suites.plan import PlannedCase, SuitePlan, within_budget
from bench.suites.reruns import Reruns, RerunsEnd, Suspects
from collectors.files import is_ours
from workloads.cost_models.absent import Absent

SAVED_S = 10.0
"""Least time between two records of a suite run in the history while a case goes on."""
ENGINE_ATTEMPTS = 3
"""How often an engine is opened before the suite ends: without one, no case can run."""


class Display:
    """Is told how a suite run goes, and here shows nothing. Each call returns before the suite goes on."""

    def tell(self, line: str) -> None:
        """Show a line that stays."""

    def begins(self, cases: Sequence[PlannedCase]) -> None:
        """These cases will be measured; afterwards fewer of them may be."""

    def case_begins(self, one: PlannedCase, run: run_dir.Run) -> None:
        """The run's folder is there, and its first missing trial comes."""

    def steps(self, one: PlannedCase, trial: int, steps: int) -> None:
        """The slowest rank of the trial has finished so many steps."""

    def trial_ended(self, one: PlannedCase, ended: TrialEnded) -> None:
        """A trial has ended, well or not."""

    def case_ended(self, one: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        """The case has ended, and its results are kept; or it did not run."""


# The run


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where a suite runs.

    runs: the folder of runs. store_url: as run folders record it. open_engine: opens an engine for that folder.
    budget_s: for the whole, from the beginning of the run. clock_s: monotonic.
    suspects: tells what is measured once more at the end; None: nothing is.
    """

    runs: Path
    store_url: str | None
    store: PatientStore
    open_engine: Callable[[], Engine]
    display: Display
    budget_s: float | None = None
    clock_s: Callable[[], float] = time.monotonic
    suspects: Suspects | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEnd:
    """How a suite run ended. is_interrupted: by a person or a signal. failure: what of the infrastructure ended it.

    reruns: how those of suspected cases ended, which are no part of its outcome.
    """

    outcome: EndOutcome
    state: SuiteState
    is_interrupted: bool
    failure: InfrastructureFailed | None
    reruns: RerunsEnd


@dataclass(slots=True)
class _Waiting:
    """A case of the block that still has to be measured. folder: of the run that goes on, None to begin one."""

    one: PlannedCase
    folder: Path | None
    attempt: int = 0


@dataclass(slots=True)
class _Ended:
    """A case of the block whose trials are over, before its results are kept; its run stays locked until then."""

    one: PlannedCase
    summary: Summary
    run: run_dir.Run
    machine: Machine


@dataclass(slots=True)
class SuiteRunner(Listener):
    """Measures the chosen cases of a plan. The ledger, which is open, is the only state that outlives the process."""

    plan: SuitePlan
    ledger: LedgerWriter
    setup: Setup
    _engine: Engine | None = None
    _machine: Machine | None = None
    _is_interrupted: bool = False
    _reruns: RerunsEnd = field(default_factory=RerunsEnd)
    _ledger_failure: InfrastructureFailed | None = None
    _saved_s: float = 0.0
    _steps: int = 0  # Of the present trial.
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    _of_run: dict[int, PlannedCase] = field(default_factory=dict)  # By the identity of the run's case.

    def run(self, choice: Choice) -> SuiteEnd:
        """Measure the cases; whatever happens, what was completed is kept, and the ledger says how it ended."""
        begun_s = self.setup.clock_s()
        failure: InfrastructureFailed | None = None
        try:
            if self.ledger.is_resumed:
                self.ledger.write(records.Resumed(time_ns=time.time_ns()))
            self.setup.display.begins(choice.cases)
            for one, outcome, reason in choice.not_run:
                self._leave(one, outcome, reason)
            self._save()
            for block in blocks_of(choice.cases):
                self._run_block(self._those_that_fit(block, begun_s))
                if self._is_interrupted:
                    break
            if self.setup.suspects is not None and not self._is_interrupted:
                self._rerun(self.setup.suspects, begun_s)
        except KeyboardInterrupt:
            self._is_interrupted = True
        except InfrastructureFailed as error:
            failure = error
        except Misuse as error:  # A run that was to go on cannot, since a process works on it.
            failure = InfrastructureFailed(str(error))
        finally:
            self._stop_engine()
        return self._end(failure)

    def _rerun(self, suspects: Suspects, begun_s: float) -> None:
        """Measure cases once more that the gate suspects; the suite run itself is complete, whatever happens."""
        self._stop_engine()
        budget_s = self.setup.budget_s
        reruns = Reruns(
            plan=self.plan,
            ledger=self.ledger,
            runs=self.setup.runs,
            store=self.setup.store,
            open_engine=self.setup.open_engine,
            order_of=lambda one, machine: self._order(_Waiting(one, None), machine),
            tell=self.setup.display.tell,
            watch=self._save_now_and_then,
        )
        left_s = None if budget_s is None else budget_s - (self.setup.clock_s() - begun_s)
        self._reruns = reruns.run(suspects, left_s)
        self._is_interrupted |= self._reruns.is_interrupted

    def _end(self, failure: InfrastructureFailed | None) -> SuiteEnd:
        outcomes = {self.ledger.state.case(one.suite_case.name).outcome for one in self.plan.cases}
        outcome: EndOutcome = "failed" if outcomes & (FAILED | {"skipped"}) else "done"
        if self._is_interrupted or failure is not None:
            outcome = "interrupted"
        try:
            self.ledger.write(records.Ended(outcome=outcome, time_ns=time.time_ns()))
        except InfrastructureFailed as error:
            failure = failure or error
        self._waiting.clear()
        self.setup.store.ready(is_last=True)
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
        if self.setup.budget_s is None:
            return block
        left_s = self.setup.budget_s - (self.setup.clock_s() - begun_s)
        _, left_out = within_budget(replace(self.plan, cases=block), left_s)
        names = {one.suite_case.name for one in left_out}
        for one in left_out:
            self._leave(one, "left_out", why_left_out(one, left_s))
        return tuple(one for one in block if one.suite_case.name not in names)

    def _leave(self, one: PlannedCase, outcome: CaseOutcome, reason: str) -> None:
        """End a case that is not measured; one that failed before has failed still, though it was to be repeated."""
        if outcome == "left_out" and self.ledger.state.case(one.suite_case.name).outcome in FAILED:
            self.setup.display.tell(f"{one.suite_case.name} is not repeated: {reason}")
        else:
            self._end_case(one, Judgement(outcome=outcome, reason=reason), None)

    # A block: its cases in turn, again where the infrastructure failed.

    def _run_block(self, block: Sequence[PlannedCase]) -> None:
        state = self.ledger.state
        self._waiting = {one.suite_case.name: _Waiting(one, self._folder_to_resume(one, state)) for one in block}
        ended: list[_Ended] = []
        try:
            while self._waiting and not self._is_interrupted:
                self._refuse_what_cannot_run(machine := self._ready_machine())
                if self._waiting:
                    ended += self._measure(machine)
        finally:
            try:
                self._keep(ended)
            finally:
                for one in ended:
                    one.run.close()
        if self._ledger_failure is not None:
            raise self._ledger_failure
        for one in ended:
            if one.summary.cause is not None and one.summary.cause.kind == "disk":
                raise InfrastructureFailed(f"{one.one.suite_case.name}: {one.summary.cause.text}; make room")

    def _folder_to_resume(self, one: PlannedCase, state: SuiteState) -> Path | None:
        run = state.case(one.suite_case.name).run_to_resume
        return None if run is None else self.setup.runs / run

    def _ready_machine(self) -> Machine:
        """Open an engine unless one is open; return the machine that its ranks run on.

        Raises:
            InfrastructureFailed: none can be opened.
        """
        for attempt in range(ENGINE_ATTEMPTS):
            if self._engine is not None and self._machine is not None:
                break
            try:
                self._engine = self.setup.open_engine()
                self._machine = self._engine.machine()
            except InfrastructureFailed as error:
                self._stop_engine()
                if attempt == ENGINE_ATTEMPTS - 1:
                    raise
                self.setup.display.tell(f"{error}; another attempt begins")
        assert self._machine is not None, "an engine was opened"
        return self._machine

    def _stop_engine(self) -> None:
        if self._engine is not None:
            self._engine.stop()
        self._engine = self._machine = None

    def _refuse_what_cannot_run(self, machine: Machine) -> None:
        """Skip cases whose ranks cannot use torch here; let those begin anew whose trials were another machine's."""
        for name, waiting in list(self._waiting.items()):
            assert waiting.one.case is not None, "a case without refusal is resolved"
            try:
                check_torch(waiting.one.case, machine)
            except (Misuse, InfrastructureFailed) as error:
                del self._waiting[name]
                self._end_case(waiting.one, Judgement(outcome="skipped", reason=str(error)), None)
                continue
            if waiting.folder is not None:
                try:
                    check_same_machine(waiting.folder, machine)
                    _check_same_nodes(waiting.folder, waiting.one.case)
                except Misuse as error:
                    self.setup.display.tell(f"{name} begins anew: {error}")
                    waiting.folder = None

    def _measure(self, machine: Machine) -> list[_Ended]:
        """Measure the cases that wait, once; return those that are over, and let the others wait for a further try."""
        assert self._engine is not None, "an engine was opened"
        waiting = list(self._waiting.values())
        measured = measure(
            [self._order(one, machine) for one in waiting],
            engine=self._engine,
            machine=machine,
            folder=self.setup.runs,
            watch=self._watch,
            listener=self,
        )
        self._is_interrupted = measured.is_interrupted
        ended: list[_Ended] = []
        is_engine_well = not measured.is_interrupted
        for one, summary, run in zip(waiting, measured.summaries, measured.runs, strict=True):
            judgement = judge(one.one.suite_case, summary.outcome, summary.cause)
            is_engine_well &= not judgement.is_infrastructure
            is_lost_beside = run.id in measured.lost_beside  # It was not its trial: no attempt of its own is used up.
            is_again = is_lost_beside or (judgement.is_infrastructure and one.attempt < one.one.suite_case.retries)
            if is_again and not self._is_interrupted and self._ledger_failure is None:
                run.close()
                one.folder, one.attempt = run.folder, one.attempt + (not is_lost_beside)
                self.setup.display.tell(
                    f"{one.one.suite_case.name}: {judgement.reason}; attempt {one.attempt + 1} of"
                    f" {one.one.suite_case.retries + 1} keeps its {summary.trials_done} complete trial(s)"
                )
                continue
            del self._waiting[one.one.suite_case.name]
            ended.append(_Ended(one.one, summary, run, machine))
        if not is_engine_well:
            self._stop_engine()
        return ended

    def _order(self, waiting: _Waiting, machine: Machine) -> CaseOrder:
        one, suite = waiting.one, self.plan.suite
        assert one.case is not None, "a case without refusal is resolved"
        name = one.suite_case.name
        margin = suite.margins.get(name)
        member = SuiteMember(suite=suite.name, id=self.ledger.folder.name, case=name, margin=margin)
        return CaseOrder(
            case=one.case,
            fault=one.fault,
            settings=TrialSettings(
                limit_s=one.suite_case.limit_s,
                keep_traces=one.suite_case.keep_traces,
                instrumentation=one.suite_case.instrumentation,
                store=self.setup.store_url,
                purpose=Purpose(origin="nightly" if suite.is_nightly else "run", member=member),
                ceiling_of=lambda case: self.setup.store.ceiling_of(case, machine),
            ),
            resumes=waiting.folder,
        )

    # What `measure` tells.

    def begun(self, order: CaseOrder, run: run_dir.Run) -> None:
        """Write that the case began."""
        waiting = self._waiting[_name(order)]
        self._of_run[id(run.case)] = waiting.one
        self.ledger.write(
            records.CaseBegun(case=_name(order), run=run.id, attempt=waiting.attempt, time_ns=time.time_ns())
        )
        self.setup.display.case_begins(waiting.one, run)
        self._save()

    def trial_ended(self, order: CaseOrder, run: run_dir.Run, ended: TrialEnded) -> None:
        """Write how the trial ended."""
        waiting = self._waiting[_name(order)]
        try:
            self.ledger.write(
                records.TrialEnded(
                    case=_name(order),
                    run=run.id,
                    trial=ended.trial,
                    attempt=waiting.attempt,
                    outcome=ended.outcome,
                    cause=ended.cause,
                    time_ns=time.time_ns(),
                )
            )
            judgement = judge(waiting.one.suite_case, ended.outcome, ended.cause)
            if ended.outcome in FAILED and not judgement.is_infrastructure:
                # It is over, though its block goes on: should this process die now, it is not measured again.
                self.ledger.write(_case_ended(waiting.one, judgement, run.id))
        except InfrastructureFailed as error:  # Told apart from a failure of the engine, which would be tried again.
            self._ledger_failure = error
            raise
        self.setup.display.trial_ended(waiting.one, ended)
        self._save_now_and_then()

    def _watch(self, case: Case, trial: int, steps: int) -> None:
        self.setup.display.steps(self._of_run[id(case)], trial, steps)
        if steps != self._steps:  # As long as steps end, the suite does not stand still.
            self._steps = steps
            self._save_now_and_then()

    # What is kept

    def _keep(self, ended: Sequence[_Ended]) -> None:
        """Keep the results, then write that the cases ended.

        Raises:
            InfrastructureFailed: the disk or the ledger cannot be written; the cases go on when the run is resumed.
        """
        if not ended:
            return
        history = self.setup.store.ready()
        kept = persist(
            [one.summary for one in ended], ended[-1].machine, history, None, baselines=self._baselines(ended)
        )
        unsaved = [one for one in kept.summaries if not (Path(one.folder) / "summary.json").exists()]
        if kept.failures and not unsaved:
            self.setup.store.failed(kept.failures[0])
        for one, summary in zip(ended, kept.summaries, strict=True):
            if summary not in unsaved:
                self._end_case(one.one, judge(one.one.suite_case, summary.outcome, summary.cause), summary)
        self._save()
        if unsaved:
            raise next(error for error in kept.failures if "summary.json" in str(error))

    def _baselines(self, ended: Sequence[_Ended]) -> dict[str, NamedBaseline]:
        """Return, by run, the baselines that the suite names for the cases."""
        state, by_name = self.ledger.state, {one.one.suite_case.name: one.summary for one in ended}
        blocks = {one.suite_case.name: one.suite_case.block for one in self.plan.cases}
        found = {}
        for one in ended:
            name = one.one.suite_case.baseline
            if name is None or name == one.one.suite_case.name:
                continue
            is_beside = name in by_name and blocks[name] == one.one.suite_case.block
            baseline = by_name.get(name) or self._baseline_before(name, one.machine, state)
            if isinstance(baseline, Summary) and baseline.outcome != "done":
                how = baseline.outcome.replace("_", " ")
                why = "" if baseline.cause is None else f" ({baseline.cause.text})"
                baseline = Absent(reason=f"its baseline {name} {how}{why}")
            found[one.summary.run] = NamedBaseline(summary=baseline, is_beside=is_beside)
        return found

    def _baseline_before(self, name: str, machine: Machine, state: SuiteState) -> Summary | Absent:
        """Return the summary of the case of this name, from an earlier block or before the suite run was resumed."""
        known = state.case(name)
        if known.run is None or known.outcome != "done":
            how = "was not measured" if known.outcome is None else f"was {known.outcome.replace('_', ' ')}"
            return Absent(reason=f"its baseline {name} {how}{'' if known.reason is None else f' ({known.reason})'}")
        try:
            folder = self.setup.runs / known.run
            if folder.exists() and not is_ours(folder):
                raise Misuse(f"{folder} belongs to another user")
            changes = changes_since(folder, machine)
            summary = run_dir.load(folder)
        except Misuse as error:
            return Absent(reason=f"its baseline {name} cannot be read: {error}")
        return Absent(reason=f"its baseline {name} was measured with {changes}") if changes else summary

    def _end_case(self, one: PlannedCase, judgement: Judgement, summary: Summary | None) -> None:
        self.ledger.write(_case_ended(one, judgement, None if summary is None else summary.run))
        self.setup.display.case_ended(one, judgement, summary)

    def _save_now_and_then(self) -> None:
        if self.setup.clock_s() - self._saved_s >= SAVED_S:
            self._save()

    def _save(self, outcome: SuiteOutcome = "running") -> None:
        """Keep the record of the suite run in the history, which may be gone for a while."""
        self._saved_s = self.setup.clock_s()
        state, now_ns = self.ledger.state, time.time_ns()
        assert state.begun is not None, "a ledger is opened with its beginning"
        ends = {name: state.case(name).outcome for name in (one.suite_case.name for one in self.plan.cases)}
        self.setup.store.save(
            SuiteRecord(
                id=self.ledger.folder.name,
                suite=self.plan.suite.name,
                started_ns=state.begun.time_ns,
                progress_ns=now_ns,
                ended_ns=None if outcome == "running" else now_ns,
                outcome=outcome,
                period_s=self.plan.suite.period_s,
                cases=dict(Counter(found for found in ends.values() if found is not None)),
                total=len(self.plan.cases),
                running=tuple(self._waiting),
                left_out=tuple(name for name, case in state.cases.items() if case.outcome == "left_out"),
                failed=tuple(name for name, found in ends.items() if found in FAILED),
                folder=str(self.ledger.folder),
            )
        )


def _check_same_nodes(folder: Path, case: Case) -> None:
    """Refuse a run whose ranks were spread over another number of nodes.

    Raises:
        Misuse: they were; or the folder holds no run.
    """
    file = run_dir.case_file(folder)
    if file.case.nodes != case.nodes:
        raise Misuse(f"run {file.run} cannot go on: it was begun as {file.case.title}, and is {case.title} now")


def _name(order: CaseOrder) -> str:
    """Return the name of the order's case in its suite."""
    member = order.settings.purpose.member
    assert member is not None, "a suite orders its cases by name"
    return member.case


def _case_ended(one: PlannedCase, judgement: Judgement, run: str | None) -> records.CaseEnded:
    return records.CaseEnded(
        case=one.suite_case.name,
        run=run,
        outcome=judgement.outcome,
        reason=judgement.reason,
        is_infrastructure=judgement.is_infrastructure,
        time_ns=time.time_ns(),
    )
