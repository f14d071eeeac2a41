"""Every metric there is, in order."""

from __future__ import annotations

from collectors.catalogue import memory, results, step
from collectors.metric import Metric

METRICS: tuple[Metric, ...] = (*step.METRICS, *memory.METRICS, *results.METRICS)
