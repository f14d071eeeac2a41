"""The dashboard "Who waits for whom?": the straggler rank, wait and transfer of collectives, and what runs expose."""

from __future__ import annotations

from collectors.metrics import rank, results
from collectors.metrics.metric import Metric
from dashboards import promql
from dashboards.boards.choices import OF_CLUSTER, TO_RUN, runs_marked, verdicts_marked
from dashboards.boards.series import OF_ONE_SERIES, cell, figure, median, one_series, with_interval
from dashboards.model import Column, Dashboard, Query, Row, Stat, Steps, Table, TimeSeries, rising
from dashboards.thresholds import shipped

_LIMITS = shipped().live
_STRAGGLES = rising(_LIMITS.straggler_ratio)
_JOINED = (
    "The newest result of this series has no traced windows of all its ranks that could be joined:"
    " `observatory run ddp --ranks 2` traces some, and a probe or one rank alone has none."
)
_NOT_JOINED = "Its newest result has no traced windows of all ranks."
_NO_STRAGGLER = "No rank stands out in the newest result of this series, or it has no windows of all ranks."
_NO_RUN = "No run of this strategy goes on. `observatory run ddp` starts one; its traced steps come after the measured."
_PAYLOAD_COUNTED, _PAYLOAD_EXPECTED = (
    results.RUN_PAYLOAD_BYTES.alone(account=account) for account in ("counted", "expected")
)
_TRACED, _EXPECTED = (results.RUN_COMMUNICATION_SECONDS.alone(account=account) for account in ("traced", "expected"))


def _stat(title: str, query: Query, *, note: str, steps: Steps | None = None, absent: str = _NOT_JOINED) -> Stat:
    return Stat(title=title, width=8, queries=(query,), note=note, steps=steps, absent=absent)


def _live(metric: Metric, legend: str, *by: str, is_least: bool = False) -> Query:
    """Return the largest value over the ranks of each run of the strategy that goes on, or the least."""
    of_runs = promql.of_chosen_runs(promql.select(metric), **OF_CLUSTER, strategy="$strategy")
    of_one_rank = promql.smallest if is_least else promql.largest
    return Query(
        metric=metric,
        expression=of_one_rank(of_runs, by=("run", "name", *by)),
        legend=legend,
        unit=metric.unit,
    )


_STATS = (
    _stat(
        "Waiting",
        median(results.RUN_WAITING_RATIO, "waiting"),
        note="Of the time in collectives.",
    ),
    _stat(
        "Straggler",
        Query(
            metric=results.RUN_STRAGGLER_RATIO.statistic("median"),
            expression=figure(results.RUN_STRAGGLER_RATIO),
            legend="rank {{rank}}: {{cause}}",
            unit="ratio",
        ),
        note="Share of the traced time for which the rank that stands out holds all others up.",
        steps=_STRAGGLES,
        absent=_NO_STRAGGLER,
    ),
    Stat(
        title="Who, and by what",
        width=8,
        queries=(median(results.RUN_STRAGGLER_RATIO, "rank {{rank}}: {{cause}}"),),
        is_text=True,
        note="The rank that stands out, and what it does while others wait.",
        absent=_NO_STRAGGLER,
    ),
    _stat(
        "Exposed communication",
        median(results.RUN_TRACED_RATIO, "exposed", part="exposed_communication"),
        note="Of a traced step.",
        steps=rising(_LIMITS.exposed_ratio),
    ),
    _stat("Hidden, of all", median(results.RUN_OVERLAP_RATIO, "hidden"), note="Of the time of communication."),
    _stat(
        "Clocks may be off by",
        median(results.RUN_CLOCK_RESIDUAL_SECONDS, "residual"),
        note="What is shorter cannot be told from it.",
    ),
)
_FIRST = (
    TimeSeries(
        title="Wait and transfer of one call, by collective",
        queries=(
            median(results.RUN_COLLECTIVE_WAIT_SECONDS, "{{collective}}: wait"),
            median(results.RUN_COLLECTIVE_TRANSFER_SECONDS, "{{collective}}: transfer"),
        ),
        worst="highest",
        stacked=True,
        legend="right",
        absent=_JOINED,
    ),
    Table(
        title="Ranks that come last and hold others up",
        columns=(
            Column(name="Rank", source="rank", unit="number", width=80),
            Column(name="Comes last", source=cell(results.RUN_LAST_RATIO, "rank")),
            Column(name="Holds up", source=cell(results.RUN_HELD_UP_RATIO, "rank"), steps=_STRAGGLES),
        ),
        sorted_by=("Holds up",),
        note="Of a run of many ranks the worst alone.",
        absent=_JOINED,
    ),
    TimeSeries(
        title="Exposed communication of runs that go on: the rank with the most",
        queries=(_live(rank.EXPOSED_COMMUNICATION_RATIO, "{{name}} ({{run}})"),),
        worst="highest",
        steps=rising(_LIMITS.exposed_ratio),
        links=(TO_RUN,),
        legend="right",
        absent=_NO_RUN,
    ),
    TimeSeries(
        title="Hidden communication of runs that go on: the rank with the least",
        queries=(_live(rank.OVERLAP_RATIO, "{{name}} ({{run}})", is_least=True),),
        worst="lowest",
        links=(TO_RUN,),
        legend="right",
        absent=_NO_RUN,
    ),
)
_BY_COLLECTIVE = (
    Table(
        title="Collectives of a traced step",
        columns=(
            Column(name="Collective", source="collective"),
            Column(name="Wait", source=cell(results.RUN_COLLECTIVE_WAIT_SECONDS, "collective")),
            Column(name="Transfer", source=cell(results.RUN_COLLECTIVE_TRANSFER_SECONDS, "collective")),
            Column(name="Bus bandwidth", source=cell(results.RUN_TRACED_BUS_BANDWIDTH, "collective")),
            Column(name="Hidden", source=cell(results.RUN_COLLECTIVE_OVERLAP_RATIO, "collective")),
        ),
        sorted_by=("Wait",),
        note="Bus bandwidth is without the wait. Calls of all sizes count as one here; by size they are on `What can"
        " the machine do at most?`, as probes call them.",
        absent=_JOINED,
    ),
    Table(
        title="Bytes of a step, by collective and axis of the mesh",
        columns=(
            Column(name="Collective", source="collective"),
            Column(name="Axis", source="axis"),
            Column(name="Counted", source=cell(_PAYLOAD_COUNTED, "collective", "axis")),
            Column(name="Expected", source=cell(_PAYLOAD_EXPECTED, "collective", "axis")),
        ),
        sorted_by=("Counted",),
        absent=_JOINED,
    ),
    TimeSeries(
        title="Communication of a step, traced and expected",
        queries=(
            *with_interval(_TRACED, "traced", is_band=True),
            median(_EXPECTED, "expected", is_reference=True),
        ),
        worst="highest",
        banded=True,
        legend="right",
        absent=_JOINED,
    ),
    TimeSeries(
        title="Bus bandwidth without the wait, by collective",
        queries=with_interval(results.RUN_TRACED_BUS_BANDWIDTH, "{{collective}}"),
        worst="lowest",
        legend="right",
        absent=_JOINED,
    ),
)
_OVER_NIGHTS = (
    TimeSeries(
        title="Waiting, of the time in collectives",
        queries=with_interval(results.RUN_WAITING_RATIO, "waiting", is_band=True),
        worst="highest",
        banded=True,
        absent=_JOINED,
    ),
    TimeSeries(
        title="How far the ranks' clocks may be off",
        queries=with_interval(results.RUN_CLOCK_RESIDUAL_SECONDS, "residual", is_band=True),
        worst="highest",
        banded=True,
        absent=_JOINED,
    ),
    TimeSeries(
        title="The rank that stands out, and by what",
        queries=with_interval(results.RUN_STRAGGLER_RATIO, "rank {{rank}}: {{cause}}"),
        worst="highest",
        steps=_STRAGGLES,
        absent=_NO_STRAGGLER,
    ),
    TimeSeries(
        title="Time that others could begin sooner without a rank",
        queries=with_interval(results.RUN_HELD_UP_RATIO, "rank {{rank}}"),
        worst="highest",
        legend="right",
        absent=_JOINED,
    ),
    TimeSeries(
        title="Collectives to which a rank comes last",
        queries=with_interval(results.RUN_LAST_RATIO, "rank {{rank}}"),
        worst="highest",
        legend="right",
        absent=_JOINED,
    ),
)
_LIVE = (
    TimeSeries(
        title="Time of collectives in a traced step of runs that go on: the rank with the most",
        queries=(_live(rank.COLLECTIVE_SECONDS, "{{collective}} of {{name}} ({{run}})", "collective"),),
        worst="highest",
        legend="right",
        absent=_NO_RUN,
    ),
    TimeSeries(
        title="Communication in a traced step of runs that go on: the rank with the most",
        queries=(_live(rank.COMMUNICATION_SECONDS, "{{name}} ({{run}})"),),
        worst="highest",
        legend="right",
        absent=_NO_RUN,
    ),
)

DASHBOARD = Dashboard(
    name="who-waits-for-whom",
    title="Who waits for whom?",
    summary="The newest result of one series: which rank holds the others up, what collectives take beside the wait,"
    " and how far its clocks are known; and what runs of its strategy that go on expose.",
    variables=one_series(results.RUN_WAITING_RATIO, has_live=True),
    panels=(*_STATS, *_FIRST),
    rows=(
        Row(title="By collective", panels=_BY_COLLECTIVE),
        Row(title="Over the nights", panels=_OVER_NIGHTS),
        Row(title="Runs that go on", panels=_LIVE),
    ),
    annotations=(*runs_marked(**OF_ONE_SERIES), verdicts_marked(**OF_ONE_SERIES)),
    hours=24,
)
