"""Metrics of what went wrong in a GPU: its memory's errors, their repair, and the events that its driver reports."""

from __future__ import annotations

from collectors.metric import Metric

GPU_ECC_VOLATILE_ERRORS = Metric(
    name="observatory_gpu_ecc_volatile_errors_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "kind"),
    help="Memory errors that ECC found since the driver was loaded: corrected or uncorrected.",
)
GPU_ECC_AGGREGATE_ERRORS = Metric(
    name="observatory_gpu_ecc_aggregate_errors_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "kind"),
    help=(
        "Memory errors that ECC found in the GPU's life, those since the driver was loaded among them: corrected or "
        "uncorrected."
    ),
)
GPU_REMAPPED_ROWS = Metric(
    name="observatory_gpu_remapped_rows_total",
    kind="counter",
    unit="rows",
    scope="node",
    labels=("gpu", "kind"),
    help=(
        "Rows of device memory that were replaced by spare ones after errors: corrected or uncorrected; Ampere "
        "and later."
    ),
)
GPU_RETIRED_PAGES = Metric(
    name="observatory_gpu_retired_pages_total",
    kind="counter",
    unit="pages",
    scope="node",
    labels=("gpu", "kind"),
    help="Pages of device memory that were taken out of use after errors: corrected or uncorrected; before Ampere.",
)
GPU_MEMORY_REPAIR = Metric(
    name="observatory_gpu_memory_repair_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu", "repair", "state"),
    help="1 where a repair of the GPU's memory (rows or pages) waits for a reset (pending) or has failed, 0 where not.",
)
GPU_RECOVERY = Metric(
    name="observatory_gpu_recovery_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("gpu", "action"),
    help=(
        "What the driver says the GPU needs before it can be trusted again: none, gpu_reset, node_reboot, "
        "drain_p2p, drain_and_reset and their like; the value is always 1."
    ),
)
GPU_EVENTS = Metric(
    name="observatory_gpu_events_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "event"),
    help=(
        "Errors that the driver reported of the GPU since the agent began to listen, by kind; xid are those of "
        "NVIDIA's list of XIDs. Those of the slices of a GPU that MIG split are counted with the GPU's."
    ),
)
GPU_EVENT_TIME = Metric(
    name="observatory_gpu_event_timestamp_seconds",
    kind="gauge",
    unit="timestamp_seconds",
    scope="node",
    labels=("gpu", "event"),
    help="When the driver last reported an error of this kind, in seconds since 1970.",
)
GPU_XIDS = Metric(
    name="observatory_gpu_xid_errors_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "slice", "xid"),
    help=(
        "XID errors of the GPU since the agent began to listen, by the number that NVIDIA's list explains; slice is "
        "the part of one that MIG split to which the driver put it down, empty for the whole."
    ),
)
GPU_XID_TIME = Metric(
    name="observatory_gpu_xid_timestamp_seconds",
    kind="gauge",
    unit="timestamp_seconds",
    scope="node",
    labels=("gpu", "slice", "xid"),
    help="When the driver last reported an XID of this number, in seconds since 1970.",
)

METRICS = (
    GPU_ECC_VOLATILE_ERRORS,
    GPU_ECC_AGGREGATE_ERRORS,
    GPU_REMAPPED_ROWS,
    GPU_RETIRED_PAGES,
    GPU_MEMORY_REPAIR,
    GPU_RECOVERY,
    GPU_EVENTS,
    GPU_EVENT_TIME,
    GPU_XIDS,
    GPU_XID_TIME,
)
