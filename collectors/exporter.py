"""What /metrics shows: samples of sources that are handed in, as text. Knows neither bench nor any store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from collectors.exposition import END, choose_format, head, line, series
from collectors.metric import Metric, Sample, Scope

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
