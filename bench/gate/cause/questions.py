"""Which changes of a night are worth paired runs of both source trees, and storing the results of such pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from sqlalchemy import or_, select

from bench.errors import InfrastructureFailed
from bench.gate.cause.attribution import SETTINGS, Attribution, PairSettings
from bench.gate.detector.paired import likely_change
from bench.gate.figure import DAY_NS
from bench.gate.gated import GATED_BY_NAME
from bench.gate.missing import day_of, is_going_on, may_be_resumed
from bench.gate.nightly import judge_nights, judge_without_keeping
from bench.gate.verdicts import BAD, KnownSeries, Raced, SeriesKey, Verdict, load_states, save_night
from bench.store.history import History
from bench.store.schema import RUNS

RACES = 5
MOST_RUNS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectedFigure:
    """A figure whose change needs an explanation. suspected: its change. before: earlier nights. All are logarithms."""

    key: SeriesKey
    suspected: float
    before: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeQuestion:
    """A case whose figures have changed: is it the code or the environment?

    probability: of the likeliest change. good_commit: commit of the last run before the change. commit: commit of
    tonight's run. refusal: why pairs cannot answer; None if they can.
    """

    case: str
    suite_run: str
    night_ns: int
    probability: float
    figures: tuple[SuspectedFigure, ...]
    good_commit: str | None = None
    commit: str | None = None
    refusal: str | None = None

    @property
    def is_same_tree(self) -> bool:
        """Whether both nights ran the same commit, so that there is nothing to measure."""
        return self.refusal is None and self.good_commit == self.commit


def tree_questions(
    history: History, suite: str, suite_run: str, settings: PairSettings = SETTINGS
) -> list[TreeQuestion]:
    """Return a question for each case of the suite run that has likely become worse, the likeliest change first.

    A change gets no second question if an earlier night already measured pairs for it. Efficiencies are left out: they
    change with the case's own rate or with its baseline's rate, which are figures of their own.
    """
    questions: dict[str, TreeQuestion] = {}
    for verdict, series in judge_without_keeping(history, suite, suite_run):
        suspicion = _suspicion(verdict, series, settings)
        if suspicion is None:
            continue
        probability, figure, low_ns = suspicion
        question = questions.get(verdict.key.case)
        if question is None or probability > question.probability:
            good_commit, commit, refusal = _trees(history, verdict, low_ns)
            figures = (figure,) if question is None else (figure, *question.figures)
            questions[verdict.key.case] = TreeQuestion(
                case=verdict.key.case,
                suite_run=suite_run,
                night_ns=verdict.started_ns,
                probability=probability,
                figures=figures,
                good_commit=good_commit,
                commit=commit,
                refusal=refusal,
            )
        else:
            questions[verdict.key.case] = replace(question, figures=(*question.figures, figure))
    return sorted(questions.values(), key=lambda question: -question.probability)


def _suspicion(
    verdict: Verdict, series: KnownSeries, settings: PairSettings
) -> tuple[float, SuspectedFigure, int] | None:
    """Return the probability of a change for the worse, its figure, and the earliest night on which it may have begun.

    None if it is too improbable, or if pairs have already been measured for it.
    """
    state = series.state
    if verdict.is_efficiency or verdict.outcome in ("late", "creep", "redefined", "accepted"):
        return None
    worse = 1 if GATED_BY_NAME[verdict.key.metric].better == "lower" else -1
    times = dict(state.nights)
    if verdict.outcome in BAD and verdict.change_ratio is not None and verdict.since_ns is not None:
        # People have been alerted to it, whatever its probability.
        probability, change = 1.0, math.log(verdict.change_ratio)
        numbers = {time_ns: number for number, time_ns in state.nights}
        low_ns = verdict.since_ns if verdict.since_low_ns is None else verdict.since_low_ns
        onset = numbers.get(low_ns, low_ns // DAY_NS)
    else:
        likely = likely_change(state.detector, worse)
        if likely is None:
            return None
        probability, change, onset = likely.probability, likely.log_change, likely.onset_low
        low_ns = times.get(onset, onset * DAY_NS)
    if probability < settings.probability or change * worse <= 0:
        return None
    pairs = state.attribution
    if pairs is not None and pairs.night_ns >= low_ns and (pairs.pairs or pairs.outcome != "unsure"):
        return None
    begun = max((start for start in state.detector.regime_starts if start < onset), default=0)
    before = tuple(night.log_value for night in state.detector.nights if begun <= night.number < onset)
    return probability, SuspectedFigure(key=verdict.key, suspected=change, before=before), low_ns


def _trees(history: History, verdict: Verdict, low_ns: int) -> tuple[str | None, str | None, str | None]:
    """Return the commits of the last good run and of tonight's run, or why they are unknown."""
    key = verdict.key
    with history.transaction() as connection:
        good = connection.execute(
            select(RUNS.c.id, RUNS.c.started_ns)
            .where(
                *(RUNS.c.suite == key.suite, RUNS.c.suite_case == key.case, RUNS.c.series == key.series),
                *(RUNS.c.outcome == "done", RUNS.c.started_ns < low_ns),
                or_(RUNS.c.is_rerun.is_(None), RUNS.c.is_rerun == 0),
            )
            .order_by(RUNS.c.started_ns.desc(), RUNS.c.id.desc())
            .limit(1)
        ).first()
    if good is None:
        return None, None, f"the history has no run of the case before {day_of(low_ns)}"
    commits = []
    for name, run in (("the last good run", good.id), ("tonight's run", verdict.run)):
        machine = history.machine(run)
        if machine is None or machine.commit is None:
            return None, None, f"{name}, {run}, has no commit"
        if machine.is_dirty:
            return None, None, f"{name}, {run}, ran from a tree with uncommitted changes"
        commits.append(machine.commit)
    return commits[0], commits[1], None


def keep_attributions(history: History, suite: str, attributions: Mapping[SeriesKey, Attribution]) -> None:
    """Store the attributions of these series for the verdicts of their night; earlier nights are judged first.

    Raises:
        InfrastructureFailed: the store cannot be written, or other processes keep judging the same suite.
    """
    if not attributions:
        return
    now_ns, records = time.time_ns(), history.suite_runs(MOST_RUNS, suite)
    unfinished = {attribution.suite_run for attribution in attributions.values()}
    unfinished |= {each.id for each in records if is_going_on(each, now_ns) or may_be_resumed(each, records, now_ns)}
    judge_nights(history, suite, unfinished=unfinished)
    for _ in range(RACES):
        known = load_states(history, suite)
        after = [
            known[key].with_state(msgspec.structs.replace(known[key].state, attribution=attribution))
            for key, attribution in attributions.items()
            if key in known
        ]
        try:
            save_night(history, known, after, ())
            return
        except Raced:
            continue
    raise InfrastructureFailed(
        f"suite {suite} is being judged by other processes; the result of its pairs is not stored"
    )
