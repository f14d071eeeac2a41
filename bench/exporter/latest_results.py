"""The results shown at /metrics: of each series, the newest run in the history that ended well and is not ad hoc."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from statistics import quantiles

import msgspec

from bench.analysis.estimate import Estimate
from bench.case import why_ad_hoc
from bench.errors import InfrastructureFailed, Misuse
from bench.exporter.info_labels import case_labels, membership, option_words, versions
from bench.machine.machine import Machine
from bench.runs.history import History
from bench.runs.summary import Summary, series_of
from collectors.errors import in_words
from collectors.metrics.agent import RESULT_INFO, RUN_LAST_COMPLETION, RUN_LAST_FAILURE
from collectors.metrics.metric import QUANTILES, STATISTICS, Sample
from collectors.metrics.registry import METRICS, form_of
from collectors.metrics.results import RUN_SCALING_EFFICIENCY
from collectors.prometheus.exposition import Owned


class NewestResults:
    """The newest results, read by `ask` in a thread that scrapes do not wait for: a store may be slow, or absent.

    What was read stays when the store goes away. on_notice: is told what cannot be read.
    """

    def __init__(self, store_url: str | None, *, on_notice: Callable[[str], None]) -> None:
        self._store_url = store_url
        self._on_notice = on_notice
        self._seen: frozenset[str] = frozenset()
        self._newest: dict[str, Summary] = {}
        self._machines: dict[str, Machine | None] = {}
        self._ended: dict[str, Summary] = {}
        self._samples: tuple[Owned, ...] = ()

    def samples(self) -> tuple[Owned, ...]:
        """Return the results as last read from the history."""
        return self._samples

    def ask(self) -> None:
        """Read what is new in the history."""
        try:
            with History(self._store_url, writable=False) as history:
                known = history.known()
                for summary in self._fresh(history, known):
                    self._take(summary)
                self._seen = known
                self._machines = {one.run: self._machine(history, one.run) for one in self._newest.values()}
        except (InfrastructureFailed, Misuse) as error:
            what = "results are no longer updated" if self._seen else "no results are shown yet"
            self._on_notice(f"{what}: {error}")
        except Exception as error:  # noqa: BLE001  # Whatever it is, it must not end the thread: results would freeze.
            self._on_notice(f"results are no longer updated: {in_words(error)}")
        self._samples = (
            *(
                owned
                for summary in self._newest.values()
                for owned in _samples(summary, self._machines.get(summary.run))
            ),
            *(owned for summary in self._ended.values() for owned in _failure(summary)),
        )

    def _fresh(self, history: History, known: frozenset[str]) -> Iterator[Summary]:
        fresh = known - self._seen
        if fresh and not self._seen:
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
        for kept in (self._ended, self._newest) if summary.outcome == "done" else (self._ended,):
            before = kept.get(series)
            if before is None or (before.started_ns, before.run) < (summary.started_ns, summary.run):
                kept[series] = summary


def _owner(summary: Summary) -> dict[str, str]:
    case = summary.case
    return {
        "strategy": case.strategy,
        "ranks": str(case.ranks),
        "device": case.device,
        "precision": case.precision,
        "series": series_of(case, summary.hardware),
    }


def _failure(summary: Summary) -> Iterator[Owned]:
    """Yield that the newest run of a series failed; nothing of a suite's case, which is told of with its suite."""
    if summary.outcome != "done" and summary.purpose.member is None:
        ended_s = summary.ended_ns / 1e9
        yield RUN_LAST_FAILURE.at(ended_s, **_owner(summary), run=summary.run, outcome=summary.outcome), {}


def _info(summary: Summary, series: str, machine: Machine | None) -> Sample:
    case = summary.case
    of_case = {**case_labels(case), "options": option_words(case), **membership(summary.purpose)}
    return RESULT_INFO.at(1, series=series, run=summary.run, **of_case, **versions(summary, machine))


def _samples(summary: Summary, machine: Machine | None) -> Iterator[Owned]:
    """Yield what is shown of a result.

    In the metric a baseline measured beside the run means one rank, and so it does for accepted efficiencies: the
    efficiency of a curve is left out unless the curve begins with 1 rank.
    """
    owner = _owner(summary)
    yield _info(summary, owner["series"], machine), {}
    yield RUN_LAST_COMPLETION.at(summary.ended_ns / 1e9, **owner), {}
    for sample in _of_estimates(summary.estimates):
        yield sample, owner
    for scaling in summary.scaling:
        if scaling.is_beside and scaling.baseline_ranks != 1:
            continue
        ratio, labels = scaling.ratio, {"scaling": scaling.scaling, "baseline": scaling.baseline}
        for sample in statistics_of(RUN_SCALING_EFFICIENCY.name, labels, (ratio.value, ratio.low, ratio.high)):
            yield sample, owner


MOST_RANKS, WORST_RANKS = 16, 8
"""Of a figure of each rank, or pair of ranks, how many are all shown; and where there are more, how many of the worst,
beside quantiles of all. The history keeps each."""


def _of_estimates(estimates: Iterable[Estimate]) -> Iterator[Sample]:
    """Yield what is shown of a result's figures; of those of many ranks the worst, and quantiles."""
    of_each: dict[tuple[str, ...], list[Estimate]] = defaultdict(list)
    for found in estimates:
        each = _FIGURES[found.metric].of_each if found.metric in _FIGURES else None
        others = sorted((label, value) for label, value in found.labels.items() if label != each)
        if each is None:
            yield from _of_estimate(found)
        else:
            of_each[found.metric, *chain.from_iterable(others)].append(found)
    for alike in of_each.values():
        metric = _FIGURES[alike[0].metric]
        worst_first = sorted(alike, key=lambda found: found.median, reverse=metric.better != "higher")
        for found in worst_first if len(alike) <= MOST_RANKS else worst_first[:WORST_RANKS]:
            yield from _of_estimate(found)
        if len(alike) > MOST_RANKS:
            percentiles = quantiles((found.median for found in alike), n=100, method="inclusive")
            labels = {label: value for label, value in alike[0].labels.items() if label != metric.of_each}
            for word, share in QUANTILES.items():
                yield Sample(metric.quantile(word).name, percentiles[round(100 * share) - 1], labels)


def _of_estimate(found: Estimate) -> Iterator[Sample]:
    return statistics_of(found.metric, found.labels, (found.median, found.low, found.high))


_FIGURES = {metric.name: metric for metric in METRICS if metric.scope == "run"}


def statistics_of(
    figure: str, labels: Mapping[str, str], values: tuple[float, float | None, float | None]
) -> Iterator[Sample]:
    """Yield what is shown of a run's figure: a metric for each statistic.

    figure: the name by which it is stored; one that this version does not know keeps it, and the exporter tells of it.
    values: median, low and high, in this order; None where there is no interval.
    """
    for which, value in zip(STATISTICS, values, strict=True):
        if value is not None and figure in _FIGURES:
            form, own_labels = form_of(_FIGURES[figure], labels)
            yield Sample(form.statistic(which).name, value, own_labels)
        elif value is not None:
            yield Sample(figure, value, dict(labels))
