"""Every metric there is, in order."""

from __future__ import annotations

from collectors.catalogue import ceilings, communication, gpu, host, info, memory, probes, results, step
from collectors.metric import Metric

METRICS: tuple[Metric, ...] = (
    *step.METRICS,
    *memory.METRICS,
    *communication.METRICS,
    *probes.METRICS,
    *gpu.METRICS,
    *host.METRICS,
    *results.METRICS,
    *ceilings.METRICS,
    *info.METRICS,
)
