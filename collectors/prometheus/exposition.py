"""Samples as Prometheus's text: lines in its two formats, and the exporter that renders the body of /metrics.

Written here because prometheus_client formats each line anew at each scrape, which costs most of the scrape.
Knows neither bench nor any store. Source: Prometheus, text format 0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from collectors.metrics.metric import Metric, Sample, Scope

Format = Literal["text", "openmetrics"]
END: dict[Format, str] = {"text": "", "openmetrics": "# EOF\n"}
"""The end of the body."""
_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": ""}


def choose_format(accept: str) -> tuple[Format, str]:
    """Return the format that an Accept header asks for, and its content type."""
    _, content_type = choose_encoder(accept)
    if content_type.endswith("escaping=dots"):  # It escapes underscores, which no store of these names wants.
        _, content_type = choose_encoder("")
    return "openmetrics" if content_type.startswith("application/openmetrics-text") else "text", content_type


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
    "run": frozenset({"strategy", "ranks", "device", "precision", "series", "bound"}),
}
"""The labels that each scope's owner adds to a metric's own."""


class Exporter:
    """Renders the samples of its sources as text, metric by metric.

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
        self._known: dict[_Key, str] = {}

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the body and its content type: OpenMetrics or plain text, as the Accept header asks.

        Metrics are in the order of `metrics`, with the samples of one metric together.
        """
        form, content_type = choose_format(accept)
        lines = self._lines()
        body = "".join(
            text
            for name, metric in self._metrics.items()
            if name in lines
            for text in (head(metric, form), *lines[name])
        )
        return f"{body}{END[form]}".encode(), content_type

    def _lines(self) -> dict[str, list[str]]:
        """Return the lines of the sources' samples, by metric.

        The text of a series is checked and formatted once, and kept from one scrape to the next while it is given.
        """
        lines: dict[str, list[str]] = {}
        known: dict[_Key, str] = {}
        seen: set[str] = set()
        for source in self._sources:
            for sample, owner in source():
                name = sample.metric
                key: _Key = (name, *sample.labels.items(), *owner.items())
                text = self._known.get(key)
                if text is None:
                    if not self._is_valid(sample, owner):
                        continue
                    text = series(name, {**sample.labels, **owner})
                known[key] = text
                if text not in seen:
                    seen.add(text)
                    lines.setdefault(name, []).append(line(text, sample.value))
        self._known = known
        return lines

    def _is_valid(self, sample: Sample, owner: Mapping[str, str]) -> bool:
        name = sample.metric
        metric = self._metrics.get(name)
        if metric is None:
            self._refuse(name, f"metric {name} is in no catalogue of this version and is left out")
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
