"""Samples as Prometheus's text: lines in its two formats, and the exporter that renders the body of /metrics.

Written here because prometheus_client formats each line anew at each scrape, which costs most of the scrape.
Knows neither bench nor any store. Source: Prometheus, text format 0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Literal, TypeVar

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from collectors.metrics.metric import Metric, Sample, Scope
from collectors.prometheus import protobuf
from collectors.prometheus.histogram import CLASSIC_BOUNDS, Exemplar, Histogram

Format = Literal["text", "openmetrics", "protobuf"]
END: dict[Format, str] = {"text": "", "openmetrics": "# EOF\n"}
"""The end of the body, in the formats that are text."""
_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": "", "histogram": ""}


def choose_format(accept: str) -> tuple[Format, str]:
    """Return the format that an Accept header prefers of those there are, and its content type.

    A media range counts by its q, the first of equals first; one with a q of 0 is refused. Where none is known, plain
    text is given.
    """
    for wanted in _by_preference(accept):
        name, *parameters = (part.strip() for part in wanted.split(";"))
        if name == "application/vnd.google.protobuf":
            if _PROTOBUF.issubset(parameter.replace(" ", "") for parameter in parameters):
                return "protobuf", protobuf.CONTENT_TYPE
        elif name in ("application/openmetrics-text", "text/plain", "text/*", "*/*"):
            _, content_type = choose_encoder(wanted)
            is_openmetrics = content_type.startswith("application/openmetrics-text")
            # Dots escape underscores, which no store of these names wants; an OpenMetrics before 1.0 is not written.
            if not content_type.endswith("escaping=dots") and is_openmetrics == name.startswith("application"):
                return "openmetrics" if is_openmetrics else "text", content_type
    return "text", choose_encoder("")[1]


_PROTOBUF = {"proto=io.prometheus.client.MetricFamily", "encoding=delimited"}


def _by_preference(accept: str) -> list[str]:
    """Return the media ranges of an Accept header without those refused, the preferred first."""
    ranges = [(_quality(one), one) for one in accept.split(",")]
    return [one for quality, one in sorted(ranges, key=lambda found: -found[0]) if quality > 0]


def _quality(media_range: str) -> float:
    """Return the q of a media range: 1 where it has none, 0 where it is no number, as it cannot be meant."""
    for parameter in media_range.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def head(metric: Metric, form: Format) -> str:
    """Return a metric's HELP, TYPE and UNIT lines, which come before its samples."""
    if form == "text":
        kind = "gauge" if metric.kind == "info" else metric.kind
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {kind}\n"
    family = metric.name.removesuffix(_SUFFIXES[metric.kind])
    has_unit = metric.kind != "info" and family.endswith(f"_{metric.unit}")
    unit = f"# UNIT {family} {metric.unit}\n" if has_unit else ""
    return f"# HELP {family} {_escaped(metric.help)}\n# TYPE {family} {metric.kind}\n{unit}"


def series(name: str, labels: Mapping[str, str]) -> str:
    """Return the beginning of a series' line, in both formats; labels are sorted, so their order does not matter."""
    if not labels:
        return name
    listed = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{listed}}}"


def line(series_text: str, value: float) -> str:
    """Return the line of a sample, in both formats."""
    return f"{series_text} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


def histogram_lines(form: Format, series_text: str, of: Histogram) -> str:
    """Return the lines of a histogram's classic buckets; in OpenMetrics with their exemplars."""
    name, _, labels = series_text.removesuffix("}").partition("{")
    before, whole = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    lines = []
    for place, (bound, count) in enumerate(zip(_BOUNDS, of.classic_counts(), strict=True)):
        exemplar = of.exemplars.get(place) if form == "openmetrics" else None
        shown = "" if exemplar is None else _exemplar(exemplar)
        lines.append(f'{name}_bucket{{{before}le="{bound}"}} {count}.0{shown}\n')
    return "".join((*lines, line(f"{name}_count{whole}", of.value), line(f"{name}_sum{whole}", of.total)))


_BOUNDS = tuple(floatToGoString(bound) for bound in (*CLASSIC_BOUNDS, math.inf))  # type: ignore[no-untyped-call]


def _exemplar(one: Exemplar) -> str:
    return f" # {series('', one.labels)} {floatToGoString(one.value)} {one.time_ns / 1e9:.3f}"  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# The body of /metrics, from the samples of several sources.

Owned = tuple[Sample, Mapping[str, str]]
"""A sample, and the labels of its owner: a rank, a node or a run."""

Source = Callable[[], Iterable[Owned]]
"""Returns the samples to show now; called at each scrape in that scrape's thread."""

_Key = tuple[str | tuple[str, str], ...]
"""Identifies a sample's series as it is handed in: the metric, and its labels in their given order."""

OWNER_LABELS: dict[Scope, frozenset[str]] = {
    "rank": frozenset({"rank", "slot"}),
    "node": frozenset(),
    "run": frozenset({"strategy", "ranks", "device", "precision", "series"}),
}
"""The labels that each scope's owner adds to a metric's own."""


T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class _Writer(Generic[T]):
    """How the samples of one format are written.

    series: returns what stands before a value, which is kept. sample, histogram: return that with a value.
    known: what stood before each series of the last scrape.
    """

    series: Callable[[Metric, Mapping[str, str]], T]
    sample: Callable[[T, float], T]
    histogram: Callable[[T, Histogram], T]
    known: dict[_Key, T] = field(default_factory=dict)


def _series_of(metric: Metric, labels: Mapping[str, str]) -> str:
    return series(metric.name, labels)


class Exporter:
    """Renders the samples of its sources in the format that is asked for, metric by metric.

    The first sample of a series counts. Samples that do not fit a metric of `metrics` (unknown name, other labels) are
    left out and reported, so that the body stays valid.
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
        self._protobuf = _Writer(series=protobuf.series, sample=protobuf.sample, histogram=protobuf.histogram)
        self._text: dict[Format, _Writer[str]] = {
            form: _Writer(series=_series_of, sample=line, histogram=partial(histogram_lines, form)) for form in END
        }

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type, in the format that the Accept header asks for.

        Metrics are in the order of `metrics`, with the samples of one metric together.
        """
        form, content_type = choose_format(accept)
        if form == "protobuf":
            messages = self._write(self._protobuf)
            return b"".join(protobuf.family(metric, samples) for metric, samples in messages), content_type
        lines = self._write(self._text[form])
        body = "".join(text for metric, samples in lines for text in (head(metric, form), *samples))
        return f"{body}{END[form]}".encode(), content_type

    def _write(self, writer: _Writer[T]) -> list[tuple[Metric, Iterable[T]]]:
        """Return the sources' samples as a writer writes them, by metric.

        What stands before a value is checked and written once, and kept from one scrape to the next while its series
        is given.
        """
        written: dict[str, dict[T, T]] = {name: {} for name in self._metrics}
        known: dict[_Key, T] = {}
        kept, write_sample = writer.known, writer.sample
        for source in self._sources:
            for sample, owner in source():
                name = sample.metric
                key: _Key = (name, *sample.labels.items(), *owner.items())
                begin = kept.get(key)
                if begin is None:
                    if not self._is_valid(sample, owner):
                        continue
                    begin = writer.series(self._metrics[name], {**sample.labels, **owner})
                known[key] = begin
                of_metric = written[name]
                if begin in of_metric:
                    continue
                if isinstance(sample, Histogram):
                    of_metric[begin] = writer.histogram(begin, sample)
                else:
                    of_metric[begin] = write_sample(begin, sample.value)
        writer.known = known
        return [(metric, written[name].values()) for name, metric in self._metrics.items() if written[name]]

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


def _listed(labels: Iterable[str]) -> str:
    return f"({', '.join(sorted(labels))})"
