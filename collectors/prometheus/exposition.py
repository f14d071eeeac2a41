"""The exporter: turns samples of several sources into metrics of prometheus_client, which writes them in every format.

Histograms are classic: buckets, each with its latest observation as exemplar. Each bound is 41 % above the previous
one: 35 bounds from 0.98 ms to 128 s, every other one a power of 2.
Knows neither bench nor any store, and no HTTP.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec
from prometheus_client import Metric as Family
from prometheus_client import samples as client_samples
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample as Line
from prometheus_client.utils import floatToGoString

from collectors.metrics.metric import Metric, Sample, Scope

BOUNDS_S = tuple(math.ldexp((1.0, 2.0**0.5)[half % 2], half // 2) for half in range(-20, 15))
"""Inclusive upper bounds of the buckets; a last bucket without a bound follows."""


class Exemplar(msgspec.Struct, frozen=True, kw_only=True):
    """An observation, with labels that identify it and its Unix time."""

    labels: Mapping[str, str]
    value: float
    time_ns: int


class Histogram(Sample, frozen=True, kw_only=True):
    """All observations of a histogram's series so far; the sample's value is their number.

    total: sum of the observed values. counts: number of values in each bucket. exemplars: by index of the bucket.
    """

    total: float
    counts: list[int]
    exemplars: dict[int, Exemplar]

    def cumulative(self) -> list[int]:
        """Return the number of values up to each of BOUNDS_S, and finally of all values."""
        return list(accumulate(self.counts))


@dataclass(slots=True)
class Observations:
    """Counts observations."""

    total: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))

    def observe(self, value: float, times: int = 1) -> int:
        """Count a value that was observed `times` times; return the index of its bucket.

        Raises:
            ValueError: the value is negative or not finite, so it is not a duration.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"{value} is no duration")
        self.total += times * value
        bucket = bisect_left(BOUNDS_S, value)
        self.counts[bucket] += times
        return bucket


def histogram_of(
    metric: Metric, parts: Iterable[Observations], *, exemplars: Mapping[int, Exemplar] | None = None, **labels: str
) -> Histogram:
    """Return a series of a metric, from all observations of the parts. exemplars: by index of the bucket.

    Raises:
        ValueError: a label is missing or unknown.
    """
    whole = Observations()
    for part in parts:
        whole.total += part.total
        whole.counts = [before + more for before, more in zip(whole.counts, part.counts, strict=True)]
    return Histogram(
        metric=metric.name,
        value=sum(whole.counts),
        labels=metric.at(0, **labels).labels,
        total=whole.total,
        counts=whole.counts,
        exemplars=dict(exemplars or {}),
    )


Owned = tuple[Sample, Mapping[str, str]]
"""A sample, and the labels of its owner, which is a rank, a node or a run."""

Source = Callable[[], Iterable[Owned]]
"""Returns the samples to export now; called at each scrape, in that scrape's thread."""

OWNER_LABELS: dict[Scope, frozenset[str]] = {
    "rank": frozenset({"rank", "slot"}),
    "node": frozenset(),
    "run": frozenset({"strategy", "ranks", "device", "precision", "series"}),
}
"""The labels that each scope's owner adds to a metric's own."""

_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": "", "histogram": ""}
_BOUNDS = tuple(floatToGoString(bound) for bound in (*BOUNDS_S, math.inf))  # type: ignore[no-untyped-call]


class Exporter(Collector):
    """Collects the samples of its sources, metric by metric, in the order of `metrics`.

    If a series has several samples, the first counts. Samples that match no metric of `metrics` (unknown name, other
    labels) are left out and reported, so that the page stays valid.
    on_notice: takes a message, once for each metric whose samples are left out.
    """

    def __init__(
        self, metrics: Sequence[Metric], sources: Sequence[Source], *, on_notice: Callable[[str], None]
    ) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._labels = {metric.name: frozenset(metric.labels) for metric in metrics}
        self._sources = sources
        self._on_notice = on_notice
        self._refused: set[str] = set()

    def collect(self) -> Iterator[Family]:
        """Yield each metric that has samples now, with its samples."""
        lines: dict[str, dict[frozenset[tuple[str, str]], list[Line]]] = {name: {} for name in self._metrics}
        for source in self._sources:
            for sample, owner in source():
                if not self._is_valid(sample, owner):
                    continue
                labels = {**sample.labels, **owner}
                series, of_metric = frozenset(labels.items()), lines[sample.metric]
                if series in of_metric:
                    continue
                if isinstance(sample, Histogram):
                    of_metric[series] = list(_histogram(sample, labels))
                else:
                    of_metric[series] = [Line(sample.metric, labels, sample.value)]
        for name, metric in self._metrics.items():
            if lines[name]:
                family = _family(metric)
                family.samples = [line for series_lines in lines[name].values() for line in series_lines]
                yield family

    def _is_valid(self, sample: Sample, owner: Mapping[str, str]) -> bool:
        name = sample.metric
        metric = self._metrics.get(name)
        if metric is None:
            self._refuse(name, f"metric {name} is in no catalogue of this version and is left out")
            return False
        is_histogram = isinstance(sample, Histogram)
        if is_histogram != (metric.kind == "histogram"):
            form = "histogram" if is_histogram else "value"
            self._refuse(name, f"metric {name} is a {metric.kind} and was given as a {form}: left out")
            return False
        if sample.labels.keys() != self._labels[name]:
            self._refuse(
                name, f"metric {name} has labels {_listed(sample.labels)}, not {_listed(metric.labels)}: left out"
            )
            return False
        if owner.keys() != OWNER_LABELS[metric.scope]:
            self._refuse(name, f"metric {name} is of a {metric.scope} and was given as of {_listed(owner)}: left out")
            return False
        return True

    def _refuse(self, name: str, text: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            self._on_notice(text)


def _family(metric: Metric) -> Family:
    """Return the metric without samples; OpenMetrics omits the suffix in the name of a counter or an info."""
    name = metric.name.removesuffix(_SUFFIXES[metric.kind])
    has_unit = metric.kind != "info" and name.endswith(f"_{metric.unit}")
    return Family(name, metric.help, metric.kind, metric.unit if has_unit else "")


def _histogram(sample: Histogram, labels: Mapping[str, str]) -> Iterator[Line]:
    name = sample.metric
    for place, (bound, count) in enumerate(zip(_BOUNDS, sample.cumulative(), strict=True)):
        newest = sample.exemplars.get(place)
        exemplar = (
            None if newest is None else client_samples.Exemplar(dict(newest.labels), newest.value, newest.time_ns / 1e9)
        )
        yield Line(f"{name}_bucket", {**labels, "le": bound}, count, exemplar=exemplar)
    yield Line(f"{name}_count", dict(labels), sample.value)
    yield Line(f"{name}_sum", dict(labels), sample.total)


def _listed(labels: Iterable[str]) -> str:
    return f"({', '.join(sorted(labels))})"
