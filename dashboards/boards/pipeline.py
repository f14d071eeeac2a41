"""The dashboard "Where does the pipeline wait?": the bubble and its parts, and the time and memory of stages."""

from __future__ import annotations

from collectors.metrics import results
from collectors.metrics.metric import Metric
from dashboards.boards.choices import runs_marked, verdicts_marked
from dashboards.boards.series import OF_ONE_SERIES, cell, median, one_series, with_interval
from dashboards.model import Column, Dashboard, Query, Row, Stat, Table, TimeSeries

_NOT_TRACED = (
    "The newest result of this series is of no pipeline, or has no traced windows of all its ranks:"
    " `observatory run one_f_one_b --ranks 4` measures one."
)
_MEASURED, _EXPECTED = (results.RUN_BUBBLE_RATIO.alone(account=account) for account in ("measured", "expected"))


def _by_account(metric: Metric) -> tuple[Metric, Metric]:
    return metric.alone(account="measured"), metric.alone(account="expected")


def _stat(title: str, query: Query, note: str) -> Stat:
    return Stat(title=title, queries=(query,), note=note, absent=_NOT_TRACED)


def _part(part: str, title: str, note: str) -> Stat:
    return _stat(title, median(results.RUN_BUBBLE_PART_RATIO, part, part=part), note)


_STATS = (
    _stat("Bubble", median(_MEASURED, "measured"), "Share of their time that ranks compute for no stage."),
    _part("schedule", "By the schedule", "More microbatches or another schedule lower it."),
    _part("imbalance", "By unequal stages", "Layers that are cut elsewhere lower it."),
    _part("transfer", "By transfer", "What the wire between stages costs."),
    _part("message", "By messages", "What messages take beyond the transfer."),
    _part("waiting_for_a_core", "By waiting for a core", "A rank could run, and its host ran something else."),
    _part("uneven", "By uneven actions", "Actions that take longer than the median of their stage."),
    _part("unexplained", "Not explained", "The rest: it and the other parts add up to the bubble."),
)
_FIRST = (
    TimeSeries(
        title="Parts of the bubble, and what is expected",
        queries=(
            median(results.RUN_BUBBLE_PART_RATIO, "{{part}}"),
            median(_EXPECTED, "expected in all", is_reference=True),
        ),
        worst="highest",
        stacked=True,
        legend="right",
        note="The parts lie on each other and add up to the measured bubble; the dashed line is what is expected.",
        absent=_NOT_TRACED,
    ),
    TimeSeries(
        title="Bubble, measured",
        queries=(*with_interval(_MEASURED, "measured", is_band=True), median(_EXPECTED, "expected", is_reference=True)),
        worst="highest",
        banded=True,
        absent=_NOT_TRACED,
    ),
    Table(
        title="Time of a stage for one microbatch",
        columns=(
            Column(name="Stage", source="stage", unit="number", width=80),
            *(
                Column(name=name, source=cell(results.RUN_STAGE_SECONDS, "stage", action=action))
                for name, action in (
                    ("Forward", "forward"),
                    ("Backward", "backward"),
                    ("Of it: input", "input_backward"),
                    ("Of it: weights", "weight_backward"),
                )
            ),
        ),
        sorted_by=("Stage",),
        is_falling=False,
        note="Only a schedule that splits backward has its halves.",
        absent=_NOT_TRACED,
    ),
    Table(
        title="What a stage holds",
        columns=(
            Column(name="Stage", source="stage", unit="number", width=80),
            *(
                Column(name=name, source=cell(metric, "stage"))
                for names, of in (
                    (("Microbatches", "Expected"), results.RUN_LIVE_MICROBATCHES),
                    (("Activations", "Activations expected"), results.RUN_STAGE_ACTIVATION_BYTES),
                )
                for name, metric in zip(names, _by_account(of), strict=True)
            ),
        ),
        sorted_by=("Stage",),
        is_falling=False,
        note="Most microbatches at once, forward begun and backward not ended, and what their forwards leave.",
        absent=_NOT_TRACED,
    ),
)
_OVER_NIGHTS = (
    TimeSeries(
        title="Parts of the bubble with their intervals",
        queries=with_interval(results.RUN_BUBBLE_PART_RATIO, "{{part}}"),
        worst="highest",
        legend="right",
        absent=_NOT_TRACED,
    ),
    TimeSeries(
        title="Time of a stage for one microbatch, with its interval",
        queries=with_interval(results.RUN_STAGE_SECONDS, "stage {{stage}} {{action}}"),
        worst="highest",
        legend="right",
        absent=_NOT_TRACED,
    ),
)
DASHBOARD = Dashboard(
    name="where-does-the-pipeline-wait",
    title="Where does the pipeline wait?",
    summary="The newest result of one series of a pipeline: its bubble as measured and expected, the bubble's parts,"
    " and what stages take and hold.",
    variables=one_series(_MEASURED),
    panels=(*_STATS, *_FIRST),
    rows=(Row(title="Over the nights", panels=_OVER_NIGHTS),),
    annotations=(*runs_marked(**OF_ONE_SERIES), verdicts_marked(**OF_ONE_SERIES)),
    hours=24,
)
