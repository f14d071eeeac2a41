"""Every metric there is, in order."""

from __future__ import annotations

from collectors.catalogue import communication, gpu, host, info, memory, results, step
from collectors.metric import Metric

METRICS: tuple[Metric, ...] = (
    *step.METRICS,
    *memory.METRICS,
    *communication.METRICS,
    *gpu.METRICS,
    *host.METRICS,
    *results.METRICS,
    *info.METRICS,
)
