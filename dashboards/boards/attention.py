"""The dashboard "What needs me now?": alerts, the runs that go on, and what stands out of them and of the GPUs."""

from __future__ import annotations

from collectors.metrics import gate, gpu, rank, results, suites
from collectors.metrics.agent import RESULT_INFO, RUN_LAST_PROGRESS
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards import choices
from dashboards.model import (
    Column,
    Dashboard,
    Query,
    Row,
    Severity,
    Stat,
    Step,
    Steps,
    Table,
    TimeSeries,
    Variable,
    falling,
    rising,
)
from dashboards.queries import joins, marks
from dashboards.queries.fleets import standing_out
from dashboards.rules import ACCEPTED
from dashboards.thresholds import shipped

_LIMITS = shipped()
_ACCEPTED = min(entry.ratio for entry in _LIMITS.accepted_efficiency)
_OF_GPU = (*promql.PLACE, "gpu")
_OF_RUN = ("run", "name", "strategy", "ranks")
_OF_RESULT = ("cluster", "series")
"""What a run has in common with its result: two clusters may have one each of the same series."""
_NO_RUN = "No run goes on. `observatory run ddp` starts one; results are on the dashboard `The nightly`."
_NO_GPU = "No GPU is watched. `observatory serve` on a node with an NVIDIA driver shows its GPUs."
_NO_RULES = "Prometheus does not read our rules: dashboards/rendered/rules.yaml."


def _now(expression: str, unit: str, metric: Metric | None = None, legend: str = "") -> Query:
    return Query(metric=metric, expression=expression, legend=legend, unit=unit)


def _live(metric: Metric) -> str:
    return promql.of_chosen_runs(promql.select(metric), **choices.OF_RUNS)


def _of_runs(metric: Metric, expression: str, unit: str | None = None) -> Query:
    """Return a query with one series for each run."""
    return _now(expression, unit or metric.unit, metric, "{{name}} ({{run}})")


# What is chosen. Strategy and series of a figure are told by the info of its result.

_OF_ALERTS = choices.of_alerts(**choices.OF_CLUSTER, suite="$suite", strategy="$strategy", run="$run")
_OF_SUITE = {**choices.OF_CLUSTER, "suite": "$suite"}
_OF_SERIES = {**choices.OF_CLUSTER, "strategy": "$strategy", "name": "$series"}
_OTHER_SERIES = promql.unless(
    promql.select(RESULT_INFO, **choices.OF_CLUSTER), promql.select(RESULT_INFO, **_OF_SERIES), on=_OF_RESULT
)


# Numbers of now.

_GPUS = promql.select(gpu.GPU_STATE, **choices.OF_CLUSTER)
_ANSWERING = promql.divide(
    promql.number_of(promql.select(gpu.GPU_STATE, **choices.OF_CLUSTER, state="answering")), promql.number_of(_GPUS)
)
_HELD_RATIO = promql.largest(
    promql.recent_rate(gpu.GPU_CLOCK_HELD_SECONDS, **choices.OF_CLUSTER, reason=promql.none_of("idle")), by=_OF_GPU
)
_HELD = promql.how_many(promql.above(_HELD_RATIO, _LIMITS.gpus.braked_ratio), of=_HELD_RATIO)
_STEPS = promql.middle(_live(rank.STEP_SECONDS), by=(*_OF_RUN, *_OF_RESULT))
_RESULT = promql.largest(
    promql.select(results.RUN_STEP_SECONDS.statistic("median"), **choices.OF_CLUSTER), by=_OF_RESULT
)
_SLOWER = promql.less_one(promql.divide(_STEPS, _RESULT, on=_OF_RESULT))
_EFFICIENCY = results.RUN_SCALING_EFFICIENCY.statistic("median")
_TOKENS = promql.total(_live(rank.TOKENS_PER_SECOND), by=_OF_RUN)
_MFU = promql.mean(_live(rank.MFU), by=_OF_RUN)
_SLOWER_STEPS = rising(1 / _LIMITS.live.speed_ratio - 1)
_EFFICIENCY_STEPS = falling(_ACCEPTED, _ACCEPTED * (1 - _LIMITS.efficiency.critical_drop_ratio))


def _number_firing(severity: Severity) -> str:
    """Return how many alerts fire; 0 only where Prometheus reads our rules, of which it records something always."""
    return promql.how_many(promql.firing(severity, **_OF_ALERTS), of=promql.remembered(ACCEPTED))


_STATS = (
    Stat(
        title="Alerts: critical",
        queries=(_now(_number_firing("critical"), "count"),),
        steps=Steps(below="good", steps=(Step(value=1, colour="bad"),)),
        note="Alerts that somebody must act on now; each is a row of the table below.",
        absent=_NO_RULES,
    ),
    Stat(
        title="Alerts: warnings",
        queries=(_now(_number_firing("warning"), "count"),),
        steps=rising(1),
        note="Alerts that somebody should look at on the next working day.",
        absent=_NO_RULES,
    ),
    Stat(
        title="GPUs answering",
        queries=(_now(_ANSWERING, "ratio", gpu.GPU_STATE),),
        steps=Steps(below="bad", steps=(Step(value=1, colour="good"),)),
        absent=_NO_GPU,
    ),
    Stat(
        title="GPUs held back",
        queries=(_now(_HELD, "count", gpu.GPU_CLOCK_HELD_SECONDS),),
        steps=rising(1),
        note=f"GPUs whose clocks are held back for more than {_LIMITS.gpus.braked_ratio:.0%} of the time.",
        absent=_NO_GPU,
    ),
    Stat(
        title="Tokens per second",
        note="Of all runs that go on.",
        queries=(_now(promql.total(_TOKENS, by=()), "per_second", rank.TOKENS_PER_SECOND),),
        absent=_NO_RUN,
    ),
    Stat(
        title="MFU, lowest",
        note="Of the run with the lowest; the mean of its ranks.",
        queries=(_now(promql.smallest(_MFU, by=()), "ratio", rank.MFU),),
        absent="No run goes on, or no data sheet names the peak of its devices (a CPU has none).",
    ),
    Stat(
        title="Step against result",
        queries=(_now(promql.largest(_SLOWER, by=()), "ratio", rank.STEP_SECONDS),),
        steps=_SLOWER_STEPS,
        note="How much longer the median rank's step takes than the newest result of its series, of the slowest run.",
        absent="No run goes on whose series has a result. `observatory show` lists the results.",
    ),
    Stat(
        title="Efficiency, lowest",
        note="The lowest scaling efficiency of all newest results.",
        queries=(
            _now(
                promql.smallest(
                    promql.where(
                        promql.select(_EFFICIENCY, **choices.OF_CLUSTER),
                        promql.select(RESULT_INFO, **_OF_SERIES, suite="$suite"),
                        on=_OF_RESULT,
                    ),
                    by=(),
                ),
                "ratio",
                _EFFICIENCY,
            ),
        ),
        steps=_EFFICIENCY_STEPS,
        absent="No result has a baseline. `observatory run ddp --with-baseline weak` measures one.",
    ),
)


# Alerts and runs.

_WHAT = {
    **dict.fromkeys(("suite", "case", "strategy"), ""),
    "ranks": "on",
    "rank": "rank",
    **dict.fromkeys(("figure", "scaling", "hardware", "device"), ""),
    "port": "port",
    "xid": "XID",
    **dict.fromkeys(("folder", "collector", "kind", "outcome"), ""),
}
"""What an alert is of, beside its node, GPU and run: its labels, and the words before them."""
_ALERTS = Table(
    title="Alerts that fire",
    width=24,
    columns=(
        Column(name="Alert", source="alertname", width=190),
        Column(name="Severity", source="severity", width=104, colours={"critical": "bad", "warning": "warning"}),
        Column(name="Node", source="instance", width=160, link=choices.TO_HOST),
        Column(name="GPU", source="gpu", width=50, link=choices.TO_GPU),
        Column(name="Run", source="run", width=220, link=choices.TO_RUN),
        Column(name="What", source="what"),
        Column(name="For", source=_now(marks.with_what(joins.firing_for(**_OF_ALERTS), _WHAT), "seconds")),
    ),
    sorted_by=("Severity",),
    is_falling=False,
    absent=f"No alert fires, or {_NO_RULES}",
)
_AGE = promql.age(
    promql.largest(promql.of_chosen_runs(promql.select(RUN_LAST_PROGRESS), **choices.OF_RUNS), by=_OF_RUN)
)
_RUNS = Table(
    title="Runs that go on",
    width=24,
    height=6,
    columns=(
        Column(name="Case", source="name"),
        Column(name="Run", source="run", link=choices.TO_RUN),
        Column(name="Ranks", source="ranks", unit="number", width=60),
        Column(name="Step", source=_of_runs(rank.STEP_SECONDS, promql.middle(_live(rank.STEP_SECONDS), by=_OF_RUN))),
        Column(
            name="Against result",
            source=_of_runs(rank.STEP_SECONDS, promql.largest(_SLOWER, by=_OF_RUN), "ratio"),
            steps=_SLOWER_STEPS,
        ),
        Column(name="Tokens/s", source=_of_runs(rank.TOKENS_PER_SECOND, _TOKENS)),
        Column(name="MFU", source=_of_runs(rank.MFU, _MFU)),
        Column(
            name="Last step ended",
            source=_of_runs(RUN_LAST_PROGRESS, _AGE, "seconds"),
            steps=rising(60, _LIMITS.live.still_minutes * 60),
        ),
    ),
    sorted_by=("Against result",),
    absent=_NO_RUN,
)


# What stands out.


def _of_ranks(words: str, expression: str) -> Query:
    return _now(expression, "seconds", rank.STEP_SECONDS, f"{{{{name}}}} ({{{{run}}}}): {words}")


_PARTS = (
    ("computes", rank.COMPUTE_SECONDS),
    ("communicates, nothing computes", rank.EXPOSED_COMMUNICATION_SECONDS),
    ("copies, nothing else runs", rank.EXPOSED_COPY_SECONDS),
    ("nothing runs", rank.IDLE_SECONDS),
)
_WHOLE = promql.mean(_live(rank.TRACED_STEP_SECONDS), by=())
_STANDING_OUT = (
    TimeSeries(
        title="Step: slowest, median and fastest rank of each run",
        queries=(
            _of_ranks("slowest", promql.largest(_live(rank.STEP_SECONDS), by=_OF_RUN)),
            _of_ranks("median", promql.middle(_live(rank.STEP_SECONDS), by=_OF_RUN)),
            _of_ranks("fastest", promql.smallest(_live(rank.STEP_SECONDS), by=_OF_RUN)),
        ),
        worst="highest",
        links=(choices.TO_RUN,),
        absent=_NO_RUN,
    ),
    TimeSeries(
        title="Where a traced step goes, mean of all ranks",
        queries=tuple(
            _now(promql.divide(promql.mean(_live(metric), by=()), _WHOLE), "ratio", metric, words)
            for words, metric in _PARTS
        ),
        worst="highest",
        stacked=True,
        legend="right",
        absent="No run that goes on has traced a step yet; `--trace-steps` says how many it traces.",
    ),
    TimeSeries(
        title="Degrees below slowing down: the 5 hottest GPUs",
        queries=(
            _now(
                standing_out(
                    5,
                    promql.with_work(promql.select(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS, **choices.OF_CLUSTER)),
                    worst="lowest",
                ),
                "celsius",
                gpu.GPU_TEMPERATURE_MARGIN_CELSIUS,
                "{{instance}} gpu {{gpu}} {{work}}",
            ),
        ),
        worst="lowest",
        goes_below_zero=True,
        legend="right",
        steps=falling(10, 0, colour="plain"),
        links=(choices.TO_GPU,),
        absent=_NO_GPU,
    ),
    TimeSeries(
        title="Memory in use: the 5 fullest GPUs",
        queries=(
            _now(
                standing_out(5, promql.with_work(joins.memory_in_use(**choices.OF_CLUSTER))),
                "ratio",
                gpu.GPU_MEMORY_USED_BYTES,
                "{{instance}} gpu {{gpu}} {{work}}",
            ),
        ),
        worst="highest",
        legend="right",
        links=(choices.TO_GPU,),
        absent=_NO_GPU,
    ),
)


# Suites, and what the gate says.


def _suite(metric: Metric, expression: str, *, by: tuple[str, ...]) -> Query:
    """Return the query of what is told of runs of suites; several exporters of one history are one series."""
    words = " ".join(("{{suite}}", *(f"{{{{{label}}}}}" for label in by), "({{run}})"))
    return _now(promql.largest(expression, by=("suite", "run", *by)), metric.unit, metric, words)


_FIGURE = ("cluster", *(label for label in gate.VERDICT.labels if label != "verdict"))
_VERDICTS = Table(
    title="Figures that the gate does not find the same",
    width=24,
    height=6,
    columns=(
        Column(name="Suite", source="suite"),
        Column(name="Case", source="case"),
        Column(name="Ranks", source="ranks", unit="number", width=60),
        Column(name="Figure", source="figure"),
        Column(name="Hardware", source="hardware"),
        Column(name="Cluster", source="cluster"),
        Column(
            name="Verdict",
            source="verdict",
            colours={"confirmed": "bad", "regression": "bad", "creep": "warning", "suspicion": "warning"},
        ),
        Column(
            name="Change",
            source=_now(
                # The gate also judges series that have no result here, as ad hoc runs of a suite.
                promql.unless(
                    joins.judged_changes(gate.VERDICT_CHANGE, by=_FIGURE, but=choices.UNCHANGED, **_OF_SUITE),
                    _OTHER_SERIES,
                    on=_OF_RESULT,
                ),
                "ratio",
                gate.VERDICT_CHANGE,
            ),
        ),
    ),
    sorted_by=("Verdict",),
    is_falling=False,
    absent="Every figure is as it was, or no suite was judged: `observatory check`.",
)
_CASES_AGE = promql.product(
    promql.largest(promql.select(suites.SUITE_CASE_INFO, **_OF_SUITE), by=("suite", "run", "case")),
    f"({promql.age(promql.largest(promql.select(suites.SUITE_LAST_PROGRESS, **_OF_SUITE), by=('suite', 'run')))})",
    on=("suite", "run"),
)
_SUITES = Row(
    title="Suites and the gate",
    panels=(
        _VERDICTS,
        TimeSeries(
            title="Cases of the newest run of each suite, and of those that go on",
            width=24,
            queries=(
                _suite(
                    suites.SUITE_LAST_CASES,
                    promql.above(promql.select(suites.SUITE_LAST_CASES, **_OF_SUITE), 0),
                    by=("outcome",),
                ),
            ),
            worst="highest",
            legend="right",
            absent="No suite has run. `observatory suite run smoke` runs one.",
        ),
        Table(
            title="Cases that run now",
            width=24,
            height=6,
            columns=(
                Column(name="Suite", source="suite"),
                Column(name="Case", source="case"),
                Column(name="Run", source="run", link=choices.TO_RUN),
                Column(name="Last step or case ended", source=_now(_CASES_AGE, "seconds", suites.SUITE_CASE_INFO)),
            ),
            absent="No case of a suite runs now.",
        ),
    ),
)

DASHBOARD = Dashboard(
    name="what-needs-me-now",
    title="What needs me now?",
    summary="Alerts that fire, the runs that go on beside their newest results, and what stands out; all else is a link"
    " away.",
    variables=(
        choices.CLUSTER,
        choices.LIVE_SUITE,
        choices.LIVE_STRATEGY,
        choices.LIVE_SERIES,
        Variable(name="run", label="Run", query=choices.ONE_RUN.query),
    ),
    panels=(*_STATS, _ALERTS, _RUNS, *_STANDING_OUT),
    rows=(_SUITES,),
    annotations=(
        *choices.runs_marked(**choices.OF_RUNS),
        choices.verdicts_marked(**_OF_SERIES, suite="$suite"),
        choices.alerts_marked(**choices.OF_CLUSTER, suite="$suite", strategy="$strategy", run="$run"),
    ),
)
