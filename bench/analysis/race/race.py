"""A race measures cases in turn as a suite run, drops those that are shown to be slower, and names the winner.

It is a suite run like any other: `suite show`, `compare` and the boards read it. Its ledger records the dropped cases,
so that a resumed race keeps its rounds and measures no dropped case again. An interrupted round that is completed later
still counts as a round. A case that cannot run, fails or runs out of memory leaves the race, with the reason.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.analysis.race.looks import LOOKS, MOST_ROUNDS
from bench.analysis.race.referee import FEWEST, Objective, RaceReferee, costs, least_budget_s
from bench.errors import Misuse, plural
from bench.report.format import duration
from bench.session.case_args import CaseArgs
from bench.session.session import Session
from bench.store.files import read_small
from bench.store.suite_record import FAILED
from bench.suite.choice import Choice, choose
from bench.suite.file import Suite, SuiteCase
from bench.suite.folder import SUITE, begin, find_suite_run, resume
from bench.suite.ledger import SuiteState
from bench.suite.plan import PlannedCase, SuitePlan
from bench.suite.results import SuiteResult, read_result
from bench.suite.run import Display, SuiteEnd, SuiteRunner
from collectors.files import in_words
from workloads.core.precision_options import WEIGHTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceCase:
    """A case that takes part. name: unique in its race. args: the race ignores their number of trials.

    predicted: tokens per second, or bytes in a race for memory; None if nothing predicts them. limit: what limits the
    case, for people. is_plain: if the budget is too small for all cases, other cases are left out first.
    """

    name: str
    args: CaseArgs
    predicted: float | None = None
    limit: str | None = None
    is_plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceEnd:
    """The end of a race. referee: has its standing. result: of the suite run, with each case's measurements."""

    cases: tuple[RaceCase, ...]
    objective: Objective
    end: SuiteEnd
    referee: RaceReferee
    result: SuiteResult


def race(
    cases: Sequence[RaceCase],
    plan: SuitePlan,
    session: Session,
    *,
    objective: Objective = "throughput",
    budget_s: float | None = None,
    resumed: str | None = None,
    display: Display | None = None,
    clock_s: Callable[[], float] = time.monotonic,
) -> RaceEnd:
    """Measure the cases in turn until one is shown to be the best or the budget is used up.

    Ctrl-C ends the race; completed rounds are kept.
    plan: for the suite from `race_suite`, with the times in the history. budget_s: limits the rounds; None for no
        limit.
    resumed: id of the suite run to resume.

    Raises:
        Misuse: fewer than two cases can run or fit into the budget, two are the same, or they have different weights.
        InfrastructureFailed: the suite run's folder cannot be written.
    """
    check_race(plan)
    names = [case.name for case in sorted(cases, key=lambda case: not case.is_plain)]
    referee = RaceReferee(names=names, objective=objective, budget_s=budget_s, clock_s=clock_s)
    if budget_s is not None and resumed is None:
        _leave_out(plan, referee, budget_s)
    with begin(plan.suite, session.runs) if resumed is None else resume(plan.suite, session.runs, resumed) as ledger:
        _recall(referee, ledger.state, session.runs)
        _leave_behind(referee)
        choice = choose(plan, ledger.state)
        out = [planned for planned in choice.cases if planned.suite_case.name in referee.left_out]
        choice = Choice(
            cases=tuple(planned for planned in choice.cases if planned not in out),
            not_run=(
                *choice.not_run,
                *((planned, "left_out", referee.left_out[planned.suite_case.name]) for planned in out),
            ),
        )
        runner = SuiteRunner(plan, ledger, session, display or Display(), referee=referee, clock_s=clock_s)
        end = runner.run(choice)
        folder = ledger.folder
    return RaceEnd(cases=tuple(cases), objective=objective, end=end, referee=referee, result=read_result(folder))


def race_suite(cases: Sequence[RaceCase], name: str, limit_s: float) -> Suite:
    """Return a suite whose only block is the race."""
    suite_cases = tuple(
        SuiteCase(
            name=case.name,
            table=case.name,
            block="race",
            args=replace(case.args, trials=MOST_ROUNDS),
            limit_s=limit_s,
            tags=("race",),
        )
        for case in cases
    )
    content = msgspec.json.encode((name, suite_cases), order="sorted")
    return Suite(
        name=name,
        description="A race of strategies.",
        path=Path(name),
        is_nightly=False,
        period_s=None,
        cases=suite_cases,
        levers=(),
        digest=hashlib.sha256(content).hexdigest(),
    )


class _BegunCase(msgspec.Struct):
    name: str
    args: CaseArgs


class _BegunSuite(msgspec.Struct):
    cases: tuple[_BegunCase, ...]


def begun_cases(runs: Path, suite_run: str) -> dict[str, CaseArgs]:
    """Return the arguments of the cases that a race's suite run was begun with, by name.

    suite_run: its id, or the beginning of it.

    Raises:
        Misuse: there is no such suite run, or its file of cases cannot be read.
    """
    path = find_suite_run(runs, suite_run) / SUITE
    try:
        begun = msgspec.json.decode(read_small(path, follows_link=False), type=_BegunSuite)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Misuse(f"{path} has no cases to continue ({in_words(error)}); leave --resume out") from None
    return {case.name: case.args for case in begun.cases}


def check_race(plan: SuitePlan) -> None:
    """Refuse a race of fewer than two cases, or of cases that do not do the same work.

    Raises:
        Misuse: see above.
    """
    runnable = [planned for planned in plan.cases if planned.refusal is None]
    if len(runnable) < FEWEST:
        refused = [
            f"{each.suite_case.name}: {each.refusal.removeprefix(f'{each.suite_case.args.strategy}: ')}"
            for each in plan.cases
            if each.refusal is not None
        ]
        if not refused:
            raise Misuse(
                f"a race needs two cases, and there is only {plan.cases[0].suite_case.name}; name a second one"
            )
        raise Misuse(f"a race needs two cases that can run here, and {len(runnable)} can: {'; '.join(refused)}")
    for planned in runnable:
        assert planned.case is not None, "a case without refusal is resolved"
        if planned.case.model is None:
            raise Misuse(f"{planned.suite_case.name} is a probe, which trains nothing; leave it out")
    words = {
        str(WEIGHTS.of(planned.case))
        for planned in runnable
        if planned.case is not None and planned.case.precision == "bf16"
    }
    if len(words) > 1:
        raise Misuse(f"the cases have different weights ({', '.join(sorted(words))}); give all the same weights=")


def _leave_out(plan: SuitePlan, referee: RaceReferee, budget_s: float) -> None:
    """Leave out the cases that, by their times in the history, cannot reach the first look within the budget.

    Raises:
        Misuse: fewer than two cases fit; the message says how long two would take.
    """
    trial_s = {planned.suite_case.name: _trial_s(planned) for planned in plan.cases if planned.refusal is None}
    if (least_s := least_budget_s(list(trial_s.values()))) > budget_s:
        raise Misuse(
            f"--budget {duration(budget_s)} is too small: the first look at two cases, after {LOOKS[0]} rounds, takes"
            f" about {duration(least_s)}; use a larger --budget, or fewer steps"
        )
    names = [name for name in referee.names if name in trial_s]
    for name in reversed(names):
        left = [trial_s[other] for other in names if other not in referee.left_out]
        # Without a case of unknown time, no more of the others would fit.
        if trial_s[name] and LOOKS[0] * sum(left) > budget_s and len(left) > FEWEST:
            referee.left_out[name] = f"--budget: {LOOKS[0]} rounds of this case no longer fit"


def _trial_s(planned: PlannedCase) -> float:
    """Return the seconds of a trial by the history; 0 if they are unknown."""
    return 0.0 if planned.estimate_s is None or planned.case is None else planned.estimate_s / planned.case.trials


def _leave_behind(referee: RaceReferee) -> None:
    """Leave out of a resumed race the cases that lag by more than the interrupted round.

    Their missing rounds, if measured now, would be compared with other cases' rounds of another day.
    """
    done = {name: len(costs(referee.known[name], referee.objective)) for name in referee.known}
    if not (most := max((done[name] for name in done if name not in referee.failed_rounds), default=0)):
        return
    for name in referee.names:
        if name not in referee.failed_rounds and done.get(name, 0) < most - 1:
            referee.left_out[name] = (
                f"it lacks some of {plural(most, 'round')}, and rounds of different days are not compared"
            )


def _recall(referee: RaceReferee, state: SuiteState, runs: Path) -> None:
    """Restore in the referee what an earlier process measured in this race."""
    for name, known in state.cases.items():
        if known.run is not None and (runs / known.run).is_dir():
            referee.known[name] = runs / known.run
        if known.outcome in FAILED:
            referee.failed(name)
