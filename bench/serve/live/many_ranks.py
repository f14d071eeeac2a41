"""Samples of a run with many ranks: statistics over all ranks, and the few ranks that a person would look at.

Knows neither files nor the exporter's page.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from heapq import nlargest

from collectors.metrics.metric import OVER_RANKS, QUANTILES, Metric, Sample
from collectors.metrics.registry import METRICS, form_of

MOST_RANKS = 64
"""If a run has more ranks, only some of them are shown. 64 ranks of 62 series are 4,000 series, as many as the GPUs and
hosts of five nodes have, and nobody reads more lines in one panel."""
SHOWN_EACH = 4
"""How many ranks are shown for each reason. With five reasons and the two outermost ranks, a run has at most 22 ranks
of 62 series each, and 400 statistics and buckets: below 2,000 series, however many ranks it has."""

LEAD_RATIO = 0.1
"""How much more the value of a shown rank counts, as a ratio. Step times of equal ranks differ by less."""

_Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name, and its labels in order."""
_AGGREGATED = {metric.name: metric for metric in METRICS if metric.is_aggregated}


class Spread:
    """The newest values of all ranks of a run, by series."""

    def __init__(self) -> None:
        self._values: dict[_Series, dict[str, float]] = defaultdict(dict)
        self._of_rank: dict[str, frozenset[_Series]] = {}

    def take(self, rank: str, samples: Iterable[Sample]) -> None:
        """Replace a rank's values. If a series has two samples, the first one counts."""
        values: dict[_Series, float] = {}
        for sample in samples:
            if sample.metric in _AGGREGATED:
                values.setdefault((sample.metric, tuple(sorted(sample.labels.items()))), sample.value)
        for series in self._of_rank.get(rank, frozenset()) - values.keys():
            del self._values[series][rank]
        for series, value in values.items():
            self._values[series][rank] = value
        self._of_rank[rank] = frozenset(values)

    def of(self, metric: Metric, **labels: str) -> Mapping[str, float]:
        """Return a series' value of each rank that has one."""
        return self._values.get((metric.name, tuple(sorted(labels.items()))), {})

    def samples(self, slot: str, *, of: Metric | None = None, leave_out: Metric | None = None) -> Iterator[Sample]:
        """Yield the statistics of each series over the ranks that have it, under the names of /metrics.

        of: only this metric. leave_out: all but this metric.
        """
        for (name, labels), by_rank in self._values.items():
            is_chosen = (of is None or name == of.name) and (leave_out is None or name != leave_out.name)
            if by_rank and is_chosen:
                for statistic, value in _statistics(by_rank.values(), _shown(name, labels)):
                    yield statistic.at(value, **_labels(name, labels), slot=slot)


@cache  # Each look needs the same ones.
def _shown(name: str, labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Metric], ...]:
    """Return the metric of each statistic, by its word."""
    form, _ = form_of(_AGGREGATED[name], dict(labels))
    return tuple((word, form.over_ranks(word)) for word in OVER_RANKS[form.kind])


@cache
def _labels(name: str, labels: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    return form_of(_AGGREGATED[name], dict(labels))[1]


def _statistics(
    values: Collection[float], statistics: tuple[tuple[str, Metric], ...]
) -> Iterator[tuple[Metric, float]]:
    """Yield the value of each statistic. Like Prometheus, min and max leave out NaN, and quantiles put it first."""
    total = sum(values)
    numbers = sorted(values if not math.isnan(total) else [value for value in values if not math.isnan(value)])
    ordered = [math.nan] * (len(values) - len(numbers)) + numbers
    for word, metric in statistics:
        match word:
            case "min":
                yield metric, numbers[0] if numbers else math.nan
            case "max":
                yield metric, ordered[-1]
            case "mean":
                yield metric, total / len(ordered)
            case "sum":
                yield metric, total
            case _:  # Quantiles are interpolated between the two nearest values as in PromQL's `quantile`.
                below = math.floor(place := QUANTILES[word] * (len(ordered) - 1))
                above = min(below + 1, len(ordered) - 1)
                yield metric, ordered[below] * (1 - (place - below)) + ordered[above] * (place - below)


class ShownRanks:
    """Chooses the ranks to show: those with the highest values, for each reason.

    A chosen rank stays until others exceed it by more than a tenth, so that nearly equal ranks do not alternate: each
    rank that was shown once costs Prometheus its series for hours.
    """

    def __init__(self) -> None:
        self._chosen: dict[str, list[str]] = {}

    def choose(self, reasons: Mapping[str, Mapping[str, float]], ranks: Collection[str]) -> frozenset[str]:
        """Return the chosen ranks, and the first and the last rank. reasons: for each, values by rank."""
        for reason, values in reasons.items():
            before = self._chosen.get(reason, ())

            leads = {rank: LEAD_RATIO * abs(values[rank]) if rank in before else 0.0 for rank in values}
            places = {rank: (value + leads[rank], -int(rank)) for rank, value in values.items()}
            self._chosen[reason] = nlargest(SHOWN_EACH, places, key=places.__getitem__)
        outermost = (min(ranks, key=int), max(ranks, key=int)) if ranks else ()
        return frozenset(outermost).union(*self._chosen.values())
