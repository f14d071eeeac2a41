"""The dashboard "The nightly": what the newest nights say of each series and figure, what is missing, and the trend."""

from __future__ import annotations

from collections.abc import Mapping

from collectors.metrics import gate, results, suites
from collectors.metrics.agent import (
    RESULT_INFO,
    RUN_LAST_FAILURE,
    SERIES_NEWEST_RUN,
    USUAL_EFFICIENCY,
    USUAL_STEP_SECONDS,
)
from collectors.metrics.metric import Metric
from collectors.metrics.run_counts import RUNS
from dashboards import promql
from dashboards.boards import choices
from dashboards.boards.results import (
    ABSENT,
    NAME,
    OF_ONE_SERIES,
    OF_SERIES,
    OF_SUITE,
    ONE_SERIES,
    Chosen,
    age_column,
    band,
    median,
    now,
)
from dashboards.model import (
    Annotation,
    Colour,
    Column,
    Dashboard,
    Row,
    Stat,
    Step,
    Steps,
    Table,
    TimeSeries,
    Word,
    Worst,
    rising,
)
from dashboards.queries import joins, marks
from dashboards.thresholds import shipped

_LIMITS = shipped()
FAILURES = ("failed", "timed_out", "interrupted", "missing")
_CHOSEN: Chosen = {**OF_SUITE, "strategy": "$strategy", "shape": promql.none_of("")}
_NO_SUITE = "No suite has run. `observatory suite run nightly` runs one, docs/nightly.md has it run each night."
_NOT_JUDGED = "No night of the suite was judged: `observatory check --suite` with its name judges the newest."
_VERDICTS: dict[str, Colour] = {
    "confirmed": "bad",
    "regression": "bad",
    "creep": "warning",
    "suspicion": "warning",
    "late": "warning",
    "improvement": "good",
    "recovered": "good",
    "same": "good",
    "no_change_shown": "plain",
}
_ANY = Steps(below="good", steps=(Step(value=1, colour="bad"),))


# Numbers of now.


def _verdicts(*verdicts: str) -> str:
    """Return the number of figures with one of these verdicts; 0 where others were judged."""
    every = promql.largest(promql.select(gate.VERDICT, **OF_SUITE), by=gate.VERDICT.labels)
    found = promql.largest(
        promql.select(gate.VERDICT, **OF_SUITE, verdict=promql.one_of(*verdicts)), by=gate.VERDICT.labels
    )
    return promql.how_many(found, of=every)


def _judged(title: str, steps: Steps, *verdicts: str) -> Stat:
    return Stat(
        title=title,
        queries=(now(gate.VERDICT, _verdicts(*verdicts), "count"),),
        steps=steps,
        absent=_NOT_JUDGED,
    )


_LAST_CASES = promql.largest(promql.select(suites.SUITE_LAST_CASES, **OF_SUITE), by=("suite", "run", "outcome"))
_FAILED = promql.total(
    promql.largest(
        promql.select(suites.SUITE_LAST_CASES, **OF_SUITE, outcome=promql.one_of(*FAILURES)),
        by=("suite", "run", "outcome"),
    ),
    by=(),
)
_MISSING_CASES = promql.largest(promql.select(gate.SUITE_MISSING, **OF_SUITE), by=("suite", "kind"))
_STATS = (
    _judged("Regressions", _ANY, "confirmed", "regression"),
    _judged("Levels crept", rising(1), "creep"),
    _judged("Suspicions", rising(1), "suspicion"),
    _judged("No change shown", Steps(below="plain", steps=()), "same", "no_change_shown"),
    Stat(
        title="Cases missing",
        queries=(now(gate.SUITE_MISSING, promql.total(_MISSING_CASES, by=())),),
        steps=rising(1),
        absent=_NOT_JUDGED,
    ),
    Stat(
        title="Cases that failed",
        queries=(
            now(
                suites.SUITE_LAST_CASES,
                promql.either(_FAILED, promql.times(0, promql.total(_LAST_CASES, by=()))),
            ),
        ),
        steps=_ANY,
        absent=_NO_SUITE,
    ),
    Stat(
        title="Newest night",
        queries=(
            now(
                suites.SUITE_LAST_START,
                promql.age(promql.largest(promql.select(suites.SUITE_LAST_START, **OF_SUITE), by=())),
                "seconds",
            ),
        ),
        absent=_NO_SUITE,
    ),
    Stat(
        title="Latest suite",
        queries=(now(suites.SUITE_PERIOD, promql.largest(joins.lateness(**OF_SUITE), by=()), "ratio"),),
        steps=rising(1 + _LIMITS.suites.late_ratio),
        note="Time since a suite began, divided by the period that its file declares, of the suite that is latest.",
        absent="No suite declares a period: `period_hours` in its file.",
    ),
)


# Each series, and each figure of the gate.


def _series(name: str, metric: Metric, usual_metric: Metric, *, is_higher_better: bool) -> tuple[Column, ...]:
    """Return a figure's newest value, the median of the nights before it, and the change from that."""
    newest = median(metric, _CHOSEN)
    usual = joins.info_of_results(usual_metric, by=OF_SERIES, **_CHOSEN)
    # Efficiencies against baselines of one kind are compared, and of several kinds the worst change is shown.
    change = promql.less_one(
        promql.divide(
            f"({median(metric, _CHOSEN, *metric.labels)})",
            f"({joins.info_of_results(usual_metric, by=(*OF_SERIES, *metric.labels), **_CHOSEN)})",
        )
    )
    worst = promql.smallest if is_higher_better else promql.largest
    drop = _LIMITS.efficiency.critical_drop_ratio
    worse = (
        Steps(below="bad", steps=(Step(value=-drop, colour="plain"),))
        if is_higher_better
        else Steps(below="plain", steps=(Step(value=drop, colour="bad"),))
    )
    return (
        Column(name=name, source=now(metric, newest)),
        Column(name=f"{name}: usual", source=now(usual_metric, usual)),
        Column(name=f"{name}: change", source=now(metric, worst(change, by=OF_SERIES), "ratio"), steps=worse),
    )


_GRADES = {
    Word(value=4, text="worse", colour="bad"): ("confirmed", "regression"),
    Word(value=3, text="watch", colour="warning"): ("creep", "suspicion", "late"),
    Word(value=2, text="no change shown", colour="plain"): ("no_change_shown",),
    Word(value=1, text="not worse", colour="good"): ("same", "improvement", "recovered", "faster_baseline", "accepted"),
}
"""What the gate says of a series: the worst of its figures' verdicts."""
_ENDS = {
    Word(value=1, text="done", colour="good"): "done",
    Word(value=2, text="interrupted", colour="warning"): "interrupted",
    Word(value=3, text="timed out", colour="bad"): "timed_out",
    Word(value=4, text="failed", colour="bad"): "failed",
}
"""How the newest run of a series ended."""


def _in_words(name: str, metric: Metric, found: Mapping[Word, str]) -> Column:
    """Return a column with the first of these words of which a series of results has something."""
    values = (promql.times(word.value, promql.largest(it, by=("series",))) for word, it in found.items())
    told = joins.told_of_results(promql.either(*values), by=OF_SERIES, **_CHOSEN)
    return Column(name=name, source=now(metric, told, "count"), words=tuple(found))


_SERIES = Table(
    title="Series: the newest result, and the median of the 14 nights before",
    width=24,
    height=10,
    columns=(
        NAME,
        *_series("Step", results.RUN_STEP_SECONDS, USUAL_STEP_SECONDS, is_higher_better=False),
        Column(
            name="+-",
            source=now(
                results.RUN_STEP_SECONDS,
                joins.interval_share(results.RUN_STEP_SECONDS, by=OF_SERIES, **_CHOSEN),
                "ratio",
            ),
        ),
        *_series("Eff.", results.RUN_SCALING_EFFICIENCY, USUAL_EFFICIENCY, is_higher_better=True),
        _in_words(
            "Newest run",
            SERIES_NEWEST_RUN,
            {
                word: promql.select(SERIES_NEWEST_RUN, **choices.OF_CLUSTER, outcome=outcome)
                for word, outcome in _ENDS.items()
            },
        ),
        _in_words(
            "Gate",
            gate.VERDICT,
            {
                word: promql.select(gate.VERDICT, **OF_SUITE, verdict=promql.one_of(*verdicts))
                for word, verdicts in _GRADES.items()
            },
        ),
        age_column(_CHOSEN, steps=rising(_LIMITS.efficiency.fresh_hours * 3600)),
    ),
    sorted_by=("Step: change",),
    note="A night that did not run is none of the 14, which may be fewer. The change is plain arithmetic, and coloured"
    " from a tenth on; what is a regression, the gate says below. Where the newest run failed, the figures are of the"
    " newest that ended well, whose age is at the end.",
    absent=ABSENT,
)
_FIGURE = tuple(label for label in gate.VERDICT.labels if label != "verdict")


def _of_figure(name: str, metric: Metric, unit: str | None = None, *, is_time: bool = False) -> Column:
    told = joins.judged_changes(metric, by=_FIGURE, **OF_SUITE)
    return Column(name=name, source=now(metric, promql.age(f"({told})") if is_time else told, unit))


_FIGURES = Table(
    title="Figures, as the gate finds them",
    width=24,
    columns=(
        Column(name="Suite", source="suite", width=110),
        Column(name="Case", source="case", width=130),
        Column(name="Ranks", source="ranks", unit="number"),
        Column(name="Figure", source="figure", width=150),
        Column(name="Hardware", source="hardware"),
        Column(name="Verdict", source="verdict", colours=_VERDICTS, width=104),
        _of_figure("Change", gate.VERDICT_CHANGE),
        _of_figure("Low", gate.VERDICT_CHANGE_LOW),
        _of_figure("High", gate.VERDICT_CHANGE_HIGH),
        _of_figure("Changed since", gate.VERDICT_SINCE, "seconds", is_time=True),
        _of_figure("Night", gate.VERDICT_NIGHT, "seconds", is_time=True),
        _of_figure("Of accepted", gate.ACCEPTED_CHANGE),
    ),
    sorted_by=("Verdict",),
    is_falling=False,
    absent=_NOT_JUDGED,
)
_CAUSES = Table(
    title="Likely causes of what is worse",
    width=24,
    height=6,
    columns=(
        Column(name="Case", source="case", width=130),
        Column(name="Figure", source="figure", width=150),
        Column(name="Cause", source="cause"),
        Column(name="Run", source="run", width=220),
        Column(name="Last good run", source="good_run", width=220),
        Column(
            name="Night",
            source=now(
                gate.VERDICT_CAUSE,
                promql.age(
                    promql.largest(
                        promql.select(gate.VERDICT_CAUSE, **OF_SUITE),
                        by=("case", "ranks", "figure", "cause", "run", "good_run"),
                    )
                ),
                "seconds",
            ),
            width=90,
        ),
    ),
    sorted_by=("Night",),
    is_falling=False,
    absent="Nothing is worse, or no night was judged. `observatory diagnose` explains a run.",
)
_FAILURES = Table(
    title="Series whose newest run failed",
    height=6,
    columns=(
        Column(name="Strategy", source="strategy"),
        Column(name="Ranks", source="ranks", unit="number", width=70),
        Column(name="Run", source="run"),
        Column(name="Outcome", source="outcome", colours={"failed": "bad", "timed_out": "bad"}),
        Column(
            name="Ago",
            source=now(
                RUN_LAST_FAILURE,
                promql.age(
                    promql.largest(
                        promql.select(RUN_LAST_FAILURE, **choices.OF_CLUSTER, strategy="$strategy"),
                        by=("strategy", "ranks", "series", "run", "outcome"),
                    )
                ),
                "seconds",
            ),
            width=90,
        ),
    ),
    sorted_by=("Ago",),
    is_falling=False,
    absent="The newest run of each series ended well. Failed cases of suites are told of with their suite.",
)


# Suites.


def _outcome(outcome: str) -> Column:
    cases = promql.select(suites.SUITE_LAST_CASES, **OF_SUITE, outcome=outcome)
    colours = _ANY if outcome in FAILURES else None
    return Column(
        name=outcome.replace("_", " ").capitalize(),
        source=now(suites.SUITE_LAST_CASES, promql.largest(cases, by=("suite", "run"))),
        steps=colours,
        width=90,
    )


_SUITES = Table(
    title="Cases by outcome: the newest run of each suite, and those that go on",
    width=24,
    height=6,
    columns=(
        Column(name="Suite", source="suite"),
        Column(name="Run", source="run"),
        *(_outcome(outcome) for outcome in ("done", "failed", "timed_out", "missing", "skipped", "running")),
        Column(
            name="Last progress",
            source=now(
                suites.SUITE_LAST_PROGRESS,
                promql.age(promql.largest(promql.select(suites.SUITE_LAST_PROGRESS, **OF_SUITE), by=("suite", "run"))),
                "seconds",
            ),
            width=110,
        ),
    ),
    sorted_by=("Last progress",),
    is_falling=False,
    absent=_NO_SUITE,
)
_MISSING = Table(
    title="What the newest night lacks",
    height=6,
    columns=(
        Column(name="Suite", source="suite"),
        Column(name="What", source="kind"),
        Column(name="Cases", source=now(gate.SUITE_MISSING, _MISSING_CASES), steps=rising(1, colour="plain"), width=90),
    ),
    sorted_by=("Cases",),
    note="`observatory check --suite` with its name names the cases.",
    absent=_NOT_JUDGED,
)


def _by_outcome(title: str, metric: Metric, expression: str, words: str) -> TimeSeries:
    return TimeSeries(
        title=title,
        queries=(now(metric, expression, "count", words),),
        worst="highest",
        legend="right",
        stacked=True,
        absent=_NO_SUITE,
    )


_OUTCOMES = Row(
    title="Suites over the nights",
    panels=(
        _by_outcome(
            "Cases of the newest run by outcome",
            suites.SUITE_LAST_CASES,
            promql.above(promql.total(_LAST_CASES, by=("suite", "outcome")), 0),
            "{{suite}}: {{outcome}}",
        ),
        _by_outcome(
            "Runs of suites by outcome, all of the history",
            suites.SUITE_RUNS,
            promql.largest(promql.select(suites.SUITE_RUNS, **OF_SUITE), by=("suite", "outcome")),
            "{{suite}}: {{outcome}}",
        ),
        _by_outcome(
            "Runs of strategies that did not end well, all of the history",
            RUNS,
            promql.largest(
                promql.select(RUNS, **choices.OF_CLUSTER, strategy="$strategy", outcome=promql.none_of("done")),
                by=("strategy", "outcome"),
            ),
            "{{strategy}}: {{outcome}}",
        ),
    ),
)


# The trend of one series.


def _trend(title: str, metric: Metric, worst: Worst, *, absent: str = ABSENT, **labels: str) -> TimeSeries:
    return TimeSeries(
        title=f"{title}, with its interval",
        queries=band(metric, {**OF_ONE_SERIES, **labels}),
        worst=worst,
        banded=True,
        absent=absent,
    )


_NOT_TRACED = "The series that is chosen above has no traced steps."
_TRENDS = (
    _trend("Step of the chosen series", results.RUN_STEP_SECONDS, "highest"),
    _trend(
        "Scaling efficiency of the chosen series",
        results.RUN_SCALING_EFFICIENCY,
        "lowest",
        absent="The series that is chosen above has no baseline.",
    ),
)
_MORE_TRENDS = Row(
    title="More of the chosen series",
    panels=(
        _trend("Tokens per second and device", results.RUN_TOKENS_PER_SECOND_PER_DEVICE, "lowest"),
        _trend("Model FLOPs utilization", results.RUN_MFU, "lowest", absent="No data sheet names its device's peak."),
        _trend(
            "Communication that computation does not hide",
            results.RUN_TRACED_RATIO,
            "highest",
            absent=_NOT_TRACED,
            part="exposed_communication",
        ),
        _trend("Communication that computation hides", results.RUN_OVERLAP_RATIO, "lowest", absent=_NOT_TRACED),
        _trend(
            "Peak memory of a rank, on the GPU",
            results.RUN_PEAK_MEMORY_BYTES,
            "highest",
            absent="The series that is chosen above ran on CPUs, whose memory no allocator keeps an account of.",
            account="allocator",
        ),
        _trend("Loss after the last step", results.RUN_LOSS, "highest"),
    ),
)
_ACCEPTED = Annotation(
    name="Level accepted",
    expression=promql.where(
        marks.stands(
            promql.select(gate.ACCEPTED_CHANGE, **OF_SUITE), by=("suite", "case", "ranks", "series", "figure")
        ),
        promql.select(RESULT_INFO, **OF_ONE_SERIES, strategy="$strategy"),
        on=("series",),
    ),
    text="{{suite}}: {{case}} on {{ranks}} ranks: {{figure}}",
    colour="good",
)


def _changed(label: str) -> Annotation:
    return Annotation(
        name=f"{label.capitalize()} changed",
        expression=marks.changes(label, by=("series", "name"), **OF_ONE_SERIES, strategy="$strategy"),
        text=f"{{{{name}}}}: {label} {{{{{label}}}}}",
        colour="information",
    )


DASHBOARD = Dashboard(
    name="nightly",
    title="The nightly",
    summary="Thirty days of the suites that run each night: what is worse, by how much and since when, what is missing,"
    " and how a series went from night to night.",
    variables=(choices.one_cluster(suites.SUITE_LAST_START), choices.SUITE, choices.STRATEGY, ONE_SERIES),
    panels=(*_STATS, _SERIES, _FIGURES, *_TRENDS, _SUITES, _MISSING, _FAILURES, _CAUSES),
    rows=(_MORE_TRENDS, _OUTCOMES),
    annotations=(
        choices.verdicts_marked(**OF_ONE_SERIES, suite="$suite", strategy="$strategy"),
        _ACCEPTED,
        _changed("commit"),
        _changed("driver"),
        choices.alerts_marked(**OF_SUITE, strategy="$strategy", component=choices.ALERTS_OF_RESULTS),
    ),
    hours=720,
)
