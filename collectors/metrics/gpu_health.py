"""Metrics of a GPU's health and activity: errors and repairs, PCIe and NVLink, GPM, and the cost of reading it."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

# Traffic and errors of PCIe and NVLink.

GPU_PCIE_BYTES = NODE.counter(
    "observatory_gpu_pcie_bytes_total{gpu, direction}",
    "Bytes sent and received by the GPU over PCIe since the agent could count them without a gap. NVML's counter"
    " wraps every 4 GiB: left out where the link can carry more than that between two readings and GPM's rate does not"
    " tell how often it wrapped, as before Hopper at a beat of 1 s.",
)
GPU_PCIE_RETRIES = NODE.counter(
    "observatory_gpu_pcie_retries_total{gpu}", "Packets that the GPU's PCIe link had to send again."
)
GPU_PCIE_ERRORS = NODE.counter(
    "observatory_gpu_pcie_errors_total{gpu, kind}", "Errors of the GPU's PCIe link: correctable, non_fatal or fatal."
)
GPU_PCIE_RATE = NODE.gauge(
    "observatory_gpu_pcie_bytes_per_second{gpu, direction}",
    "Rate at which the GPU sent and received over PCIe between the last two readings, by GPM; Hopper and later.",
)
GPU_NVLINK_BYTES = NODE.counter(
    "observatory_gpu_nvlink_bytes_total{gpu, direction}",
    "Bytes of data sent and received by the GPU over all its NVLinks, without the protocol's own.",
)
GPU_NVLINK_LINK_BYTES = NODE.counter(
    "observatory_gpu_nvlink_link_bytes_total{gpu, link, direction}",
    "Bytes of data sent and received by the GPU over one of its NVLinks; shown only where it is asked for.",
)
GPU_NVLINK_RATE = NODE.gauge(
    "observatory_gpu_nvlink_bytes_per_second{gpu, direction}",
    "Rate at which the GPU sent and received over all its NVLinks between the last two readings, by GPM; Hopper and"
    " later.",
)
GPU_NVLINK_ERRORS = NODE.counter(
    "observatory_gpu_nvlink_errors_total{gpu, kind}",
    "Errors on all of the GPU's NVLinks: crc_flit, crc_data, replay, recovery or ecc; on Blackwell and later"
    " malformed_packet, buffer_overrun, received, received_remote, received_general, link_integrity, discarded,"
    " link_recovery, link_recovery_failed or effective. One fault may count in several kinds.",
)


# Memory errors, their repair, and the events that the driver reports.

GPU_ECC_VOLATILE_ERRORS = NODE.counter(
    "observatory_gpu_ecc_volatile_errors_total{gpu, kind}",
    "Memory errors that ECC found since the driver was loaded: corrected or uncorrected.",
)
GPU_ECC_AGGREGATE_ERRORS = NODE.counter(
    "observatory_gpu_ecc_aggregate_errors_total{gpu, kind}",
    "Memory errors that ECC found in the GPU's life, those since the driver was loaded among them: corrected or"
    " uncorrected.",
)
GPU_REMAPPED_ROWS = NODE.counter(
    "observatory_gpu_remapped_rows_total{gpu, kind}",
    "Rows of device memory that were replaced by spare ones after errors: corrected or uncorrected; Ampere and later.",
)
GPU_RETIRED_PAGES = NODE.counter(
    "observatory_gpu_retired_pages_total{gpu, kind}",
    "Pages of device memory that were taken out of use after errors: corrected or uncorrected; before Ampere.",
)
GPU_MEMORY_REPAIR = NODE.gauge(
    "observatory_gpu_memory_repair_ratio{gpu, repair, state}",
    "1 where a repair of the GPU's memory (rows or pages) waits for a reset (pending) or has failed, 0 where not.",
)
GPU_RECOVERY = NODE.info(
    "observatory_gpu_recovery_info{gpu, action}",
    "What the driver says the GPU needs before it can be trusted again: none, gpu_reset, node_reboot, drain_p2p,"
    " drain_and_reset and their like; the value is always 1.",
)
GPU_EVENTS = NODE.counter(
    "observatory_gpu_events_total{gpu, event}",
    "Errors that the driver reported of the GPU since the agent began to listen, by kind; xid are those of NVIDIA's"
    " list of XIDs. Those of the slices of a GPU that MIG split are counted with the GPU's.",
    unit="errors",
)
GPU_EVENT_TIME = NODE.gauge(
    "observatory_gpu_event_timestamp_seconds{gpu, event}",
    "When the driver last reported an error of this kind, in seconds since 1970.",
)
GPU_XIDS = NODE.counter(
    "observatory_gpu_xid_errors_total{gpu, slice, xid}",
    "XID errors of the GPU since the agent began to listen, by the number that NVIDIA's list explains; slice is the"
    " part of one that MIG split to which the driver put it down, empty for the whole.",
)
GPU_XID_TIME = NODE.gauge(
    "observatory_gpu_xid_timestamp_seconds{gpu, slice, xid}",
    "When the driver last reported an XID of this number, in seconds since 1970.",
)


# Activity of a GPU's parts by its performance monitors (GPM); Hopper and later.

GPU_GRAPHICS_ACTIVITY = NODE.gauge(
    "observatory_gpu_graphics_activity_ratio{gpu}",
    "Share of the time between the last two readings in which any compute or graphics context was active.",
)
GPU_SM_ACTIVITY = NODE.gauge(
    "observatory_gpu_sm_activity_ratio{gpu}",
    "Share of the GPU's multiprocessors that were busy, averaged between the last two readings.",
)
GPU_SM_OCCUPANCY = NODE.gauge(
    "observatory_gpu_sm_occupancy_ratio{gpu}",
    "Warps that were resident, as a share of the most there can be, averaged between the last two readings.",
)
GPU_TENSOR_ACTIVITY = NODE.gauge(
    "observatory_gpu_tensor_activity_ratio{gpu, kind=any|...}",
    "Share of the time between the last two readings in which tensor cores worked: in any way, and by kind of"
    " product: half (hmma), integer (imma), double (dfma).",
)
GPU_PIPE_ACTIVITY = NODE.gauge(
    "observatory_gpu_pipe_activity_ratio{gpu, pipe}",
    "Share of the time between the last two readings in which multiprocessors did arithmetic outside of tensor cores:"
    " integer, fp64, fp32 or fp16.",
)
GPU_DRAM_ACTIVITY = NODE.gauge(
    "observatory_gpu_dram_bandwidth_ratio{gpu}",
    "Bandwidth of device memory that was used, as a share of the most there can be, averaged between the last two"
    " readings.",
)


# The reading of GPUs itself: its age, what was missed, what it costs.

GPU_AGE_SECONDS = NODE.gauge(
    "observatory_gpu_age_seconds{gpu}",
    "Age of what is shown of the GPU, at the agent's last beat: up to a beat older at the scrape; more than a beat"
    " where its driver keeps it waiting.",
)
GPU_MISSED = NODE.counter(
    "observatory_gpu_missed_readings_total{gpu}",
    "Beats at which the GPU had not answered by the deadline, or had no whole answer; what is shown is then what it"
    " answered last.",
    unit="errors",
)
GPU_FIELD_SECONDS = NODE.gauge(
    "observatory_gpu_field_seconds{field}",
    "What the driver took to read one field, by its own account, on the slowest of the node's GPUs; fields that share"
    " a driver call share its time; shown only where it is asked for.",
)
GPU_CALL_SECONDS = NODE.counter(
    "observatory_gpu_call_seconds_total{function}",
    "Time that our calls to a function of NVML took, all of the node's GPUs together; without waiting for events; shown"
    " only where it is asked for.",
)
GPU_CALLS = NODE.counter(
    "observatory_gpu_calls_total{function}",
    "Our calls to a function of NVML, answered or refused, all of the node's GPUs together; shown only where it is"
    " asked for.",
    unit="requests",
)

METRICS = metrics_in(globals())
