"""Registry of all metrics, in order."""

from __future__ import annotations

from collectors.metrics import agent, gate, gpu, gpu_health, host, probes, rank, results, suites
from collectors.metrics.metric import Metric

METRICS: tuple[Metric, ...] = (
    *rank.METRICS,
    *probes.METRICS,
    *gpu.METRICS,
    *gpu_health.METRICS,
    *host.METRICS,
    *agent.METRICS,
    *results.METRICS,
    *suites.METRICS,
    *gate.METRICS,
)
