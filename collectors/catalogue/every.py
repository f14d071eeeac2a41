"""Every metric there is, in order."""

from __future__ import annotations

from collectors.catalogue import (
    agent,
    ceilings,
    communication,
    gpu,
    gpu_errors,
    gpu_identity,
    gpu_links,
    gpu_power,
    gpu_profile,
    gpu_reading,
    host,
    info,
    joined_ranks,
    memory,
    pipeline,
    placement,
    probes,
    results,
    step,
)
from collectors.metric import Metric

METRICS: tuple[Metric, ...] = (
    *step.METRICS,
    *memory.METRICS,
    *communication.METRICS,
    *probes.METRICS,
    *gpu_identity.METRICS,
    *gpu.METRICS,
    *gpu_power.METRICS,
    *gpu_links.METRICS,
    *gpu_errors.METRICS,
    *gpu_profile.METRICS,
    *gpu_reading.METRICS,
    *host.METRICS,
    *agent.METRICS,
    *results.METRICS,
    *joined_ranks.METRICS,
    *pipeline.METRICS,
    *ceilings.METRICS,
    *placement.METRICS,
    *info.METRICS,
)
