"""Numbered fields of a GPU, which NVML returns together, and how each value becomes a sample.

One call of nvmlDeviceGetFieldValues reads all fields of a GPU. NVML_FI_DEV_POWER_AVERAGE is left out on purpose:
nvmlDeviceGetPowerUsage returns the same in a thousandth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml
from pynvml import NVML_ERROR_NOT_SUPPORTED, NVML_SUCCESS

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.nvml.gpm import MONITORS, pcie_rate
from collectors.nvml.library import FieldSupportTable, Nvml, NVMLError
from collectors.nvml.plausible import MOST_STATES, Growth, ImplausibleAnswer, check_value

ALL_LINKS = 0xFFFFFFFF
"""Scope for the sum of an NVLink counter over all links. Source: nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_*."""
_RENUMBERED = 580
"""First driver with today's field numbers for the counters of clock events; 575 used numbers that now belong to power
smoothing. Source: NVML's change log, between v575 and v580."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """A field of a GPU.

    name: in messages. scale: factor from NVML's unit to the metric's.
    scope: the part of the GPU, for example a link, if the field has parts. is_slow: it changes rarely; see `PolledGpu`.
    is_wrapping: it is a 32-bit counter that wraps, and is extended before it becomes a sample.
    states: words for values that are codes; the word becomes the metric's label `action`.
    """

    number: int
    name: str
    metric: Metric
    scale: float = 1
    labels: Mapping[str, str] = field(default_factory=dict)
    scope: int = 0
    is_slow: bool = False
    is_wrapping: bool = False
    states: Mapping[int, str] | None = None

    @property
    def series(self) -> Hashable:
        """The metric and its labels without the GPU's; several fields may share a series."""
        return self.metric.name, frozenset(self.labels.items())

    def sample(self, gpu: str, raw: float) -> Sample:
        """Return the sample for a value in NVML's unit."""
        if self.states is not None:
            return self.metric.at(1, gpu=gpu, action=self.states.get(int(raw), f"action_{int(raw)}"))
        return self.metric.at(raw * self.scale, gpu=gpu, **self.labels)


def fields_of(driver: str, *, per_link: int = 0) -> tuple[Field, ...]:
    """Return the fields to read from a GPU.

    driver: its version; NVIDIA has renumbered some fields. per_link: number of NVLinks whose bytes are read separately;
    0 for the sum alone.
    """
    of_links = (
        _field(
            number,
            f"NVLink {link} bytes {direction}",
            gpu_health_metrics.GPU_NVLINK_LINK_BYTES,
            unit_bytes,
            scope=link,
            link=str(link),
            direction=direction,
        )
        for link in range(per_link)
        for direction, number, unit_bytes in _NVLINK_BYTES
    )
    return (*_FIELDS, *_clock_events(driver), *of_links)


def _field(
    number: int,
    name: str,
    metric: Metric,
    scale: float = 1,
    *,
    scope: int = 0,
    is_slow: bool = False,
    is_wrapping: bool = False,
    **labels: str,
) -> Field:
    return Field(
        number=number,
        name=name,
        metric=metric,
        scale=scale,
        labels=labels,
        scope=scope,
        is_slow=is_slow,
        is_wrapping=is_wrapping,
    )


def _clock_events(driver: str) -> tuple[Field, ...]:
    """Return the counters of throttled time by reason, in nanoseconds.

    Source: DCGM, DCGM_FI_DEV_CLOCKS_EVENT_REASON_*_NS, which are these fields.
    """
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) >= _RENUMBERED:
        thermal = {"software_thermal": 269, "hardware_thermal": 270, "hardware_power_brake": 271}
    else:
        thermal = {"software_thermal": pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL}
    reasons = {
        "software_power_cap": pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
        "sync_boost": pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
        "board_limit": pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
        "reliability": pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
        **thermal,
    }
    return tuple(
        _field(number, f"clocks held by {reason}", gpu_metrics.GPU_CLOCK_HELD_SECONDS, 1e-9, reason=reason)
        for reason, number in reasons.items()
    )


_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""Source: nvml.h, nvmlDeviceGpuRecoveryAction_t."""
_PCIE_BYTES = {
    "sent": pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
    "received": pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
}
_NVLINK_BYTES = (
    ("sent", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 1024),
    ("sent", pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1),
    ("received", pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 1024),
    ("received", pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, 1),
)
"""Fields of each series, with their unit in bytes: the first up to Hopper, in KiB, the second on Blackwell and later.

Source: nvml.h, NVML_FI_DEV_NVLINK_THROUGHPUT_* and NVML_FI_DEV_NVLINK_COUNT_*_BYTES.
"""
_NVLINK_ERRORS = {
    "crc_flit": pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    "crc_data": pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    "replay": pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    "recovery": pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    "ecc": pynvml.NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL,
}
_NVLINK_5_ERRORS = {
    "malformed_packet": pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    "buffer_overrun": pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    "received": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    "received_remote": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    "received_general": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    "link_integrity": pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    "discarded": pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    "link_recovery": pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    "link_recovery_failed": pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    "effective": pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
}
"""Blackwell and later. Symbol errors are left out: healthy links have them and correct them.

They exist only for all links together. Source: DCGM, NvmlFieldRequiresNvLinkAggregate.
"""
_PCIE_ERRORS = {
    "correctable": pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS,
    "non_fatal": pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR,
    "fatal": pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR,
}
_ECC_ERRORS = (
    ("corrected", "volatile", gpu_health_metrics.GPU_ECC_VOLATILE_ERRORS, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    ("uncorrected", "volatile", gpu_health_metrics.GPU_ECC_VOLATILE_ERRORS, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    ("corrected", "aggregate", gpu_health_metrics.GPU_ECC_AGGREGATE_ERRORS, pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
    ("uncorrected", "aggregate", gpu_health_metrics.GPU_ECC_AGGREGATE_ERRORS, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
)
_REPAIRED_MEMORY = (
    ("pages retired", gpu_health_metrics.GPU_RETIRED_PAGES, "corrected", pynvml.NVML_FI_DEV_RETIRED_SBE),
    ("pages retired", gpu_health_metrics.GPU_RETIRED_PAGES, "uncorrected", pynvml.NVML_FI_DEV_RETIRED_DBE),
    ("rows remapped", gpu_health_metrics.GPU_REMAPPED_ROWS, "corrected", pynvml.NVML_FI_DEV_REMAPPED_COR),
    ("rows remapped", gpu_health_metrics.GPU_REMAPPED_ROWS, "uncorrected", pynvml.NVML_FI_DEV_REMAPPED_UNC),
)
_POWER_LIMITS = {
    "minimum": pynvml.NVML_FI_DEV_POWER_MIN_LIMIT,
    "maximum": pynvml.NVML_FI_DEV_POWER_MAX_LIMIT,
    "default": pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT,
    "current": pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT,
}

_FIELDS = (
    _field(pynvml.NVML_FI_DEV_POWER_INSTANT, "instant power", gpu_metrics.GPU_POWER_INSTANT_WATTS, 1e-3),
    _field(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "energy counter", gpu_metrics.GPU_ENERGY_JOULES, 1e-3),
    _field(pynvml.NVML_FI_DEV_MEMORY_TEMP, "memory temperature", gpu_metrics.GPU_MEMORY_TEMPERATURE_CELSIUS),
    *(
        _field(
            number,
            f"PCIe bytes {direction}",
            gpu_health_metrics.GPU_PCIE_BYTES,
            is_wrapping=True,
            direction=direction,
        )
        for direction, number in _PCIE_BYTES.items()
    ),
    *(
        _field(
            number,
            f"NVLink bytes {direction}",
            gpu_health_metrics.GPU_NVLINK_BYTES,
            unit_bytes,
            scope=ALL_LINKS,
            direction=direction,
        )
        for direction, number, unit_bytes in _NVLINK_BYTES
    ),
    *(
        _field(number, f"{kind} ECC errors, {account}", metric, kind=kind)
        for kind, account, metric, number in _ECC_ERRORS
    ),
    _field(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, "PCIe replays", gpu_health_metrics.GPU_PCIE_RETRIES, is_slow=True),
    *(
        _field(number, f"{kind} PCIe errors", gpu_health_metrics.GPU_PCIE_ERRORS, is_slow=True, kind=kind)
        for kind, number in _PCIE_ERRORS.items()
    ),
    *(
        _field(
            number, f"NVLink {kind} errors", gpu_health_metrics.GPU_NVLINK_ERRORS, scope=scope, is_slow=True, kind=kind
        )
        for scope, errors in ((0, _NVLINK_ERRORS), (ALL_LINKS, _NVLINK_5_ERRORS))
        for kind, number in errors.items()
    ),
    *(
        _field(number, f"{limit} power limit", gpu_metrics.GPU_POWER_LIMIT_WATTS, 1e-3, is_slow=True, limit=limit)
        for limit, number in _POWER_LIMITS.items()
    ),
    *(
        _field(number, f"{kind} {repaired}", metric, is_slow=True, kind=kind)
        for repaired, metric, kind, number in _REPAIRED_MEMORY
    ),
    *(
        _field(
            number,
            f"repair of {repair} {state}",
            gpu_health_metrics.GPU_MEMORY_REPAIR,
            is_slow=True,
            repair=repair,
            state=state,
        )
        for repair, state, number in (
            ("pages", "pending", pynvml.NVML_FI_DEV_RETIRED_PENDING),
            ("rows", "pending", pynvml.NVML_FI_DEV_REMAPPED_PENDING),
            ("rows", "failed", pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
        )
    ),
    Field(
        number=pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        name="recovery action",
        metric=gpu_health_metrics.GPU_RECOVERY,
        is_slow=True,
        states=_ACTIONS,
    ),
)


# PCIe: bandwidth of a link, and extension of its 32-bit byte counters.

_TRANSFERS_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
_ENCODING = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
_WRAP = 1 << 32


def link_bytes_per_second(generation: int, lanes: int) -> float | None:
    """Return the link's bandwidth in one direction, without line coding; None for an unknown generation.

    Source: PCI Express Base Specification, rates and encodings by generation (6: flits).
    """
    if generation not in _TRANSFERS_PER_S:
        return None
    return _TRANSFERS_PER_S[generation] * _ENCODING[generation] / 8 * lanes


class WholeCounter:
    """Extends a wrapping 32-bit counter of bytes to one that only grows, from 0.

    A link of 63 GB/s wraps the counter 15 times a second, one of 16 GB/s 4 times. The number of wraps between two
    readings follows from an expected growth that is right to within half a wrap (2 GiB). Without it, the growth is
    known only if the link cannot have carried a whole wrap; otherwise it is unknown, and the count restarts at 0.
    A value above 32 bits shows that this driver's counter does not wrap.
    Source: nvml.h, NVML_FI_DEV_PCIE_COUNT_TX_BYTES ("PCIe transmit bytes. Value can be wrapped"); the driver's own
    counter is an NvU32 (ctrl2080bus.h, NV2080_CTRL_BUS_GET_PEX_UTIL_COUNTERS_PARAMS).
    """

    def __init__(self) -> None:
        self._raw: int | None = None
        self._is_wide = False
        self._bytes = 0

    def advance(self, raw: int, *, expected: float | None, most: float | None) -> int | None:
        """Return the growth since the first reading, or since the last unknown one; None if the growth is unknown.

        expected: the growth since the last reading; None if unknown. most: its upper limit; None if unknown.
        """
        self._is_wide = self._is_wide or raw >= _WRAP
        growth = 0 if self._raw is None else self._growth(self._raw, raw, expected, most)
        self._raw = raw
        self._bytes = 0 if growth is None else self._bytes + growth
        return None if growth is None else self._bytes

    def _growth(self, before: int, raw: int, expected: float | None, most: float | None) -> int | None:
        if self._is_wide:
            return raw - before if raw >= before else raw  # It falls if the driver was reloaded.
        growth = (raw - before) % _WRAP
        # Example: growth of 1 GiB modulo 4 GiB, 12.5 GiB expected: round(11.5 / 4) = 3 wraps, so 13 GiB.
        if expected is not None:
            return growth + _WRAP * max(0, round((expected - growth) / _WRAP))
        return growth if most is not None and most < _WRAP else None


# All fields of a GPU in one call, each with the cost that the driver reports.

_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of the union that holds a value, by its valueType. Source: nvml.h, nvmlValueType_t."""
_MAY_HAVE_WRAPPED = "its counter wraps every 4 GiB, and the link may carry more between two readings"


class FieldBatch:
    """The fields of a GPU, read together. A field that the GPU does not support is requested only once.

    If several fields have the same series, the first that answers becomes its only source.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Any,
        gpu: str,
        fields: Sequence[Field],
        support: FieldSupportTable,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._nvml, self._handle, self._gpu = nvml, handle, gpu
        self._fields = list(fields)
        self._support = support
        self._clock_ns = clock_ns
        self._counters = {field: WholeCounter() for field in fields if field.is_wrapping}
        self._growths = {field: Growth(field.metric) for field in fields if not field.is_wrapping}
        self._of_series: dict[Hashable, list[Field]] = {}
        for each in fields:
            self._of_series.setdefault(each.series, []).append(each)
        self._begun_ns: int | None = None

    def read(
        self, *, is_slow: bool, rates: Mapping[str, float], link: float | None
    ) -> tuple[list[Sample], list[Sample]]:
        """Return the samples of the quick fields and, if `is_slow`, of the slow fields.

        rates: bytes per second in each direction of PCIe since the last call, if known. link: bandwidth of PCIe in one
        direction, in bytes per second.

        Raises:
            GpuLost: the GPU is gone.
        """
        fields = [field for field in self._fields if is_slow or not field.is_slow]
        if not fields:
            return [], []
        begun_ns = self._clock_ns()
        try:
            values = self._nvml.nvmlDeviceGetFieldValues(
                self._handle, [(field.number, field.scope) for field in fields]
            )
        except NVMLError as error:
            if not self._support.refused("fields in one call", error):
                self._fields.clear()
            self._counters = {field: WholeCounter() for field in self._counters}
            return [], []
        since_ns = begun_ns if self._begun_ns is None else self._begun_ns
        self._begun_ns = begun_ns
        expected = {direction: rate * (begun_ns - since_ns) / 1e9 for direction, rate in rates.items()}
        # The interval runs from before the last call until after this one: a call may read a counter at any moment.
        most = None if link is None else link * (self._clock_ns() - since_ns) / 1e9
        quick: list[Sample] = []
        slow: list[Sample] = []
        for answered, value in zip(fields, values, strict=True):
            if answered not in self._fields:  # Another field of its series has just answered.
                continue
            sample = self._sample(answered, value, expected, most)
            if sample is not None:
                (slow if answered.is_slow else quick).append(sample)
        return quick, slow

    def _sample(self, field: Field, value: Any, expected: Mapping[str, float], most: float | None) -> Sample | None:
        code = value.nvmlReturn
        if code == NVML_SUCCESS and value.valueType >= len(_MEMBERS):  # A value type of a newer driver.
            code = NVML_ERROR_NOT_SUPPORTED
        if code != NVML_SUCCESS:
            if not self._support.refused(field.name, NVMLError(code)):
                self._fields.remove(field)
            if field in self._counters:  # Its growth in the meantime is unknown.
                self._counters[field] = WholeCounter()
            return None
        self._support.answered(field.name, value.latencyUsec / 1e6)
        for rival in self._of_series.pop(field.series, ()):
            if rival is not field and rival in self._fields:
                self._fields.remove(rival)
        raw = raw_of(value)
        try:
            if field.states is None:
                check_value(field.metric, raw * field.scale)
            elif not 0 <= raw <= MOST_STATES:
                raise ImplausibleAnswer(f"state {raw:.10g} is implausible: 0 to {MOST_STATES}")
            if field in self._growths:
                self._growths[field].check(raw * field.scale, self._clock_ns())
        except ImplausibleAnswer as error:
            self._support.refused(field.name, error)
            if field in self._counters:
                self._counters[field] = WholeCounter()
            return None
        if field not in self._counters:
            return field.sample(self._gpu, raw)
        direction = field.labels["direction"]
        total = self._counters[field].advance(int(raw), expected=expected.get(direction), most=most)
        if total is None and not all(map(self._support.is_asked, (MONITORS, pcie_rate(direction)))):
            # If GPM provides the rate, it reports the gap itself.
            self._support.doubted(field.name, _MAY_HAVE_WRAPPED)
        return None if total is None else field.sample(self._gpu, total)


def raw_of(value: Any) -> float:
    """Return the number in a field's value, in NVML's unit."""
    raw: float = getattr(value.value, _MEMBERS[value.valueType])
    return raw
