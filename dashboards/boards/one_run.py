"""The dashboard "One run": its steps and ranks, where its time and memory go, how it learns, and its GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from collectors.metrics import gpu, rank, results
from collectors.metrics.agent import RANK_INFO, RUN_INFO, RUN_LAST_PROGRESS
from collectors.metrics.metric import Metric
from collectors.metrics.run_counts import STEP_DURATION, STEPS
from dashboards import promql
from dashboards.boards import choices
from dashboards.boards.lines import lines
from dashboards.model import (
    Column,
    Dashboard,
    Heatmap,
    Query,
    Row,
    Stat,
    Steps,
    Table,
    TimeSeries,
    Variable,
    Word,
    Worst,
    falling,
    rising,
)
from dashboards.queries import joins
from dashboards.queries.fleets import standing_out_at_any_time
from dashboards.thresholds import shipped

_LIMITS = shipped()
_CHOSEN = {**choices.OF_CLUSTER, "strategy": "$strategy", "name": "$series", "run": "$run"}
_LAST = "Of a run that has ended, the last of this time range."
_OF_GPUS = {**choices.OF_CLUSTER, "run": "$run"}
_OF_RESULT = ("cluster", "series")
"""What a run has in common with its result: two clusters may have one each of the same series."""
_NO_RUN = (
    "The run had not begun or had ended by then. `observatory run ddp` starts one; choose another time for one that"
    " has ended."
)
_NOT_TOLD = (
    "The run told none at the moments of this time range that are asked, 15 s apart. `observatory run ddp` starts one;"
    " choose another time for one that has ended."
)
_NOT_TRACED = "The run has traced no step by then; `--trace-steps` says how many it traces."
_NO_GPU = "The run has no GPU that is watched: `observatory serve` on its nodes shows which rank is on which."


def _query(metric: Metric, expression: str, legend: str = "", unit: str | None = None) -> Query:
    return Query(metric=metric, expression=expression, legend=legend, unit=unit or metric.unit)


def _of_run(metric: Metric, **labels: str) -> str:
    """Return the values of all ranks of the run; several exporters of one folder count once."""
    shown = promql.of_chosen_runs(promql.select(metric, **labels), **_CHOSEN)
    return promql.largest(shown, by=("rank", *_OF_RESULT, *metric.labels))


def _stat(title: str, query: Query, *, steps: Steps | None = None, note: str = "", absent: str = _NOT_TOLD) -> Stat:
    """Return a number of now; of a run that has ended, its last."""
    last = replace(query, expression=joins.now_or_last(query.expression))
    note = " ".join(text for text in (note, _LAST) if text)
    return Stat(title=title, queries=(last,), steps=steps, note=note, absent=absent)


def _of_ranks(metric: Metric, **labels: str) -> str:
    """Return the values of the ranks that are chosen."""
    return _of_run(metric, rank="$rank", **labels)


def _mean(metric: Metric, **labels: str) -> str:
    return promql.mean(_of_ranks(metric, **labels), by=metric.labels)


# Numbers of now.

_STEP = promql.middle(_of_run(rank.STEP_SECONDS), by=_OF_RESULT)
_RESULT = promql.largest(
    promql.select(results.RUN_STEP_SECONDS.statistic("median"), **choices.OF_CLUSTER), by=_OF_RESULT
)
_WHOLE = promql.mean(_of_run(rank.STEP_SECONDS), by=())
_WATTS = promql.total(joins.of_gpus_of_run(promql.select(gpu.GPU_POWER_WATTS), **_OF_GPUS), by=())
_TOKENS = promql.total(_of_run(rank.TOKENS_PER_SECOND), by=())
_FULL = promql.divide(
    joins.of_gpus_of_run(promql.select(gpu.GPU_MEMORY_USED_BYTES), **_OF_GPUS),
    joins.of_gpus_of_run(joins.memory_for_ranks(), **_OF_GPUS),
)
_STATS = (
    _stat("Step, median rank", _query(rank.STEP_SECONDS, _STEP)),
    _stat(
        "p99 of steps",
        # While no step is measured the quantile is no number.
        _query(STEP_DURATION, promql.above(joins.quantile_in_run(STEP_DURATION, 0.99, **_CHOSEN), 0)),
        note="Of all measured steps of all ranks lately, by the histogram of their times.",
    ),
    _stat(
        "Against result",
        _query(rank.STEP_SECONDS, promql.less_one(promql.divide(_STEP, _RESULT, on=_OF_RESULT)), unit="ratio"),
        steps=rising(1 / _LIMITS.live.speed_ratio - 1),
        note="The result is the newest at that moment.",
        absent="The run's series had no result by then: only a run that ended well, and is not ad hoc, is one.",
    ),
    Stat(
        title="Slowest rank",
        queries=(
            _query(
                rank.STEP_SECONDS, joins.most_now(1, joins.now_or_last(_of_run(rank.STEP_SECONDS))), "rank {{rank}}"
            ),
        ),
        is_text=True,
        note=_LAST,
        absent=_NOT_TOLD,
    ),
    _stat(
        "MFU",
        _query(rank.MFU, promql.mean(_of_run(rank.MFU), by=())),
        absent="No data sheet names the peak of the run's devices (a CPU has none).",
    ),
    _stat(
        "Exposed comm.",
        _query(rank.EXPOSED_COMMUNICATION_RATIO, promql.mean(_of_run(rank.EXPOSED_COMMUNICATION_RATIO), by=())),
        steps=rising(_LIMITS.live.exposed_ratio),
        absent=_NOT_TRACED,
    ),
    _stat(
        "Waits for data",
        _query(
            rank.PHASE_SECONDS,
            promql.divide(promql.mean(_of_run(rank.PHASE_SECONDS, phase="data"), by=()), _WHOLE),
            unit="ratio",
        ),
        steps=rising(_LIMITS.live.input_ratio),
    ),
    _stat(
        "Fullest GPU",
        _query(gpu.GPU_MEMORY_USED_BYTES, promql.largest(_FULL, by=()), unit="ratio"),
        absent=_NO_GPU,
    ),
)


# What it is.

_WHICH = tuple(label for label in RUN_INFO.labels if label not in ("slot", "series"))
_IN_VIEW, _PROGRESS = (
    f"({joins.case_of_run(metric, by=_WHICH, **_CHOSEN)})" for metric in (RUN_INFO, RUN_LAST_PROGRESS)
)


def _while_it_goes_on(expression: str) -> str:
    return promql.where(expression, promql.select(RUN_INFO, **_CHOSEN), on=("run",))


_ABOUT = Table(
    title="The run",
    height=4,
    width=24,
    columns=(
        Column(name="Case", source="about"),
        Column(name="Series", source="name", link=choices.TO_SERIES),
        Column(name="Run", source="run"),
        Column(name="Nodes", source="nodes", unit="number", width=70),
        Column(name="Suite", source="suite"),
        Column(name="Commit", source="commit"),
        Column(
            name="State",
            source=_query(
                RUN_INFO, promql.either(_while_it_goes_on(_IN_VIEW), promql.times(0, _IN_VIEW)), unit="count"
            ),
            words=(Word(value=1, text="goes on", colour="good"), Word(value=0, text="has ended", colour="plain")),
            width=90,
        ),
        Column(
            name="Last step ended",
            source=_query(RUN_LAST_PROGRESS, promql.age(f"({_while_it_goes_on(_PROGRESS)})"), unit="seconds"),
            steps=rising(60, _LIMITS.live.still_minutes * 60),
            width=130,
        ),
    ),
    note="When the last step of a run ended is told while it goes on.",
    absent="No run of what is chosen above went on in this time range. `observatory run ddp` starts one.",
)


# Where the time goes.


_lines = partial(lines, absent=_NO_RUN)


_PHASES = promql.mean(_of_ranks(rank.PHASE_SECONDS), by=("phase",))
_BESIDE = promql.less(promql.mean(_of_ranks(rank.STEP_SECONDS), by=()), promql.total(_PHASES, by=()))
_PARTS = (
    ("computes", rank.COMPUTE_SECONDS),
    ("communicates, nothing computes", rank.EXPOSED_COMMUNICATION_SECONDS),
    ("copies, nothing else runs", rank.EXPOSED_COPY_SECONDS),
    ("nothing runs", rank.IDLE_SECONDS),
)
_STANDING_OUT = (
    _lines(
        "Step: slowest, median and fastest rank",
        _query(rank.STEP_SECONDS, promql.largest(_of_ranks(rank.STEP_SECONDS), by=()), "slowest"),
        _query(rank.STEP_SECONDS, promql.middle(_of_ranks(rank.STEP_SECONDS), by=()), "median"),
        _query(rank.STEP_SECONDS, promql.smallest(_of_ranks(rank.STEP_SECONDS), by=()), "fastest"),
    ),
    _lines(
        "Step: the 8 slowest ranks",
        _query(rank.STEP_SECONDS, standing_out_at_any_time(8, _of_ranks(rank.STEP_SECONDS)), "rank {{rank}}"),
    ),
    _lines(
        "Step of all ranks: p50, p90, p99",
        *(
            replace(
                _query(
                    STEP_DURATION, joins.quantile_in_run(STEP_DURATION, quantile, **_CHOSEN), f"p{100 * quantile:g}"
                ),
                # All three would show the same steps.
                has_exemplars=quantile == 0.99,
            )
            for quantile in (0.5, 0.9, 0.99)
        ),
        note="By the histogram of all measured steps; a gauge shows but the step that was the newest at a scrape."
        " Points are single steps, each with its run, trial, rank and number, where Prometheus keeps exemplars"
        " (`--enable-feature=exemplar-storage`); a label of an exemplar cannot be chosen, so that steps of runs beside"
        " this one are among them.",
    ),
    Heatmap(
        title="How often a step took so long",
        queries=(_query(STEP_DURATION, joins.observed_in_run(STEP_DURATION, **_CHOSEN), "{{le}}"),),
        absent=_NO_RUN,
    ),
    _lines(
        "Phases of a step, mean of ranks",
        _query(rank.PHASE_SECONDS, _PHASES, "{{phase}}"),
        _query(rank.STEP_SECONDS, promql.above(_BESIDE, 0), "beside the phases"),
        stacked=True,
        note="The parts add up to the mean step.",
    ),
    _lines(
        "Parts of a traced step, mean of ranks",
        *(_query(metric, _mean(metric), words) for words, metric in _PARTS),
        stacked=True,
        absent=_NOT_TRACED,
    ),
)
_TIME = Row(
    title="Speed and communication",
    panels=(
        _lines(
            "Tokens per second: all ranks",
            _query(rank.TOKENS_PER_SECOND, promql.total(_of_ranks(rank.TOKENS_PER_SECOND), by=()), "tokens"),
            worst="lowest",
        ),
        _lines(
            "MFU: of the data sheet's peak, and of the fastest matrix product",
            _query(rank.MFU, _mean(rank.MFU), "of the data sheet"),
            _query(rank.MEASURED_MFU, _mean(rank.MEASURED_MFU), "of what was measured"),
            worst="lowest",
            absent="No data sheet names the peak of the run's devices, and no matmul run measured one.",
        ),
        _lines(
            "Collectives of a traced step, mean of ranks",
            _query(rank.COLLECTIVE_SECONDS, _mean(rank.COLLECTIVE_SECONDS), "{{collective}}"),
            stacked=True,
            absent=_NOT_TRACED,
        ),
        _lines(
            "Communication that computation hides",
            _query(rank.OVERLAP_RATIO, _mean(rank.OVERLAP_RATIO), "all collectives"),
            _query(rank.COLLECTIVE_OVERLAP_RATIO, _mean(rank.COLLECTIVE_OVERLAP_RATIO), "{{collective}}"),
            worst="lowest",
            absent=_NOT_TRACED,
        ),
        _lines(
            "Bytes that a rank hands to collectives in a step",
            _query(
                rank.PAYLOAD_BYTES,
                promql.largest(_of_ranks(rank.PAYLOAD_BYTES), by=("collective", "axis")),
                "{{collective}} over {{axis}}",
            ),
            absent=_NOT_TRACED,
        ),
        _lines(
            "Waiting for a batch: device, and host",
            _query(rank.PHASE_SECONDS, _mean(rank.PHASE_SECONDS, phase="data"), "device"),
            _query(rank.DATA_WAIT_SECONDS, _mean(rank.DATA_WAIT_SECONDS), "host, while the GPU may compute"),
        ),
        _lines(
            "Steps done, of the rank that has done most",
            _query(STEPS, promql.largest(_of_ranks(STEPS), by=("mark",)), "{{mark}}", "count"),
        ),
        _lines(
            "What watching takes of a step, of the rank that it costs most",
            _query(
                rank.OBSERVER_SECONDS, promql.largest(_of_ranks(rank.OBSERVER_SECONDS), by=()), "collectors and log"
            ),
        ),
    ),
)


# How it learns.

_LEARNING = Row(
    title="Learning",
    panels=(
        _lines(
            "Loss: highest, mean and lowest rank",
            _query(rank.LOSS, promql.largest(_of_ranks(rank.LOSS), by=()), "highest"),
            _query(rank.LOSS, _mean(rank.LOSS), "mean"),
            _query(rank.LOSS, promql.smallest(_of_ranks(rank.LOSS), by=()), "lowest"),
            absent="No rank of the run computes a loss, or none has ended a step.",
        ),
        _lines("Learning rate", _query(rank.LEARNING_RATE, _mean(rank.LEARNING_RATE), "learning rate", "number")),
        _lines(
            "Gradient norm before clipping: highest and mean rank",
            _query(rank.GRADIENT_NORM, promql.largest(_of_ranks(rank.GRADIENT_NORM), by=()), "highest", "number"),
            _query(rank.GRADIENT_NORM, _mean(rank.GRADIENT_NORM), "mean", "number"),
            absent="The run does not clip (`--option clip=0`), no rank chosen does, or none has ended a step.",
        ),
    ),
)


# Memory.


def _fullest(metric: Metric, words: str) -> Query:
    return _query(metric, promql.largest(_of_ranks(metric), by=metric.labels), words)


_CAPACITY = _query(
    gpu.GPU_MEMORY_USED_BYTES,
    promql.smallest(joins.of_gpus_of_run(joins.memory_for_ranks(), **_OF_GPUS, rank="$rank"), by=()),
    "what processes can have",
)
_NO_ALLOCATOR = "The allocator keeps an account on GPUs only; a CPU's ranks have resident memory."
_MEMORY = Row(
    title="Memory of the fullest rank",
    panels=(
        _lines(
            "Device memory against what the GPU has",
            _fullest(rank.ALLOCATED_BYTES, "allocated at the end of a step"),
            _fullest(rank.ACTIVE_BYTES, "active"),
            _fullest(rank.PEAK_BYTES, "peak of a step"),
            _fullest(rank.RESERVED_BYTES, "reserved"),
            _CAPACITY,
            absent=_NO_ALLOCATOR,
        ),
        _lines(
            "State of training",
            _fullest(rank.STATE_BYTES, "{{part}}"),
            stacked=True,
            absent="The run has not told the bytes of its state yet; it does so after its first trial's warm-up.",
        ),
        _lines("Peak of each phase", _fullest(rank.PHASE_PEAK_BYTES, "{{phase}}"), absent=_NO_ALLOCATOR),
        _lines(
            "Fragmentation: unused parts of used blocks",
            _fullest(rank.INACTIVE_SPLIT_BYTES, "inactive split"),
            absent=_NO_ALLOCATOR,
        ),
        _lines(
            "Allocations that failed at first, and for good",
            _query(
                rank.ALLOCATION_RETRIES,
                promql.total(_of_ranks(rank.ALLOCATION_RETRIES), by=()),
                "succeeded after a retry",
                "count",
            ),
            _query(rank.OUT_OF_MEMORY, promql.total(_of_ranks(rank.OUT_OF_MEMORY), by=()), "out of memory", "count"),
            absent=_NO_ALLOCATOR,
        ),
        _lines("Resident memory of the process", _fullest(rank.RESIDENT_BYTES, "resident")),
    ),
)


# GPUs.


_SHOWN = 8
"""Of hundreds of ranks nobody reads a line each."""


def _gpus(metric: Metric, expression: str | None = None, unit: str | None = None, *, worst: Worst = "highest") -> Query:
    """Return the GPUs of the ranks that are chosen, those alone that reach the worst values within the time range."""
    of_ranks = joins.of_gpus_of_run(expression or promql.select(metric), **_OF_GPUS, rank="$rank")
    shown = standing_out_at_any_time(_SHOWN, of_ranks, worst=worst)
    return _query(metric, shown, "rank {{rank}}: {{instance}} gpu {{gpu}}", unit)


_GPUS = Row(
    title="GPUs of the run, by rank",
    panels=(
        _lines(
            f"Busy with any kernel: the {_SHOWN} that are least",
            _gpus(gpu.GPU_UTILIZATION, worst="lowest"),
            worst="lowest",
            absent=_NO_GPU,
        ),
        _lines(
            f"Clocks held back, worst reason: the {_SHOWN} most",
            _gpus(
                gpu.GPU_CLOCK_HELD_SECONDS,
                promql.rate(gpu.GPU_CLOCK_HELD_SECONDS, 5, reason=promql.none_of("idle")),
                "ratio",
            ),
            steps=rising(_LIMITS.gpus.braked_ratio, colour="plain"),
            note="Share of the last five minutes.",
            absent="No GPU of the run counts for how long its clocks are held back, or it has no GPU that is watched.",
        ),
        TimeSeries(
            title=f"Degrees below slowing down: the {_SHOWN} hottest",
            queries=(_gpus(gpu.GPU_TEMPERATURE_MARGIN_CELSIUS, worst="lowest"),),
            worst="lowest",
            goes_below_zero=True,
            legend="right",
            steps=falling(10, 0, colour="plain"),
            absent=_NO_GPU,
        ),
        _lines(
            f"Clock of the multiprocessors: the {_SHOWN} slowest",
            _gpus(gpu.GPU_CLOCK_HERTZ.alone(clock="sm"), worst="lowest"),
            worst="lowest",
            absent=_NO_GPU,
        ),
        _lines(f"Power: the {_SHOWN} that draw most", _gpus(gpu.GPU_POWER_WATTS), absent=_NO_GPU),
        _lines(
            "Energy of a token, all GPUs of the run",
            _query(gpu.GPU_POWER_WATTS, promql.divide(_WATTS, _TOKENS), "energy of a token", "joules"),
            absent=_NO_GPU,
            note="Power of the GPUs that have a rank of the run, divided by its tokens per second.",
        ),
    ),
)

DASHBOARD = Dashboard(
    name="one-run",
    title="One run",
    summary="One run: its step beside the newest result of its series, its ranks, where time and memory go, how it"
    " learns, and the GPUs that its ranks compute on.",
    variables=(
        choices.CLUSTER,
        choices.LIVE_STRATEGY,
        choices.LIVE_SERIES,
        choices.ONE_RUN,
        Variable(name="rank", label="Rank", query=promql.choices(RANK_INFO, "rank", **_OF_GPUS)),
    ),
    panels=(*_STATS, _ABOUT, *_STANDING_OUT),
    rows=(_TIME, _LEARNING, _MEMORY, _GPUS),
    annotations=(
        *choices.runs_marked(**_CHOSEN),
        choices.verdicts_marked(**choices.OF_CLUSTER, strategy="$strategy", name="$series"),
        choices.alerts_marked(**choices.OF_CLUSTER, strategy="$strategy", run="$run"),
    ),
)
