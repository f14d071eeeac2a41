"""Which cases of a planned suite are measured, and in which order: those that are missing, chosen and within budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bench.store import run_dir
from bench.store.suite_record import CaseOutcome
from bench.suite.ledger import Judgement, SuiteState
from bench.suite.plan import PlannedCase, SuitePlan, chosen, left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The cases to measure, in order, and the cases that are not run, each with its outcome and the reason."""

    cases: tuple[PlannedCase, ...]
    not_run: tuple[tuple[PlannedCase, CaseOutcome, str], ...] = ()


def choose(
    plan: SuitePlan,
    state: SuiteState,
    *,
    tags: Sequence[str] = (),
    budget_s: float | None = None,
    is_failed_repeated: bool = False,
) -> Choice:
    """Return the cases of the plan to measure: those that the ledger lacks, the tags choose and the budget allows.

    Within a budget, the most important cases come first.

    state: the ledger's present state. tags: see `bench.suite.plan.chosen`. is_failed_repeated: include failed cases.

    Raises:
        Misuse: no case has one of the tags, or no case fits the budget.
    """
    chosen_names = chosen(plan.suite, tags)
    missing = set(
        state.missing((planned.suite_case.name for planned in plan.cases), is_failed_repeated=is_failed_repeated)
    )
    rest = replace(
        plan, cases=tuple(_rest(planned, state) for planned in plan.cases if planned.suite_case.name in missing)
    )
    out = left_out(rest, tags, budget_s)
    wanted: list[PlannedCase] = []
    not_run: list[tuple[PlannedCase, CaseOutcome, str]] = []
    for planned in rest.cases:
        name = planned.suite_case.name
        if name in out:
            not_run.append((planned, "left_out", out[name]))
        elif planned.refusal is not None:  # Not a failure if nobody chose the case.
            not_run.append((planned, "skipped" if name in chosen_names else "left_out", planned.refusal))
        else:
            wanted.append(planned)
    if budget_s is not None:
        wanted.sort(key=lambda planned: -planned.suite_case.importance)
    return Choice(cases=tuple(wanted), not_run=tuple(not_run))


def as_chosen(plan: SuitePlan, choice: Choice, state: SuiteState) -> tuple[SuitePlan, dict[str, str]]:
    """Return the plan with estimates for what is missing, and why runnable cases are left out, by name."""
    wanted = {planned.suite_case.name: planned for planned in choice.cases}
    out = {planned.suite_case.name: reason for planned, _, reason in choice.not_run if planned.refusal is None}
    for planned in plan.cases:
        name = planned.suite_case.name
        if planned.refusal is None and name not in wanted and name not in out:
            outcome = state.case(name).outcome
            again = "" if outcome == "done" else "; --repeat-failed runs it again"
            out[name] = f"it is {str(outcome).replace('_', ' ')} already{again}"
    return replace(plan, cases=tuple(wanted.get(planned.suite_case.name, planned) for planned in plan.cases)), out


def _rest(planned: PlannedCase, state: SuiteState) -> PlannedCase:
    """Return the case with an estimate for the trials that it still lacks."""
    case_state = state.case(planned.suite_case.name)
    if planned.case is None or planned.estimate_s is None or case_state.run_to_resume is None:
        return planned
    return replace(planned, estimate_s=planned.estimate_s * (1 - len(case_state.trials_done) / planned.case.trials))


def why_left_out(planned: PlannedCase, left_s: float) -> str:
    """Return why a case does not fit into the remaining time of a budget."""
    about = "an unknown time" if planned.estimate_s is None else f"about {planned.estimate_s:.0f} s"
    return f"--budget: it takes {about}, and {max(left_s, 0):.0f} s were left"


def blocks_of(cases: Iterable[PlannedCase]) -> list[tuple[PlannedCase, ...]]:
    """Return the cases by block, in order of each block's first case, but each baseline's block before its users."""
    blocks: dict[str, list[PlannedCase]] = {}
    block_of: dict[str | None, str] = {}
    for planned in cases:
        blocks.setdefault(planned.suite_case.block, []).append(planned)
        block_of[planned.suite_case.name] = planned.suite_case.block
    ordered: dict[str, None] = {}

    def place(block: str, above: frozenset[str]) -> None:
        for planned in blocks[block]:
            needed = block_of.get(planned.suite_case.baseline)
            if needed is not None and needed not in above and needed not in ordered:
                place(needed, above | {needed})
        ordered.setdefault(block)

    for block in blocks:
        place(block, frozenset({block}))
    return [tuple(blocks[block]) for block in ordered]


# Which of them continue


class Referee:
    """Decides, while a block is measured, which of its cases need no further trial; this one lets all cases continue.

    Cases have their names in the suite.
    """

    def begun(self, name: str, run: run_dir.Run) -> None:
        """The run of the case begins, or continues."""

    def trial_ended(self, name: str) -> None:
        """A trial of the case has ended."""

    def failed(self, name: str) -> None:
        """The case has failed."""

    def round_ended(self, rounds: int, collect: Callable[[], None]) -> Sequence[tuple[str, str]]:
        """Return the cases to drop now, each with the reason; see `Listener.round_ended`."""
        return ()

    def is_over(self, name: str) -> bool:
        """Whether the case needs no further trial."""
        return False

    def judgement(self, name: str) -> Judgement:
        """Return how a case ended if all its trials ended well."""
        return Judgement(outcome="done")
