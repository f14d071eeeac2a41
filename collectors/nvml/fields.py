"""The questions that NVML answers together, by the number of a field, and how each value becomes a sample.

All of a GPU are asked with one call of nvmlDeviceGetFieldValues. Left out on purpose: NVML_FI_DEV_POWER_AVERAGE, since
nvmlDeviceGetPowerUsage gives the same in a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pynvml

from collectors.catalogue import gpu_errors as errors
from collectors.catalogue import gpu_identity as identity
from collectors.catalogue import gpu_links as links
from collectors.catalogue import gpu_power as power
from collectors.metric import Metric, Sample

ALL_LINKS = 0xFFFFFFFF
"""The scope of an NVLink counter's sum over all links. Source: nvml.h, at NVML_FI_DEV_NVLINK_THROUGHPUT_*."""
_KIB = 1024
_RENUMBERED = 580
"""Drivers from this one on have the counters of clock events where today's pynvml has them; before, 575 had them where
power smoothing is now. Source: NVML's change log, between v575 and v580."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """One field of a GPU.

    name: how it is called where it is named. scale: from NVML's unit to the metric's.
    scope: what within the GPU is meant, where the field has parts. is_slow: it changes rarely; see `Gpu`.
    is_wrapping: it is a counter that wraps, to be made whole before it becomes a sample.
    states: words for values that are no numbers; they go into the metric's label `action`.
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

    def sample(self, gpu: str, raw: float) -> Sample:
        """The sample that a value of NVML is."""
        if self.states is not None:
            return self.metric.at(1, gpu=gpu, action=self.states.get(int(raw), f"action_{int(raw)}"))
        return self.metric.at(raw * self.scale, gpu=gpu, **self.labels)


def fields_of(driver: str, *, per_link: int = 0) -> tuple[Field, ...]:
    """The fields to ask a GPU for.

    driver: its version decides numbers that NVIDIA has changed. per_link: of how many NVLinks to ask for each one's
    bytes; 0 for the sum alone.
    """
    return (*_FIELDS, *_clock_events(driver), *(one for link in range(per_link) for one in _of_link(link)))


def _clock_events(driver: str) -> tuple[Field, ...]:
    """Counters in nanoseconds of what held the clocks back.

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
        _quick(number, f"clocks held by {reason}", power.GPU_CLOCK_HELD_SECONDS, 1e-9, reason=reason)
        for reason, number in reasons.items()
    )


def _of_link(link: int) -> tuple[Field, ...]:
    return tuple(
        Field(
            number=number,
            scope=link,
            name=f"NVLink {link} bytes {direction}",
            metric=links.GPU_NVLINK_LINK_BYTES,
            scale=_KIB,
            labels={"link": str(link), "direction": direction},
        )
        for direction, number in _NVLINK_BYTES.items()
    )


def _quick(number: int, name: str, metric: Metric, scale: float = 1, **labels: str) -> Field:
    return Field(number=number, name=name, metric=metric, scale=scale, labels=labels)


def _slow(number: int, name: str, metric: Metric, scale: float = 1, **labels: str) -> Field:
    return Field(number=number, name=name, metric=metric, scale=scale, labels=labels, is_slow=True)


def _bytes(number: int, direction: str) -> Field:
    return Field(
        number=number,
        name=f"PCIe bytes {direction}",
        metric=links.GPU_PCIE_BYTES,
        labels={"direction": direction},
        is_wrapping=True,
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
_NVLINK_BYTES = {
    "sent": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    "received": pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
}
"""In KiB, by nvml.h."""
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
"""Of Blackwell and later. Not the errors of symbols: a sound link has them, and corrects them.

Asked for all links together. Source: DCGM, NvmlFieldRequiresNvLinkAggregate.
"""
_PCIE_ERRORS = {
    "correctable": pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS,
    "non_fatal": pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR,
    "fatal": pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR,
}
_ECC_ERRORS = (
    ("corrected", "volatile", errors.GPU_ECC_VOLATILE_ERRORS, pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
    ("uncorrected", "volatile", errors.GPU_ECC_VOLATILE_ERRORS, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
    ("corrected", "aggregate", errors.GPU_ECC_AGGREGATE_ERRORS, pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL),
    ("uncorrected", "aggregate", errors.GPU_ECC_AGGREGATE_ERRORS, pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL),
)
_POWER_LIMITS = {
    "minimum": pynvml.NVML_FI_DEV_POWER_MIN_LIMIT,
    "maximum": pynvml.NVML_FI_DEV_POWER_MAX_LIMIT,
    "default": pynvml.NVML_FI_DEV_POWER_DEFAULT_LIMIT,
    "current": pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT,
}

_FIELDS = (
    _quick(pynvml.NVML_FI_DEV_POWER_INSTANT, "instant power", power.GPU_POWER_INSTANT_WATTS, 1e-3),
    _quick(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, "energy counter", power.GPU_ENERGY_JOULES, 1e-3),
    _quick(pynvml.NVML_FI_DEV_MEMORY_TEMP, "memory temperature", power.GPU_MEMORY_TEMPERATURE_CELSIUS),
    _bytes(pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, "sent"),
    _bytes(pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, "received"),
    *(
        Field(
            number=number,
            scope=ALL_LINKS,
            name=f"NVLink bytes {direction}",
            metric=links.GPU_NVLINK_BYTES,
            scale=_KIB,
            labels={"direction": direction},
        )
        for direction, number in _NVLINK_BYTES.items()
    ),
    *(
        _quick(number, f"{kind} ECC errors, {account}", metric, kind=kind)
        for kind, account, metric, number in _ECC_ERRORS
    ),
    _slow(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, "PCIe replays", links.GPU_PCIE_RETRIES),
    *(_slow(number, f"{kind} PCIe errors", links.GPU_PCIE_ERRORS, kind=kind) for kind, number in _PCIE_ERRORS.items()),
    *(
        _slow(number, f"NVLink {kind} errors", links.GPU_NVLINK_ERRORS, kind=kind)
        for kind, number in _NVLINK_ERRORS.items()
    ),
    *(
        Field(
            number=number,
            scope=ALL_LINKS,
            name=f"NVLink {kind} errors",
            metric=links.GPU_NVLINK_ERRORS,
            labels={"kind": kind},
            is_slow=True,
        )
        for kind, number in _NVLINK_5_ERRORS.items()
    ),
    *(
        _slow(number, f"{limit} power limit", identity.GPU_POWER_LIMIT_WATTS, 1e-3, limit=limit)
        for limit, number in _POWER_LIMITS.items()
    ),
    _slow(pynvml.NVML_FI_DEV_RETIRED_SBE, "corrected pages retired", errors.GPU_RETIRED_PAGES, kind="corrected"),
    _slow(pynvml.NVML_FI_DEV_RETIRED_DBE, "uncorrected pages retired", errors.GPU_RETIRED_PAGES, kind="uncorrected"),
    _slow(pynvml.NVML_FI_DEV_REMAPPED_COR, "corrected rows remapped", errors.GPU_REMAPPED_ROWS, kind="corrected"),
    _slow(pynvml.NVML_FI_DEV_REMAPPED_UNC, "uncorrected rows remapped", errors.GPU_REMAPPED_ROWS, kind="uncorrected"),
    *(
        _slow(number, f"repair of {repair} {state}", errors.GPU_MEMORY_REPAIR, repair=repair, state=state)
        for repair, state, number in (
            ("pages", "pending", pynvml.NVML_FI_DEV_RETIRED_PENDING),
            ("rows", "pending", pynvml.NVML_FI_DEV_REMAPPED_PENDING),
            ("rows", "failed", pynvml.NVML_FI_DEV_REMAPPED_FAILURE),
        )
    ),
    Field(
        number=pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        name="recovery action",
        metric=errors.GPU_RECOVERY,
        is_slow=True,
        states=_ACTIONS,
    ),
)
