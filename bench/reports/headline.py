"""The one figure that a list of runs shows of each."""

from __future__ import annotations

from dataclasses import replace

from bench.judgement.estimate import Estimate
from bench.reports.figures import figure
from bench.summary import Summary
from collectors.catalogue import ceilings, results
from collectors.metric import Metric

_HEADLINES: tuple[tuple[Metric, str], ...] = (
    (results.RUN_TOKENS_PER_SECOND, "tokens/s"),
    (ceilings.RUN_MATMUL_FLOPS, "at best"),
    (ceilings.RUN_COPY_BANDWIDTH, "at best"),
    (ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH, "busbw at best"),
)
"""Of the first that a run has, the highest is its headline."""


def best(summary: Summary, metric: Metric) -> Estimate | None:
    """The highest estimate of the metric over its labels, None where there is none."""
    found = [estimate for estimate in summary.estimates if estimate.metric == metric.name]
    return max(found, key=lambda estimate: estimate.median, default=None)


def headline(summary: Summary) -> str:
    """The run's figure, and what it is of; a dash where nothing was measured."""
    estimate = headline_estimate(summary)
    if estimate is None:
        return "-"
    words = next(words for metric, words in _HEADLINES if metric.name == estimate.metric)
    place = " ".join(estimate.labels.get(label, "") for label in ("collective", "kind")).strip()
    return " ".join(part for part in (figure(estimate), words, place) if part)


def headline_estimate(summary: Summary) -> Estimate | None:
    """The estimate behind the headline, None where nothing was measured.

    The highest of many has no interval of its own, so a probe's is left out.
    """
    for metric, _ in _HEADLINES:
        estimate = best(summary, metric)
        if estimate is not None:
            return estimate if summary.case.model is not None else replace(estimate, low=None, high=None)
    return None
