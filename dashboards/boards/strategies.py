"""The dashboard "Which strategy pays?": strategies side by side on one shape, by the newest result of each series."""

from __future__ import annotations

from collectors.metrics import results
from collectors.metrics.agent import RESULT_INFO
from collectors.metrics.metric import STATISTICS, Metric
from dashboards import promql
from dashboards.boards import choices
from dashboards.boards.results import (
    ABSENT,
    NAME,
    OF_SERIES,
    OF_SHAPE,
    PRECISION,
    RANKS,
    SHAPE,
    STRATEGY_OF_SHAPE,
    age_column,
    column,
    interval_column,
    median,
    now,
    with_interval,
)
from dashboards.model import Column, Dashboard, Row, Stat, Table, TimeSeries, Variable, Worst, falling
from dashboards.queries import joins
from dashboards.thresholds import shipped

_LIMITS = shipped()
_CHOSEN = {**OF_SHAPE, "ranks": "$ranks"}
_RANKS = Variable(
    name="ranks",
    label="Ranks",
    query=promql.choices(RESULT_INFO, "ranks", **OF_SHAPE),
    is_single=True,
    begins_with_last=True,
)
"""One world size: on one rank nothing communicates, and the maximum over all would always be there."""
_EFFICIENT = falling(min(entry.ratio for entry in _LIMITS.accepted_efficiency), colour="plain")
_NOT_TRACED = (
    "No result of what is chosen above has traced steps; `observatory run ddp` traces some unless `--trace-steps 0`."
)
_TOKENS = results.RUN_TOKENS_PER_SECOND_PER_DEVICE


def _best(
    title: str, its: str, metric: Metric, *, is_most: bool = True, absent: str = ABSENT, **labels: str
) -> tuple[Stat, Stat]:
    """Return which series is best in a figure, if its interval lies apart from all others', and the best figure."""
    chosen = {**_CHOSEN, **labels}
    median, low, high = (joins.results(metric, which, by=OF_SERIES, **chosen) for which in STATISTICS)
    most = promql.largest if is_most else promql.smallest
    return (
        Stat(
            title=title,
            queries=(now(metric, joins.winner(median, low, high, is_most=is_most)),),
            is_text=True,
            width=5,
            note="Of the chosen world size. One is named only where its interval lies apart from those of all others.",
            absent=absent,
        ),
        Stat(title=its, queries=(now(metric, most(median, by=())),), width=3, absent=absent),
    )


_STATS = (
    *_best("Most tokens per second", "Most tokens", _TOKENS),
    *_best(
        "Scales best (weak)",
        "Best of all",
        results.RUN_SCALING_EFFICIENCY,
        scaling="weak",
        absent="No result of what is chosen above has a baseline: `observatory run ddp --with-baseline weak`.",
    ),
    *_best(
        "Least memory of a rank",
        "Least",
        results.RUN_MEMORY_ACCOUNT_BYTES,
        is_most=False,
        part="total",
        account="measured",
    ),
)
_AGAINST_BEST = Column(
    name="Of best",
    source=now(
        _TOKENS,
        promql.divide(median(_TOKENS, _CHOSEN), joins.single(promql.largest(median(_TOKENS, _CHOSEN), by=()))),
        "ratio",
    ),
    width=90,
)
_FIGURES = Table(
    title="Side by side: speed, and what it costs",
    width=24,
    height=10,
    columns=(
        NAME,
        RANKS,
        column("Tokens/s", _TOKENS, _CHOSEN),
        interval_column("+-", _TOKENS, _CHOSEN),
        _AGAINST_BEST,
        column("Step", results.RUN_STEP_SECONDS, _CHOSEN),
        column("MFU", results.RUN_MFU, _CHOSEN),
        column("MFU, measured", results.RUN_MEASURED_MFU, _CHOSEN),
        column("Weak eff.", results.RUN_SCALING_EFFICIENCY, {**_CHOSEN, "scaling": "weak"}, steps=_EFFICIENT),
        column("J/token", results.RUN_TOKEN_ENERGY_JOULES, _CHOSEN),
        column("W/GPU", results.RUN_GPU_POWER_WATTS, _CHOSEN),
        column("Loss", results.RUN_LOSS, _CHOSEN),
        age_column(_CHOSEN),
    ),
    sorted_by=("Tokens/s",),
    note="Tokens per second are those of a device. Measured MFU is of the fastest matrix product of a matmul run."
    " Energy is that of all GPUs of a run by their own counters, without hosts and switches; it needs two seconds"
    " of measured steps.",
    absent=ABSENT,
)


# Where the step goes.

_PARTS = {
    "Computes": "compute",
    "Communicates alone": "exposed_communication",
    "Communicates hidden": "overlap",
    "Copies alone": "exposed_copy",
    "Nothing runs": "idle",
}
_STEP_PARTS = Table(
    title="Where a traced step goes",
    width=24,
    columns=(
        NAME,
        RANKS,
        *(column(words, results.RUN_TRACED_RATIO, {**_CHOSEN, "part": part}) for words, part in _PARTS.items()),
    ),
    sorted_by=("Communicates alone",),
    note="Shares of a traced step; hidden communication runs while the device computes, and is no part of the sum.",
    absent=_NOT_TRACED,
)
_PHASES = Table(
    title="Where a step goes: phases, of the slowest rank each",
    width=24,
    columns=(
        NAME,
        RANKS,
        *(
            column(phase.capitalize(), results.RUN_PHASE_SECONDS, {**_CHOSEN, "phase": phase})
            for phase in ("data", "forward", "backward", "optimizer")
        ),
        column("Step", results.RUN_STEP_SECONDS, _CHOSEN),
    ),
    sorted_by=("Step",),
    absent=ABSENT,
)


# Memory.


def _account(name: str, part: str, account: str) -> Column:
    return column(name, results.RUN_MEMORY_ACCOUNT_BYTES, {**_CHOSEN, "part": part, "account": account})


_MEMORY = Table(
    title="Memory of a rank, the most of any: measured, and predicted by the strategy's cost model",
    width=24,
    columns=(
        NAME,
        RANKS,
        _account("Measured", "total", "measured"),
        _account("Predicted", "total", "implementation"),
        column("Predicted of measured", results.RUN_MEMORY_PREDICTED_RATIO, {**_CHOSEN, "part": "total"}),
        *(
            _account(part.capitalize(), part, "measured")
            for part in ("parameters", "gradients", "optimizer", "activations")
        ),
    ),
    sorted_by=("Measured",),
    absent="No result of what is chosen above has an account of its memory.",
)
_PEAKS = Table(
    title="Peak memory of a rank, by account",
    columns=(
        NAME,
        RANKS,
        *(
            column(words, results.RUN_PEAK_MEMORY_BYTES, {**_CHOSEN, "account": account})
            for words, account in (
                ("GPU", "allocator"),
                ("Live tensors", "live_tensors"),
                ("Process", "resident"),
            )
        ),
    ),
    sorted_by=("GPU",),
    absent=ABSENT,
)
_COMMUNICATION = Table(
    title="Communication of a step: traced, and predicted on the measured link",
    columns=(
        NAME,
        RANKS,
        column("Traced", results.RUN_COMMUNICATION_SECONDS, {**_CHOSEN, "account": "traced"}),
        column("Predicted", results.RUN_COMMUNICATION_SECONDS, {**_CHOSEN, "account": "expected"}),
        column("Hidden", results.RUN_OVERLAP_RATIO, _CHOSEN),
        column("Waits", results.RUN_WAITING_RATIO, _CHOSEN),
    ),
    sorted_by=("Traced",),
    note="Waits: for the last rank, of the time in collectives.",
    absent=_NOT_TRACED,
)


# Over the nights.


def _lines(title: str, metric: Metric, worst: Worst, **labels: str) -> TimeSeries:
    return TimeSeries(
        title=title,
        queries=with_interval(metric, {**_CHOSEN, **labels}),
        worst=worst,
        legend="right",
        links=(choices.TO_SERIES,),
        absent=ABSENT,
    )


DASHBOARD = Dashboard(
    name="which-strategy-pays",
    title="Which strategy pays?",
    summary="The newest result of each strategy on one shape, side by side: how fast it is, how well it scales, where"
    " its step goes, and what it holds in memory beside what its cost model predicts.",
    variables=(choices.CLUSTER_OF_RESULTS, choices.SUITE, SHAPE, PRECISION, STRATEGY_OF_SHAPE, _RANKS),
    panels=(*_STATS, _FIGURES, _STEP_PARTS, _PHASES, _MEMORY),
    rows=(
        Row(title="Communication and accounts of memory", panels=(_COMMUNICATION, _PEAKS)),
        Row(
            title="Over the nights",
            panels=(
                _lines("Tokens per second and device", _TOKENS, "lowest"),
                _lines("Step", results.RUN_STEP_SECONDS, "highest"),
                _lines("Model FLOPs utilization", results.RUN_MFU, "lowest"),
                _lines(
                    "Communication that computation does not hide",
                    results.RUN_TRACED_RATIO,
                    "highest",
                    part="exposed_communication",
                ),
                _lines("Communication that computation hides", results.RUN_OVERLAP_RATIO, "lowest"),
                _lines("Energy of a token, all GPUs", results.RUN_TOKEN_ENERGY_JOULES, "highest"),
                _lines("What watching takes of the steps", results.RUN_OBSERVER_RATIO, "highest"),
            ),
        ),
    ),
    annotations=(choices.verdicts_marked(**_CHOSEN),),
    hours=168,
)
