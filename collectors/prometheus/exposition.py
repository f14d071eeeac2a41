"""Samples of the catalogue as lines of Prometheus's two formats. Their order is the caller's.

Written here because prometheus_client makes each line anew at each scrape, which costs most of the scrape.
Source: Prometheus, text format 0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from collectors.metrics.metric import Metric, Sample, Scope

Format = Literal["text", "openmetrics"]
END: dict[Format, str] = {"text": "", "openmetrics": "# EOF\n"}
"""What a page ends with."""
_SUFFIXES = {"counter": "_total", "info": "_info", "gauge": ""}


def choose_format(accept: str) -> tuple[Format, str]:
    """The format that an Accept header asks for, and its content type."""
    _, content_type = choose_encoder(accept)
    if content_type.endswith("escaping=dots"):  # It would have underscores escaped, which nobody who stores them wants.
        _, content_type = choose_encoder("")
    return "openmetrics" if content_type.startswith("application/openmetrics-text") else "text", content_type


def head(metric: Metric, form: Format) -> str:
    """The lines that a metric's samples stand under."""
    if form == "text":
        kind = "gauge" if metric.kind == "info" else metric.kind
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {kind}\n"
    family = metric.name.removesuffix(_SUFFIXES[metric.kind])
    has_unit = metric.kind != "info" and family.endswith(f"_{metric.unit}")
    unit = f"# UNIT {family} {metric.unit}\n" if has_unit else ""
    return f"# HELP {family} {_escaped(metric.help)}\n# TYPE {family} {metric.kind}\n{unit}"


def series(name: str, labels: Mapping[str, str]) -> str:
    """A series as its line begins, in both formats; the same text for the same labels in another order."""
    if not labels:
        return name
    listed = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{listed}}}"


def line(series_text: str, value: float) -> str:
    """A sample of a series, in both formats."""
    return f"{series_text} {floatToGoString(value)}\n"  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# What /metrics shows: samples of sources that are handed in, as text. Knows neither bench nor any store.

Owned = tuple[Sample, Mapping[str, str]]
"""A sample, and the labels of what it belongs to."""

Source = Callable[[], Iterable[Owned]]
"""Gives what is to be shown now, at each scrape and in that scrape's thread."""

_Key = tuple[str | tuple[str, str], ...]
"""What tells a sample's series, as it is handed in: the metric, and labels in their order."""

OWNER_LABELS: dict[Scope, frozenset[str]] = {
    "rank": frozenset({"rank", "slot"}),
    "node": frozenset(),
    "run": frozenset({"strategy", "ranks", "device", "precision", "series", "bound"}),
}
"""The labels that each scope's owner adds to a metric's own."""


class Exporter:
    """What the sources give, as text, metric by metric.

    Of a series that is given twice the first counts. What is in no way a sample of the catalogue is left out and said,
    so that the rest stays valid.
    on_notice: is told each kind of thing that is left out, once.
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
        """The body and its content type: OpenMetrics or plain text, as the Accept header asks.

        Metrics stand in the catalogue's order, samples of one metric together.
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
        """What the sources give, by metric. How a series is written is kept from one scrape to the next."""
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
