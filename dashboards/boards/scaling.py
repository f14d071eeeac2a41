"""The dashboard "Does it scale?": efficiency by world size and over the nights, and what is lost to what."""

from __future__ import annotations

from dataclasses import replace

from collectors.metrics import gate, results
from collectors.metrics.agent import RUN_LAST_COMPLETION, USUAL_EFFICIENCY
from collectors.metrics.metric import Metric, Statistic
from dashboards import promql
from dashboards.boards import choices
from dashboards.boards.results import (
    NAME,
    OF_ONE_SERIES,
    OF_SERIES,
    OF_SHAPE,
    ONE_SERIES,
    PRECISION,
    RANKS,
    SHAPE,
    STRATEGY_OF_SHAPE,
    band,
    column,
    median,
    now,
    with_interval,
)
from dashboards.model import Column, Dashboard, Query, Row, Stat, Table, TimeSeries, Variable, falling, rising
from dashboards.promql import Match
from dashboards.queries import joins
from dashboards.rules import ACCEPTED, ACCEPTED_FOR, ACCEPTED_OF_RANKS
from dashboards.thresholds import shipped

_LIMITS = shipped()
_EFFICIENCY = results.RUN_SCALING_EFFICIENCY
_EXPECTED = results.RUN_EXPECTED_EFFICIENCY
_LEVEL = min(entry.ratio for entry in _LIMITS.accepted_efficiency)
_STEPS = falling(_LEVEL, _LEVEL * (1 - _LIMITS.efficiency.critical_drop_ratio))
_BY = ("series",)
_SCALING = Variable(
    name="scaling",
    label="Scaling",
    query=promql.choices(_EFFICIENCY.statistic("median"), "scaling", **choices.OF_CLUSTER),
)
_ONE_SERIES = replace(
    ONE_SERIES,
    query=joins.series_by(
        promql.times(-1, promql.smallest(promql.select(_EFFICIENCY.statistic("median"), **choices.OF_CLUSTER), by=_BY)),
        **OF_SHAPE,
        ranks=promql.none_of("1"),
    ),
)
"""The series that scales worst stands first."""
_CHOSEN = {**OF_SHAPE, "scaling": "$scaling"}
_KINDS = _EFFICIENCY.labels
_ABSENT = (
    "No result of what is chosen above has a baseline. `observatory run ddp --with-baseline weak` measures one, a suite"
    " with several world sizes measures a curve."
)
_ALL = median(_EFFICIENCY, _CHOSEN, *_KINDS, "device")


# The level that thresholds.toml accepts, of these ranks where it says one, and beside it that of the gate.

_ACCEPTED_OF_SERIES = promql.largest(
    promql.either(
        joins.level_of(_ALL, promql.remembered(ACCEPTED_OF_RANKS), on=(*ACCEPTED_FOR, "ranks")),
        joins.level_of(_ALL, promql.remembered(ACCEPTED), on=ACCEPTED_FOR),
    ),
    by=(*OF_SERIES, *_KINDS),
)
_ACCEPTED_BY_GATE = promql.largest(
    joins.level_of(
        _ALL,
        promql.largest(
            promql.select(
                gate.ACCEPTED_EFFICIENCY,
                **choices.OF_CLUSTER,
                figure=Match(operator="=~", pattern="efficiency $scaling"),
            ),
            by=("series",),
        ),
        on=("series",),
    ),
    by=(*OF_SERIES, *_KINDS),
)


def _kind(name: str, expression: str, unit: str | None = None) -> Column:
    return Column(name=name, source=now(_EFFICIENCY, expression, unit))


def _bound(name: str, which: Statistic) -> Column:
    return _kind(name, joins.results(_EFFICIENCY, which, by=(*OF_SERIES, *_KINDS), **_CHOSEN))


_AGE = promql.age(joins.info_of_results(RUN_LAST_COMPLETION, by=("series",), **OF_SHAPE))
_MEDIAN = median(_EFFICIENCY, _CHOSEN, *_KINDS)
_USUAL = joins.info_of_results(USUAL_EFFICIENCY, by=(*OF_SERIES, *_KINDS), **_CHOSEN)
_BY_WORLD = Table(
    title="Efficiency by world size, beside what is accepted and what is usual",
    width=24,
    height=10,
    columns=(
        NAME,
        Column(name="Strategy", source="strategy", width=110),
        RANKS,
        Column(name="Scaling", source="scaling", width=96),
        Column(name="Baseline", source="baseline", width=104),
        Column(name="Efficiency", source=now(_EFFICIENCY, _MEDIAN), steps=_STEPS),
        _bound("Low", "low"),
        _bound("High", "high"),
        Column(name="Predicted", source=now(_EXPECTED, median(_EXPECTED, _CHOSEN, *_KINDS))),
        _kind("Accepted", _ACCEPTED_OF_SERIES),
        _kind("Gate's", _ACCEPTED_BY_GATE),
        Column(name="Usual", source=now(USUAL_EFFICIENCY, _USUAL)),
        _kind("Age", joins.level_of(_MEDIAN, _AGE, on=("series",)), "seconds"),
    ),
    sorted_by=("Strategy", "Scaling", "Baseline", "Ranks"),
    is_falling=False,
    note="Predicted: one rank's step and the transfers that it cannot hide on the measured link; there where a baseline"
    " of one rank and a sweep of collectives on as many ranks were measured, and not for pipelines. Accepted: the level"
    " of thresholds.toml, where Prometheus reads our rules. Gate's: the level that `observatory check --accept` set."
    " Usual: the median of 14 nights.",
    absent=_ABSENT,
)


# What the loss is made of.


def _of_series(name: str, metric: Metric, **labels: str) -> Column:
    return column(name, metric, {**OF_SHAPE, **labels})


_PARTS = {
    "Exposed": "exposed_communication",
    "Copies": "exposed_copy",
    "Idle": "idle",
}
_LOSS = Table(
    title="What a step loses",
    width=24,
    columns=(
        NAME,
        RANKS,
        Column(
            name="Lost",
            source=now(_EFFICIENCY, promql.largest(joins.rest_of_one(_MEDIAN), by=OF_SERIES)),
            steps=rising(1 - _LEVEL, 1 - _LEVEL * (1 - _LIMITS.efficiency.critical_drop_ratio), colour="plain"),
        ),
        *(_of_series(words, results.RUN_TRACED_RATIO, part=part) for words, part in _PARTS.items()),
        _of_series("Bubble", results.RUN_BUBBLE_RATIO, account="measured"),
        _of_series("Bubble predicted", results.RUN_BUBBLE_RATIO, account="expected"),
        _of_series("Waits", results.RUN_WAITING_RATIO),
        _of_series("Communication", results.RUN_COMMUNICATION_SECONDS, account="traced"),
        _of_series("Comm. predicted", results.RUN_COMMUNICATION_SECONDS, account="expected"),
    ),
    sorted_by=("Lost",),
    note="Waits: for the last rank, of the time in collectives. The bubble is of the time of a pipeline's ranks, other"
    " shares are of a traced step, which is longer: they do not add up to what is lost.",
    absent="No result of what is chosen above has traced steps or a bubble.",
)


def _part(words: str, metric: Metric, **labels: str) -> Query:
    return now(metric, joins.results(metric, "median", by=("series",), **OF_ONE_SERIES, **labels), legend=words)


_ONE_LOSS = TimeSeries(
    title="What a traced step of the chosen series loses",
    queries=(*(_part(words, results.RUN_TRACED_RATIO, part=part) for words, part in _PARTS.items()),),
    worst="highest",
    stacked=True,
    legend="right",
    absent="The series that is chosen above has no traced steps.",
)
_BUBBLE = TimeSeries(
    title="Parts of the bubble of the chosen series",
    queries=(
        now(
            results.RUN_BUBBLE_PART_RATIO,
            joins.results(results.RUN_BUBBLE_PART_RATIO, "median", by=("series", "part"), **OF_ONE_SERIES),
            legend="{{part}}",
        ),
    ),
    worst="highest",
    goes_below_zero=True,
    stacked=True,
    legend="right",
    absent="The series that is chosen above is of no pipeline, which alone has a bubble.",
)


# Over the nights.

_STATS = (
    Stat(
        title="Worst efficiency",
        queries=(now(_EFFICIENCY, promql.smallest(_MEDIAN, by=())),),
        steps=_STEPS,
        width=8,
        absent=_ABSENT,
    ),
    Stat(
        title="Which",
        queries=(now(_EFFICIENCY, joins.least_now(1, _MEDIAN)),),
        is_text=True,
        width=16,
        absent=_ABSENT,
    ),
    Stat(
        title="Results with a baseline",
        queries=(now(_EFFICIENCY, promql.number_of(_MEDIAN), "count"),),
        width=8,
        absent=_ABSENT,
    ),
    Stat(
        title="Below the accepted level",
        queries=(
            now(
                _EFFICIENCY,
                promql.either(
                    promql.number_of(
                        promql.below(promql.largest(_MEDIAN, by=(*OF_SERIES, *_KINDS)), _ACCEPTED_OF_SERIES)
                    ),
                    promql.times(0, promql.number_of(_ACCEPTED_OF_SERIES)),
                ),
                "count",
            ),
        ),
        steps=rising(1),
        width=8,
        note="Series whose median lies below the level of thresholds.toml; the alert waits for the whole interval.",
        absent="No level is known: Prometheus does not read our rules, or no result has a baseline.",
    ),
    Stat(
        title="Exposed comm., worst",
        queries=(
            now(
                results.RUN_TRACED_RATIO,
                promql.largest(median(results.RUN_TRACED_RATIO, {**OF_SHAPE, "part": "exposed_communication"}), by=()),
            ),
        ),
        steps=rising(_LIMITS.live.exposed_ratio),
        width=8,
        absent="No result of what is chosen above has traced steps.",
    ),
)
_NIGHTS = (
    TimeSeries(
        title="Efficiency over the nights",
        queries=with_interval(_EFFICIENCY, _CHOSEN, *_KINDS),
        worst="lowest",
        legend="right",
        links=(choices.TO_SERIES,),
        absent=_ABSENT,
    ),
    TimeSeries(
        title="Efficiency of the chosen series with its interval, and predicted",
        queries=(
            *band(_EFFICIENCY, {**OF_ONE_SERIES, "scaling": "$scaling"}),
            now(
                _EXPECTED,
                joins.results(_EXPECTED, "median", by=("series",), **OF_ONE_SERIES, scaling="$scaling"),
                legend="predicted",
            ),
        ),
        worst="lowest",
        banded=True,
        absent="The series that is chosen above has no baseline.",
    ),
)

DASHBOARD = Dashboard(
    name="does-it-scale",
    title="Does it scale?",
    summary="Scaling efficiency with its interval by world size, beside the accepted level and what is usual, over the"
    " nights, and what is lost to what.",
    variables=(choices.CLUSTER_OF_RESULTS, choices.SUITE, SHAPE, PRECISION, STRATEGY_OF_SHAPE, _SCALING, _ONE_SERIES),
    panels=(*_STATS, _BY_WORLD, *_NIGHTS, _LOSS),
    rows=(Row(title="What the chosen series loses, night by night", panels=(_ONE_LOSS, _BUBBLE)),),
    annotations=(
        choices.verdicts_marked(**OF_SHAPE),
        choices.alerts_marked(
            **choices.OF_CLUSTER, suite="$suite", strategy="$strategy", component=choices.ALERTS_OF_RESULTS
        ),
    ),
    hours=720,
)
