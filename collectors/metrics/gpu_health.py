"""Metrics of a GPU's health and activity: errors, repairs, PCIe, NVLink and GPM, and the cost of reading them."""

from __future__ import annotations

from collectors.metrics.metric import NODE, metrics_in

# Traffic and errors of PCIe and NVLink.

GPU_PCIE_BYTES = NODE.counter(
    "observatory_gpu_pcie_bytes_total{gpu, direction}",
    "Bytes sent and received by the GPU over PCIe since the agent could count them without a gap. NVML's"
    " counter wraps every 4 GiB. The metric is absent if the link can carry more than that between two readings"
    " and GPM's rate does not show how often the counter wrapped, as before Hopper at a beat of 1 s.",
)
GPU_PCIE_RETRIES = NODE.counter(
    "observatory_gpu_pcie_retries_total{gpu}", "Packets that the GPU's PCIe link had to resend."
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
    "Bytes of data sent and received by the GPU over one of its NVLinks; exported only with --nvlink-per-link.",
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
    "Memory errors that ECC found over the GPU's lifetime, including those since the driver was loaded:"
    " corrected or uncorrected.",
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
    "1 if a repair of the GPU's memory (rows or pages) is pending until a reset or has failed, 0 if not.",
)
GPU_RECOVERY = NODE.info(
    "observatory_gpu_recovery_info{gpu, action}",
    "Action that the GPU needs, according to its driver, before it can be trusted again: none, gpu_reset,"
    " node_reboot, drain_p2p, drain_and_reset and similar; the value is always 1.",
)
GPU_EVENTS = NODE.counter(
    "observatory_gpu_events_total{gpu, event}",
    "Errors of the GPU that the driver has reported since the agent started listening, by kind; xid are those"
    " in NVIDIA's list of XIDs. Errors of MIG slices count with those of their GPU.",
    unit="errors",
)
GPU_EVENT_TIME = NODE.gauge(
    "observatory_gpu_event_timestamp_seconds{gpu, event}",
    "Unix time at which the driver last reported an error of this kind.",
)
GPU_XIDS = NODE.counter(
    "observatory_gpu_xid_errors_total{gpu, slice, xid}",
    "XID errors of the GPU since the agent started listening, by number (NVIDIA's list explains them); slice is"
    " the MIG slice that the driver attributes the error to, empty for the whole GPU.",
)
GPU_XID_TIME = NODE.gauge(
    "observatory_gpu_xid_timestamp_seconds{gpu, slice, xid}",
    "Unix time at which the driver last reported an XID with this number.",
)


# Activity of a GPU's parts, from its performance monitors (GPM); Hopper and later.

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
    "Resident warps, as a share of their maximum, averaged between the last two readings.",
)
GPU_TENSOR_ACTIVITY = NODE.gauge(
    "observatory_gpu_tensor_activity_ratio{gpu, kind=any|...}",
    "Share of the time between the last two readings in which tensor cores worked: at all, and by kind of"
    " instruction: half (hmma), integer (imma), double (dfma).",
)
GPU_PIPE_ACTIVITY = NODE.gauge(
    "observatory_gpu_pipe_activity_ratio{gpu, pipe}",
    "Share of the time between the last two readings in which multiprocessors did arithmetic outside the tensor"
    " cores: integer, fp64, fp32 or fp16.",
)
GPU_DRAM_ACTIVITY = NODE.gauge(
    "observatory_gpu_dram_bandwidth_ratio{gpu}",
    "Used bandwidth of device memory, as a share of its maximum, averaged between the last two readings.",
)


# Reading the GPUs: age of the readings, missed beats, and cost.

GPU_AGE_SECONDS = NODE.gauge(
    "observatory_gpu_age_seconds{gpu}",
    "Age of the GPU's readings at the agent's last beat: at the scrape they are up to a beat older. More than a"
    " beat means that the driver keeps the agent waiting.",
)
GPU_MISSED = NODE.counter(
    "observatory_gpu_missed_readings_total{gpu}",
    "Beats at which the GPU had not answered completely by the deadline; the exporter then repeats the last readings.",
    unit="errors",
)
GPU_FIELD_SECONDS = NODE.gauge(
    "observatory_gpu_field_seconds{field}",
    "Time that the driver reports for reading one field, on the slowest of the node's GPUs; fields that share a"
    " driver call share its time; exported only with --read-costs.",
)
GPU_CALL_SECONDS = NODE.counter(
    "observatory_gpu_call_seconds_total{function}",
    "Time that the agent's calls to a function of NVML took, over all GPUs of the node, without waiting for"
    " events; exported only with --read-costs.",
)
GPU_CALLS = NODE.counter(
    "observatory_gpu_calls_total{function}",
    "The agent's calls to a function of NVML, answered or refused, over all GPUs of the node; exported only on"
    " request (docs/monitoring/exporter.md).",
    unit="requests",
)

METRICS = metrics_in(globals())
