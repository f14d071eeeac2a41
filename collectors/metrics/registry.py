"""Registry of all metrics, in order: as they are measured, and as /metrics exports them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from collectors.metrics import (
    agent,
    gate,
    gpu,
    gpu_health,
    host,
    probes,
    process,
    rank,
    results,
    run_counts,
    suites,
)
from collectors.metrics.metric import Metric, Sample

METRICS: tuple[Metric, ...] = (
    *rank.METRICS,
    *probes.METRICS,
    *gpu.METRICS,
    *gpu_health.METRICS,
    *host.METRICS,
    *agent.METRICS,
    *process.METRICS,
    *run_counts.METRICS,
    *results.METRICS,
    *suites.METRICS,
    *gate.METRICS,
)

SHOWN: tuple[Metric, ...] = tuple(form for metric in METRICS for form in metric.shown())
"""The metrics of /metrics: one for each statistic of a run's figure, and one for each value that must not be summed."""

_SPLIT = {metric.name: metric for metric in METRICS if metric.splits}


def form_of(metric: Metric, labels: Mapping[str, str]) -> tuple[Metric, dict[str, str]]:
    """Return the metric that exports the series with these labels, and the labels that its name does not contain.

    If the definition does not list the value of a split label, the label stays.
    """
    in_name = tuple(
        (split.label, labels[split.label]) for split in metric.splits if labels.get(split.label, "") in split.values
    )
    return _form(metric, in_name), {label: value for label, value in labels.items() if (label, value) not in in_name}


@cache  # Every scrape needs the same metrics.
def _form(metric: Metric, in_name: tuple[tuple[str, str], ...]) -> Metric:
    return metric.alone(**dict(in_name))


def as_shown(sample: Sample) -> Sample:
    """Return the sample as /metrics exports it: with a name of its own if it must not be summed."""
    metric = _SPLIT.get(sample.metric)
    if metric is None:
        return sample
    form, labels = form_of(metric, sample.labels)
    return Sample(form.name, sample.value, labels)
