"""Samples of the catalogue as lines of Prometheus's two formats. Their order is the caller's.

Written here because prometheus_client makes each line anew at each scrape, which costs most of the scrape.
Source: Prometheus, text format 0.0.4; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from collectors.metric import Metric

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
