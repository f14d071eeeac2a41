"""Registry of all metrics, in order: those that are measured, and those that are shown of them."""

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
"""The metrics of /metrics: of a run's figure one for each statistic, and one for each value that makes no sum."""

_SPLIT = {metric.name: metric for metric in METRICS if metric.splits}


def form_of(metric: Metric, labels: Mapping[str, str]) -> tuple[Metric, dict[str, str]]:
    """Return the metric that shows the series with these labels, and those of the labels that its name does not tell.

    A value of a split label that the definition does not list stays a label.
    """
    in_name = tuple(
        (split.label, labels[split.label]) for split in metric.splits if labels.get(split.label, "") in split.values
    )
    return _form(metric, in_name), {label: value for label, value in labels.items() if (label, value) not in in_name}


@cache  # A scrape asks for the same ones again.
def _form(metric: Metric, in_name: tuple[tuple[str, str], ...]) -> Metric:
    return metric.alone(**dict(in_name))


def as_shown(sample: Sample) -> Sample:
    """Return the sample as it is shown: one of a value that makes no sum under a name of its own."""
    metric = _SPLIT.get(sample.metric)
    if metric is None:
        return sample
    form, labels = form_of(metric, sample.labels)
    return Sample(form.name, sample.value, labels)
