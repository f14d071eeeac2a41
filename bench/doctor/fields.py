"""What each GPU answers when it is asked, what an answer costs, and why others are left out."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.doctor.page import GpuFields
from collectors.nvml.collector import NvmlCollector

DEADLINE_S = 5.0
"""How long the doctor waits for GPUs; longer than a beat may, since the first answers of a driver are slow."""
_BEATS = 2
_APART_S = 0.25
"""Monitors tell what lies between two readings, more than 0.1 s apart."""


def gpu_fields(collector: NvmlCollector, *, wait: Callable[[float], None] = time.sleep) -> GpuFields:
    """How every GPU of the node stands to every question, of a collector that is closed afterwards."""
    try:
        for _ in range(_BEATS):
            collector.read()
            wait(_APART_S)
        return GpuFields(standings=collector.standings(), left_out=collector.absent)
    finally:
        collector.close()
