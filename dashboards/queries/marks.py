"""Moments that pages mark: when series come, go or change, each at one moment of the page, however far it looks back.

Grafana asks for marks at a hundred moments of the time range: 36 s apart over an hour, seven hours apart over a month.
What came and went between two of them is looked for in the whole window between them, and marked at its end: what is
newer than the last of these moments is not marked yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.metrics.agent import RESULT_INFO
from dashboards.promql import Match, firing, largest, select, unless, where

_BETWEEN = "${__interval_ms}ms"
"""The time from one moment to the next. Not `$__interval`, which Grafana writes in whole units, as 1m of 90 s."""
_STANDS = ":10m"
"""Results and verdicts stand for longer: they are looked for so often, and not at each scrape of a month."""


def begins(selector: str, *, by: Sequence[str]) -> str:
    """Keep the series, those with these labels in common as one, at the first moment that sees them."""
    return unless(largest(_seen(selector), by=by), largest(_before(selector), by=by), on=by)


def ends(selector: str, *, by: Sequence[str]) -> str:
    """Keep the series, those with these labels in common as one, at the first moment that sees them no more."""
    # A series without a mark of its end is there for another five minutes, in which the window may go by.
    return unless(largest(f"{_last(selector)} or {_before(selector)}", by=by), largest(selector, by=by), on=by)


def stands(selector: str, *, by: Sequence[str]) -> str:
    """Keep the series at the first moment that sees them, as `begins`, where they stand for ten minutes or more."""
    return unless(largest(_seen(selector, _STANDS), by=by), largest(_before(selector), by=by), on=by)


def changes(label: str, *, by: Sequence[str], **chosen: str | Match) -> str:
    """Keep the results at the first moment at which a label of their info is another than before, of the same series.

    by: labels of a series. chosen: labels of the results' info. A series that is new has not changed, and where
    several exporters show a history, the first that shows the change counts.
    """
    info = select(RESULT_INFO, **chosen)
    return where(stands(info, by=(*by, label)), _before(info), on=by)


def alerts(*labels: str, **chosen: str | Match) -> str:
    """Keep alerts at the first moment at which they fire, with the texts of these labels as one: `what`.

    chosen: labels of the alerts.
    """
    fires = firing(None, **chosen)
    return with_what(f"({_seen(fires)}) unless {_before(fires)}", dict.fromkeys(labels, ""))


def with_what(expression: str, labels: Mapping[str, str]) -> str:
    """Add the texts of these labels as one, `what`: of each a word that stands before it, if any, and its own."""
    parts = []
    for label, word in labels.items():
        if word:
            expression = f'label_replace({expression}, "{label}_word", "{word}", "{label}", ".+")'
            parts.append(f'"{label}_word"')
        parts.append(f'"{label}"')
    return f'label_join({expression}, "what", " ", {", ".join(parts)})'


def _seen(selector: str, resolution: str = "") -> str:
    return f"{selector} or {_last(selector, resolution)}"


def _last(selector: str, resolution: str = "") -> str:
    return f"last_over_time({selector}[{_BETWEEN}{resolution}])"


def _before(selector: str) -> str:
    return f"{selector} offset {_BETWEEN}"
