"""Quantiles of what a histogram observed, by its classic buckets or its native ones."""

from __future__ import annotations

from collections.abc import Sequence

from collectors.metrics.metric import Metric
from dashboards.promql import SLOT, Match, select, total, window


def histogram_quantile(
    metric: Metric,
    quantile: float,
    over_minutes: int | None = None,
    /,
    *,
    by: Sequence[str] = SLOT,
    is_native: bool = False,
    **labels: str | Match,
) -> str:
    """Return a quantile of what a histogram observed lately, over all series that have these labels in common.

    It is interpolated in the bucket that holds it. over_minutes: the window; None for one that Grafana fits to the
    scrape interval. is_native: from the native buckets, where Prometheus keeps those; then it has no classic ones.

    Raises:
        ValueError: the metric is no histogram, or has no such label.
    """
    observed = _observed(metric, is_native=is_native, **labels)
    return _quantile(quantile, f"rate({observed}[{window(over_minutes)}])", by, is_native=is_native)


def histogram_quantile_so_far(
    metric: Metric, quantile: float, /, *, by: Sequence[str] = SLOT, is_native: bool = False, **labels: str | Match
) -> str:
    """Return a quantile of all that a histogram has observed since it began, as of a whole run; see above.

    Raises:
        ValueError: the metric is no histogram, or has no such label.
    """
    return _quantile(quantile, _observed(metric, is_native=is_native, **labels), by, is_native=is_native)


def _quantile(quantile: float, observed: str, by: Sequence[str], *, is_native: bool) -> str:
    return f"histogram_quantile({quantile:g}, {total(observed, by=by if is_native else ('le', *by))})"


def _observed(metric: Metric, *, is_native: bool, **labels: str | Match) -> str:
    if metric.kind != "histogram":
        raise ValueError(f"{metric.name} is a {metric.kind}; only a histogram has quantiles")
    selected = select(metric, **labels)
    return selected if is_native else f"{metric.name}_bucket{selected.removeprefix(metric.name)}"
