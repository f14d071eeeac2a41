"""Metrics of a GPU's performance monitors (GPM) over the time between two readings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml
from pynvml import NVML_ERROR_NOT_SUPPORTED, NVML_GPM_METRICS_GET_VERSION, NVML_SUCCESS

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError

_APART_NS = 150_000_000
"""Two samples must be more than 100 ms apart, the period of the monitors. Source: NVML's page of GPM functions."""
_MIB = 1 << 20
MONITORS = "GPM"
"""Name of the question for all GPM metrics together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """GPM metrics over the time between two samples. pcie_bytes_per_second: by direction, where it is known."""

    samples: list[Sample]
    pcie_bytes_per_second: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Monitored:
    number: int
    name: str
    metric: Metric
    labels: dict[str, str]
    scale: float


def pcie_rate(direction: str) -> str:
    """Return the name of the question for the PCIe rate in one direction."""
    return f"{MONITORS} PCIe {direction}"


def _percent(number: int, name: str, metric: Metric, **labels: str) -> _Monitored:
    return _Monitored(number=number, name=f"GPM {name}", metric=metric, labels=labels, scale=0.01)


def _rate(number: int, name: str, metric: Metric, direction: str) -> _Monitored:
    return _Monitored(
        number=number, name=f"GPM {name} {direction}", metric=metric, labels={"direction": direction}, scale=_MIB
    )


_MONITORED = (
    _percent(pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, "graphics", gpu_health_metrics.GPU_GRAPHICS_ACTIVITY),
    _percent(pynvml.NVML_GPM_METRIC_SM_UTIL, "SM activity", gpu_health_metrics.GPU_SM_ACTIVITY),
    _percent(pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, "SM occupancy", gpu_health_metrics.GPU_SM_OCCUPANCY),
    _percent(pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "tensor any", gpu_health_metrics.GPU_TENSOR_ACTIVITY, kind="any"),
    _percent(
        pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL, "tensor hmma", gpu_health_metrics.GPU_TENSOR_ACTIVITY, kind="hmma"
    ),
    _percent(
        pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL, "tensor imma", gpu_health_metrics.GPU_TENSOR_ACTIVITY, kind="imma"
    ),
    _percent(
        pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL, "tensor dfma", gpu_health_metrics.GPU_TENSOR_ACTIVITY, kind="dfma"
    ),
    _percent(pynvml.NVML_GPM_METRIC_INTEGER_UTIL, "integer", gpu_health_metrics.GPU_PIPE_ACTIVITY, pipe="integer"),
    _percent(pynvml.NVML_GPM_METRIC_FP64_UTIL, "fp64", gpu_health_metrics.GPU_PIPE_ACTIVITY, pipe="fp64"),
    _percent(pynvml.NVML_GPM_METRIC_FP32_UTIL, "fp32", gpu_health_metrics.GPU_PIPE_ACTIVITY, pipe="fp32"),
    _percent(pynvml.NVML_GPM_METRIC_FP16_UTIL, "fp16", gpu_health_metrics.GPU_PIPE_ACTIVITY, pipe="fp16"),
    _percent(pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, "DRAM bandwidth", gpu_health_metrics.GPU_DRAM_ACTIVITY),
    _rate(pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, "PCIe", gpu_health_metrics.GPU_PCIE_RATE, "sent"),
    _rate(pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, "PCIe", gpu_health_metrics.GPU_PCIE_RATE, "received"),
    _rate(pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, "NVLink", gpu_health_metrics.GPU_NVLINK_RATE, "sent"),
    _rate(pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, "NVLink", gpu_health_metrics.GPU_NVLINK_RATE, "received"),
)
"""Percents and MiB/s. Source: nvml.h, nvmlGpmMetricId_t."""


class Profile:
    """A pair of GPM samples of a GPU; each reading replaces the older one.

    Needs no lock on the monitors, unlike DCGM's profiling. Where another program holds them, a reading is empty.
    A GPU that MIG splits is not read.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        gpu: str,
        standings: FieldSupportTable,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml, self._handle, self._gpu = nvml, handle, gpu
        self._standings = standings
        self._clock_ns = clock_ns
        self._monitored = list(_MONITORED)
        self._wanted = pynvml.c_nvmlGpmMetricsGet_t()
        self._pair: list[Any] = []
        self._filled = 0
        self._sampled_ns: int | None = None
        self._seen = Seen(samples=[], pcie_bytes_per_second={})

    def read(self) -> Seen:
        """Return the metrics since the last reading; the last answer again if that was less than 150 ms ago.

        Raises:
            GpuLost: the GPU is gone.
        """
        now_ns = self._clock_ns()
        is_too_soon = self._sampled_ns is not None and now_ns - self._sampled_ns < _APART_NS
        if is_too_soon or not self._standings.is_asked(MONITORS):
            return self._seen
        try:
            self._seen = self._look(now_ns)
        except NVMLError as error:
            self._standings.refused(MONITORS, error)
            self._filled = 0
            self._seen = Seen(samples=[], pcie_bytes_per_second={})
        return self._seen

    def close(self) -> None:
        """Free the samples."""
        for sample in self._pair:
            self._nvml.nvmlGpmSampleFree(sample)
        self._pair = []
        self._filled = 0

    def _look(self, now_ns: int) -> Seen:
        if not self._pair:
            if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
            self._pair = [self._nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        # The newer sample becomes the older one, whose memory takes the new sample.
        self._pair.reverse()
        self._nvml.nvmlGpmSampleGet(self._handle, self._pair[1])
        self._sampled_ns = now_ns
        self._filled = min(self._filled + 1, 2)
        return self._difference() if self._filled == 2 else self._seen

    def _difference(self) -> Seen:
        wanted = self._wanted
        wanted.version = NVML_GPM_METRICS_GET_VERSION
        wanted.sample1, wanted.sample2 = self._pair
        wanted.numMetrics = len(self._monitored)
        for place, monitored in enumerate(self._monitored):
            wanted.metrics[place].metricId = monitored.number
        begun_ns = self._clock_ns()
        self._nvml.nvmlGpmMetricsGet(wanted)
        self._standings.answered(MONITORS, (self._clock_ns() - begun_ns) / 1e9)
        samples: list[Sample] = []
        rates: dict[str, float] = {}
        for place, monitored in enumerate(tuple(self._monitored)):
            answer = wanted.metrics[place]
            if answer.nvmlReturn != NVML_SUCCESS:
                if not self._standings.refused(monitored.name, NVMLError(answer.nvmlReturn)):
                    self._monitored.remove(monitored)
            elif math.isfinite(answer.value):
                value = answer.value * monitored.scale
                samples.append(monitored.metric.at(value, gpu=self._gpu, **monitored.labels))
                if monitored.metric is gpu_health_metrics.GPU_PCIE_RATE:
                    rates[monitored.labels["direction"]] = value
        return Seen(samples=samples, pcie_bytes_per_second=rates)
