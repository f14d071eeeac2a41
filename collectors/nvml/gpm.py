"""Metrics of a GPU's performance monitors (GPM) over the time between two readings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml
from pynvml import NVML_ERROR_NOT_SUPPORTED, NVML_GPM_METRICS_GET_VERSION, NVML_SUCCESS

from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError
from collectors.nvml.plausible import ImplausibleAnswer, check_value

_APART_NS = 150_000_000
"""Two samples must be more than 100 ms, the monitors' period, apart. Source: NVML's documentation of GPM functions."""
_MIB = 1 << 20
MONITORS = "GPM"
"""Name of the question for all GPM metrics together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpmReading:
    """GPM metrics over the time between two samples. pcie_bytes_per_second: by direction, if known."""

    samples: list[Sample]
    pcie_bytes_per_second: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Monitored:
    """A GPM metric. name: in messages. scale: factor from NVML's unit to the metric's."""

    number: int
    name: str
    metric: Metric
    labels: dict[str, str] = field(default_factory=dict)
    scale: float = 0.01


def pcie_rate(direction: str) -> str:
    """Return the name of the question for the PCIe rate in one direction."""
    return f"{MONITORS} PCIe {direction}"


_PCIE_RATE, _NVLINK_RATE = gpu_health_metrics.GPU_PCIE_RATE, gpu_health_metrics.GPU_NVLINK_RATE
_TENSOR, _PIPE = gpu_health_metrics.GPU_TENSOR_ACTIVITY, gpu_health_metrics.GPU_PIPE_ACTIVITY
_SENT, _RECEIVED = {"direction": "sent"}, {"direction": "received"}
_MONITORED = (
    _Monitored(pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, "GPM graphics", gpu_health_metrics.GPU_GRAPHICS_ACTIVITY),
    _Monitored(pynvml.NVML_GPM_METRIC_SM_UTIL, "GPM SM activity", gpu_health_metrics.GPU_SM_ACTIVITY),
    _Monitored(pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, "GPM SM occupancy", gpu_health_metrics.GPU_SM_OCCUPANCY),
    _Monitored(pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "GPM tensor any", _TENSOR, {"kind": "any"}),
    _Monitored(pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL, "GPM tensor hmma", _TENSOR, {"kind": "hmma"}),
    _Monitored(pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL, "GPM tensor imma", _TENSOR, {"kind": "imma"}),
    _Monitored(pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL, "GPM tensor dfma", _TENSOR, {"kind": "dfma"}),
    _Monitored(pynvml.NVML_GPM_METRIC_INTEGER_UTIL, "GPM integer", _PIPE, {"pipe": "integer"}),
    _Monitored(pynvml.NVML_GPM_METRIC_FP64_UTIL, "GPM fp64", _PIPE, {"pipe": "fp64"}),
    _Monitored(pynvml.NVML_GPM_METRIC_FP32_UTIL, "GPM fp32", _PIPE, {"pipe": "fp32"}),
    _Monitored(pynvml.NVML_GPM_METRIC_FP16_UTIL, "GPM fp16", _PIPE, {"pipe": "fp16"}),
    _Monitored(pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, "GPM DRAM bandwidth", gpu_health_metrics.GPU_DRAM_ACTIVITY),
    _Monitored(pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, pcie_rate("sent"), _PCIE_RATE, _SENT, _MIB),
    _Monitored(pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, pcie_rate("received"), _PCIE_RATE, _RECEIVED, _MIB),
    _Monitored(pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, "GPM NVLink sent", _NVLINK_RATE, _SENT, _MIB),
    _Monitored(pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, "GPM NVLink received", _NVLINK_RATE, _RECEIVED, _MIB),
)
"""Percents and MiB/s. Source: nvml.h, nvmlGpmMetricId_t."""


class Profile:
    """A pair of GPM samples of a GPU; each reading replaces the older sample.

    Needs no lock on the monitors, unlike DCGM's profiling. While another program holds them, readings are empty.
    A GPU that MIG splits is not read.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        gpu: str,
        support: FieldSupportTable,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml, self._handle, self._gpu = nvml, handle, gpu
        self._support = support
        self._clock_ns = clock_ns
        self._monitored = list(_MONITORED)
        self._request = pynvml.c_nvmlGpmMetricsGet_t()
        self._pair: list[Any] = []
        self._filled = 0
        self._sampled_ns: int | None = None
        self._latest = GpmReading(samples=[], pcie_bytes_per_second={})

    def read(self) -> GpmReading:
        """Return the metrics since the last reading, or the last answer if that was less than 150 ms ago.

        Raises:
            GpuLost: the GPU is gone.
        """
        now_ns = self._clock_ns()
        is_too_soon = self._sampled_ns is not None and now_ns - self._sampled_ns < _APART_NS
        if is_too_soon or not self._support.is_asked(MONITORS):
            return self._latest
        try:
            self._latest = self._look(now_ns)
        except NVMLError as error:
            self._support.refused(MONITORS, error)
            self._filled = 0
            self._latest = GpmReading(samples=[], pcie_bytes_per_second={})
        return self._latest

    def close(self) -> None:
        """Free the samples."""
        for sample in self._pair:
            self._nvml.nvmlGpmSampleFree(sample)
        self._pair = []
        self._filled = 0

    def _look(self, now_ns: int) -> GpmReading:
        if not self._pair:
            if not self._nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
            self._pair = [self._nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        # The newer sample becomes the older one, and its partner's memory is reused for the new sample.
        self._pair.reverse()
        self._nvml.nvmlGpmSampleGet(self._handle, self._pair[1])
        self._sampled_ns = now_ns
        self._filled = min(self._filled + 1, 2)
        return self._difference() if self._filled == 2 else self._latest

    def _difference(self) -> GpmReading:
        request = self._request
        request.version = NVML_GPM_METRICS_GET_VERSION
        request.sample1, request.sample2 = self._pair
        request.numMetrics = len(self._monitored)
        for place, monitored in enumerate(self._monitored):
            request.metrics[place].metricId = monitored.number
        begun_ns = self._clock_ns()
        self._nvml.nvmlGpmMetricsGet(request)
        self._support.answered(MONITORS, (self._clock_ns() - begun_ns) / 1e9)
        samples: list[Sample] = []
        rates: dict[str, float] = {}
        for place, monitored in enumerate(tuple(self._monitored)):
            answer = request.metrics[place]
            if answer.nvmlReturn != NVML_SUCCESS:
                if not self._support.refused(monitored.name, NVMLError(answer.nvmlReturn)):
                    self._monitored.remove(monitored)
            elif math.isfinite(answer.value):
                value = answer.value * monitored.scale
                try:
                    check_value(monitored.metric, value)
                except ImplausibleAnswer as error:
                    self._support.refused(monitored.name, error)
                    continue
                samples.append(monitored.metric.at(value, gpu=self._gpu, **monitored.labels))
                if monitored.metric is _PCIE_RATE:
                    rates[monitored.labels["direction"]] = value
        return GpmReading(samples=samples, pcie_bytes_per_second=rates)
