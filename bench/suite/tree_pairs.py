"""Run the last good and the present source tree in turn, for changes that the gate finds likely tonight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace as with_fields

from bench.errors import InfrastructureFailed, Misuse, plural
from bench.gate.cause.attribution import FEWEST_PAIRS, SETTINGS, Attribution, PairSettings, attribute, attribution_words
from bench.gate.cause.questions import SuspectedFigure, TreeQuestion, keep_attributions, tree_questions
from bench.gate.gated import log_trials
from bench.gate.verdicts import SeriesKey
from bench.session.checkouts import find_repository
from bench.session.measure import CaseOrder, Listener
from bench.session.session import Session
from bench.session.tree_pairs import PairedRuns, measure_pair
from bench.store.history import History
from bench.suite.plan import PlannedCase

START_S = 60.0
"""Time for unpacking, sending and loading two trees: each node loads torch twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePairs(Listener):
    """Measures pairs of source trees for a suite run.

    suite, suite_run: the suite run whose changes are examined. cases: runnable cases of the suite, by name. order_of:
    returns a case's order as defined by the suite. watch: called repeatedly while ranks measure. repository: a
    repository with the commits; None: this program's own.
    """

    suite: str
    suite_run: str
    cases: dict[str, PlannedCase]
    session: Session
    order_of: Callable[[PlannedCase], CaseOrder]
    watch: Callable[[], None]
    repository: Path | None = None
    settings: PairSettings = field(default_factory=lambda: SETTINGS)

    def progressed(self, order: CaseOrder, trial: int, steps: int) -> None:
        """Report that the suite is not stalled."""
        self.watch()

    def run(self, left_s: float | None) -> bool:
        """Measure pairs for each likely change, as far as they fit into the remaining time, and store the attributions.

        Obstacles are reported and do not affect the suite run. Returns whether a person interrupted it.
        """
        history = self.session.store.ready()
        if history is None:  # The suite reports it.
            return False
        tell = self.session.tell
        try:
            for question in tree_questions(history, self.suite, self.suite_run, self.settings):
                planned = self.cases.get(question.case)
                if planned is None or planned.case is None:
                    continue
                if not question.is_same_tree and question.refusal is None and left_s is not None:
                    needed_s = START_S + 2 * self.settings.pairs * self._trial_s(planned, history)
                    if needed_s > left_s:
                        tell(
                            f"{question.case}: code or environment is not measured: pairs of trees take about"
                            f" {needed_s:.0f} s, and the budget leaves {max(0.0, left_s):.0f} s"
                        )
                        continue
                    left_s -= needed_s
                is_interrupted, attributions = self._answer(question, planned)
                keep_attributions(history, self.suite, attributions)
                for line in dict.fromkeys(map(attribution_words, attributions.values())):
                    tell(f"{question.case}: {line}")
                if is_interrupted:
                    return True
        except (InfrastructureFailed, Misuse) as error:
            tell(f"code or environment is not measured: {error}")
        return False

    def _answer(self, question: TreeQuestion, planned: PlannedCase) -> tuple[bool, dict[SeriesKey, Attribution]]:
        """Return whether a person interrupted it, and the attribution of each figure of the question."""
        unknown = Attribution(
            outcome="unsure",
            suite_run=question.suite_run,
            night_ns=question.night_ns,
            good_commit=question.good_commit,
            commit=question.commit,
        )
        keys = [figure.key for figure in question.figures]
        if question.refusal is not None:
            return False, dict.fromkeys(keys, _without_pairs(unknown, question.refusal))
        assert question.good_commit is not None
        assert question.commit is not None
        if question.is_same_tree:
            same = f"both nights ran commit {question.commit[:7]}"
            return False, dict.fromkeys(keys, _without_pairs(unknown, same, is_environment=True))
        try:
            runs = self._measure(question.good_commit, question.commit, planned)
        except (Misuse, InfrastructureFailed) as error:
            self.session.stop_engine()
            return False, dict.fromkeys(keys, _without_pairs(unknown, str(error)))
        if runs.is_interrupted:
            return True, {}
        return False, {figure.key: _attributed(figure, runs, unknown, self.settings) for figure in question.figures}

    def _measure(self, good: str, present: str, planned: PlannedCase) -> PairedRuns:
        """Measure the trees in turn.

        Raises:
            Misuse, InfrastructureFailed: see `measure_pair`.
        """
        repository = find_repository(self.repository)
        pairs, name = self.settings.pairs, planned.suite_case.name
        self.session.tell(
            f"{name}: {plural(pairs, 'pair')} of commits {good[:7]} and {present[:7]} show whether the code is the"
            " cause; neither tree has a compiled trace scanner"
        )
        note = f"pair of trees for {name} of {self.suite_run}"
        order = self.order_of(planned)
        return measure_pair(self.session, order, (good, present), repository, pairs=pairs, note=note, listener=self)

    def _trial_s(self, planned: PlannedCase, history: History) -> float:
        """Return the time of a trial of the case, from earlier nights or from this one; 0 if unknown."""
        assert planned.case is not None, "a case without refusal is resolved"
        if planned.estimate_s is not None:
            return planned.estimate_s / planned.case.trials
        for summary in history.runs(1_000, suite=self.suite, suite_run=self.suite_run):
            member = summary.purpose.member
            if member is not None and member.case == planned.suite_case.name and summary.trials_done:
                return (summary.ended_ns - summary.started_ns) / 1e9 / summary.trials_done
        return 0.0


def _without_pairs(unknown: Attribution, reason: str, *, is_environment: bool = False) -> Attribution:
    """Return an attribution without measured pairs."""
    return with_fields(unknown, outcome="environment" if is_environment else "unsure", reason=" ".join(reason.split()))


def _attributed(figure: SuspectedFigure, runs: PairedRuns, unknown: Attribution, settings: PairSettings) -> Attribution:
    sides = [log_trials(side, figure.key.metric, figure.key.labels) for side in (runs.first, runs.second)]
    pairs = min(map(len, sides))
    if pairs < FEWEST_PAIRS:
        return _without_pairs(unknown, runs.failure or f"fewer than {FEWEST_PAIRS} pairs have this figure")
    good, present = (side[:pairs] for side in sides)
    outcome, code, environment = attribute(good, present, figure.before, figure.suspected, settings)
    return with_fields(unknown, outcome=outcome, pairs=pairs, code=code, environment=environment)
