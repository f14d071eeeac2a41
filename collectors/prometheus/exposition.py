"""The exporter: the samples of several sources as metrics of prometheus_client, which writes them in every format.

Knows neither bench nor any store, and no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.samples import Sample as Line
from prometheus_client.utils import floatToGoString

from collectors.metrics.metric import Metric, Sample, Scope
from collectors.prometheus.histogram import BOUNDS_S, Histogram

Owned = tuple[Sample, Mapping[str, str]]
"""A sample, and the labels of its owner: a rank, a node or a run."""

Source = Callable[[], Iterable[Owned]]
"""Returns the samples to show now; called at each scrape in that scrape's thread."""

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

    The first sample of a series counts. Samples that do not fit a metric of `metrics` (unknown name, other labels) are
    left out and reported, so that the page stays valid.
    on_notice: is told once of each metric whose samples are left out.
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
        """Yield each metric that has samples now, with all of them."""
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
            given = "histogram" if is_histogram else "value"
            self._refuse(name, f"metric {name} is a {metric.kind} and was given as a {given}: left out")
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
    """Return the metric without samples; OpenMetrics names a counter or an info without its suffix."""
    name = metric.name.removesuffix(_SUFFIXES[metric.kind])
    has_unit = metric.kind != "info" and name.endswith(f"_{metric.unit}")
    return Family(name, metric.help, metric.kind, metric.unit if has_unit else "")


def _histogram(sample: Histogram, labels: Mapping[str, str]) -> Iterator[Line]:
    name = sample.metric
    for place, (bound, count) in enumerate(zip(_BOUNDS, sample.cumulative(), strict=True)):
        newest = sample.exemplars.get(place)
        exemplar = None if newest is None else Exemplar(dict(newest.labels), newest.value, newest.time_ns / 1e9)
        yield Line(f"{name}_bucket", {**labels, "le": bound}, count, exemplar=exemplar)
    yield Line(f"{name}_count", dict(labels), sample.value)
    yield Line(f"{name}_sum", dict(labels), sample.total)


def _listed(labels: Iterable[str]) -> str:
    return f"({', '.join(sorted(labels))})"
