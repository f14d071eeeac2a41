"""The results shown at /metrics: for each series, the newest successful run in the history that is not ad hoc.

Also shows the series' usual step and scaling efficiency, from the nights before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from statistics import median, quantiles

import msgspec

from bench.case import why_ad_hoc
from bench.errors import Misuse
from bench.machine.machine import Machine
from bench.results.efficiency import ScalingEfficiency
from bench.results.estimate import Estimate
from bench.serve.info_labels import case_labels, membership, option_words, versions
from bench.store.history import History
from bench.store.nights import day_of, is_of_a_night
from bench.store.summary import Summary, series_of
from collectors.files import in_words
from collectors.metrics.agent import (
    RESULT_INFO,
    RUN_LAST_COMPLETION,
    RUN_LAST_FAILURE,
    SERIES_NEWEST_RUN,
    USUAL_EFFICIENCY,
    USUAL_STEP_SECONDS,
)
from collectors.metrics.metric import QUANTILES, STATISTICS, Sample
from collectors.metrics.registry import METRICS, form_of
from collectors.metrics.results import RUN_SCALING_EFFICIENCY, RUN_STEP_SECONDS
from collectors.prometheus.exposition import Owned


class NewestResults:
    """The newest results. on_notice: called for each result or machine that cannot be read."""

    what = "results"

    def __init__(self, *, on_notice: Callable[[str], None]) -> None:
        self._on_notice = on_notice
        self._known_runs: frozenset[str] = frozenset()
        self._newest: dict[str, Summary] = {}
        self._machines: dict[str, Machine | None] = {}
        self._ended: dict[str, Summary] = {}
        self._nights: dict[str, SeriesNights] = defaultdict(SeriesNights)

    def samples(self) -> Iterator[Owned]:
        """Yield the results as last read from the history."""
        for summary in self._newest.values():
            yield from _samples(summary, self._machines.get(summary.run))
        for series, summary in self._newest.items():
            for sample in self._nights[series].usual(summary):
                yield sample, {}
        for summary in self._ended.values():
            yield from _end(summary)

    def read(self, history: History) -> None:
        """Read the history's new runs."""
        known = history.known()
        for summary in self._fresh(history, known):
            self._take(summary)
        self._known_runs = known
        self._machines = {summary.run: self._machine(history, summary.run) for summary in self._newest.values()}

    def _fresh(self, history: History, known: frozenset[str]) -> Iterator[Summary]:
        fresh = known - self._known_runs
        if fresh and not self._known_runs:
            try:
                yield from history.runs(limit=len(known))
            except Misuse:  # One run cannot be read: find it by reading one by one.
                fresh = known
            else:
                return
        for run in sorted(fresh):
            try:
                yield history.find(run)
            except Misuse as error:
                self._on_notice(f"a result is not shown: {error}")

    def _machine(self, history: History, run: str) -> Machine | None:
        if run in self._machines:
            return self._machines[run]
        try:
            return history.machine(run)
        except msgspec.MsgspecError as error:
            self._on_notice(f"the machine of run {run} is not shown: {in_words(error)}")
            return None

    def _take(self, summary: Summary) -> None:
        if why_ad_hoc(summary.case, summary.purpose):
            return
        series = series_of(summary.case, summary.hardware)
        if summary.outcome == "done" and is_of_a_night(summary):
            self._nights[series].take(summary)
        for newest in (self._ended, self._newest) if summary.outcome == "done" else (self._ended,):
            before = newest.get(series)
            if before is None or (before.started_ns, before.run) < (summary.started_ns, summary.run):
                newest[series] = summary


def _owner(summary: Summary) -> dict[str, str]:
    case = summary.case
    return {
        "strategy": case.strategy,
        "ranks": str(case.ranks),
        "device": case.device,
        "precision": case.precision,
        "series": series_of(case, summary.hardware),
    }


def _end(summary: Summary) -> Iterator[Owned]:
    """Yield how the newest run of a series ended, and when it failed.

    The time of a failure is left out for a suite's case, because the suite reports it.
    """
    yield SERIES_NEWEST_RUN.at(1, **_owner(summary), run=summary.run, outcome=summary.outcome), {}
    if summary.outcome != "done" and summary.purpose.member is None:
        ended_s = summary.ended_ns / 1e9
        name = case_labels(summary.case, summary.hardware)["name"]
        failed = RUN_LAST_FAILURE.at(ended_s, **_owner(summary), name=name, run=summary.run, outcome=summary.outcome)
        yield failed, {}


def _info(summary: Summary, series: str, machine: Machine | None) -> Sample:
    case = summary.case
    of_case = {**case_labels(case, summary.hardware), "options": option_words(case), **membership(summary.purpose)}
    return RESULT_INFO.at(1, series=series, run=summary.run, **of_case, **versions(summary, machine))


def _samples(summary: Summary, machine: Machine | None) -> Iterator[Owned]:
    owner = _owner(summary)
    yield _info(summary, owner["series"], machine), {}
    yield RUN_LAST_COMPLETION.at(summary.ended_ns / 1e9, **owner), {}
    for sample in _of_estimates(summary.estimates):
        yield sample, owner
    for scaling in _shown_efficiencies(summary):
        ratio, labels = scaling.ratio, {"scaling": scaling.scaling, "baseline": scaling.baseline}
        for sample in statistics_of(RUN_SCALING_EFFICIENCY.name, labels, (ratio.value, ratio.low, ratio.high)):
            yield sample, owner


def _shown_efficiencies(summary: Summary) -> Iterator[ScalingEfficiency]:
    """Yield the run's efficiencies that /metrics shows.

    There, and for accepted efficiencies, a baseline measured alongside the run has one rank. So the efficiency of a
    curve is left out unless the curve begins with 1 rank.
    """
    for efficiency in summary.scaling:
        if not efficiency.is_beside or efficiency.baseline_ranks == 1:
            yield efficiency


USUAL_NIGHTS = 14
"""How many nights determine what is usual; alerts on efficiency look back as far."""


class SeriesNights:
    """Step and scaling efficiency of a series in its last nights."""

    def __init__(self) -> None:
        # By day and the run's ID: its numbers of steps, and its figures by metric, scaling and baseline.
        self._days: dict[int, dict[str, tuple[tuple[int, int], dict[tuple[str, ...], float]]]] = defaultdict(dict)

    def take(self, run: Summary) -> None:
        """Remember a nightly run."""
        figures: dict[tuple[str, ...], float] = {
            (estimate.metric,): estimate.median
            for estimate in run.estimates
            if estimate.metric == RUN_STEP_SECONDS.name
        }
        figures |= {
            (RUN_SCALING_EFFICIENCY.name, efficiency.scaling, efficiency.baseline): efficiency.ratio.value
            for efficiency in _shown_efficiencies(run)
        }
        self._days[day_of(run)][run.run] = (run.case.steps, run.case.warm_up), figures
        if len(self._days) > USUAL_NIGHTS + 1:  # One more for the newest result's own night.
            del self._days[min(self._days)]

    def usual(self, newest: Summary) -> Iterator[Sample]:
        """Yield what was usual before the night of the series' newest result; nothing on its first night."""
        steps, owner = (newest.case.steps, newest.case.warm_up), _owner(newest)
        nights: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for day in sorted(self._days, reverse=True):
            if day >= day_of(newest):
                continue
            of_night: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for steps_of_run, figures in self._days[day].values():
                is_alike = steps_of_run == steps or newest.watched is not None
                for figure, value in figures.items() if is_alike else ():
                    of_night[figure].append(value)
            for figure, values in of_night.items():
                nights[figure].append(median(values))
        for figure, medians in nights.items():
            value = median(medians[:USUAL_NIGHTS])
            if figure == (RUN_STEP_SECONDS.name,):
                yield USUAL_STEP_SECONDS.at(value, **owner)
            else:
                _, scaling, baseline = figure
                yield USUAL_EFFICIENCY.at(value, **owner, scaling=scaling, baseline=baseline)


MOST_RANKS, WORST_RANKS = 16, 8
"""A figure of each rank, or pair of ranks, is shown with up to MOST_RANKS values; if there are more, with the worst
WORST_RANKS and with quantiles of all. The history keeps every value."""


def _of_estimates(estimates: Iterable[Estimate]) -> Iterator[Sample]:
    """Yield the samples of a result's figures; for many ranks, only the worst and quantiles."""
    of_each: dict[tuple[str, ...], list[Estimate]] = defaultdict(list)
    for estimate in estimates:
        each = _FIGURES[estimate.metric].of_each if estimate.metric in _FIGURES else None
        others = sorted((label, value) for label, value in estimate.labels.items() if label != each)
        if each is None:
            yield from _of_estimate(estimate)
        else:
            of_each[estimate.metric, *chain.from_iterable(others)].append(estimate)
    for alike in of_each.values():
        metric = _FIGURES[alike[0].metric]
        worst_first = sorted(alike, key=lambda estimate: estimate.median, reverse=metric.better != "higher")
        for estimate in worst_first if len(alike) <= MOST_RANKS else worst_first[:WORST_RANKS]:
            yield from _of_estimate(estimate)
        if len(alike) > MOST_RANKS:
            percentiles = quantiles((estimate.median for estimate in alike), n=100, method="inclusive")
            labels = {label: value for label, value in alike[0].labels.items() if label != metric.of_each}
            for word, share in QUANTILES.items():
                yield Sample(metric.quantile(word).name, percentiles[round(100 * share) - 1], labels)


def _of_estimate(estimate: Estimate) -> Iterator[Sample]:
    return statistics_of(estimate.metric, estimate.labels, (estimate.median, estimate.low, estimate.high))


_FIGURES = {metric.name: metric for metric in METRICS if metric.scope == "run"}


def statistics_of(
    figure: str, labels: Mapping[str, str], values: tuple[float, float | None, float | None]
) -> Iterator[Sample]:
    """Yield the samples of a run's figure: a metric for each statistic.

    figure: the name by which it is stored. A figure that this version does not know keeps its name, and the exporter
    reports it.
    values: median, low and high, in this order; None if there is no interval.
    """
    for which, value in zip(STATISTICS, values, strict=True):
        if value is not None and figure in _FIGURES:
            form, own_labels = form_of(_FIGURES[figure], labels)
            yield Sample(form.statistic(which).name, value, own_labels)
        elif value is not None:
            yield Sample(figure, value, dict(labels))
