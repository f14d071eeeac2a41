"""Metrics of what a GPU sends and receives over PCIe and NVLink."""

from __future__ import annotations

from collectors.metric import Metric

GPU_PCIE_BYTES = Metric(
    name="observatory_gpu_pcie_bytes_total",
    kind="counter",
    unit="bytes",
    scope="node",
    labels=("gpu", "direction"),
    help=(
        "Bytes sent and received by the GPU over PCIe since the agent could count them without a gap. NVML's counter "
        "wraps every 4 GiB: left out where the link can carry more than that between two readings and GPM's rate does "
        "not tell how often it wrapped, as before Hopper at a beat of 1 s."
    ),
)
GPU_PCIE_RETRIES = Metric(
    name="observatory_gpu_pcie_retries_total",
    kind="counter",
    unit="retries",
    scope="node",
    labels=("gpu",),
    help="Packets that the GPU's PCIe link had to send again.",
)
GPU_PCIE_ERRORS = Metric(
    name="observatory_gpu_pcie_errors_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "kind"),
    help="Errors of the GPU's PCIe link: correctable, non_fatal or fatal.",
)
GPU_PCIE_RATE = Metric(
    name="observatory_gpu_pcie_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    scope="node",
    labels=("gpu", "direction"),
    help="Rate at which the GPU sent and received over PCIe between the last two readings, by GPM; Hopper and later.",
)
GPU_NVLINK_BYTES = Metric(
    name="observatory_gpu_nvlink_bytes_total",
    kind="counter",
    unit="bytes",
    scope="node",
    labels=("gpu", "direction"),
    help="Bytes of data sent and received by the GPU over all its NVLinks, without the protocol's own.",
)
GPU_NVLINK_LINK_BYTES = Metric(
    name="observatory_gpu_nvlink_link_bytes_total",
    kind="counter",
    unit="bytes",
    scope="node",
    labels=("gpu", "link", "direction"),
    help="Bytes of data sent and received by the GPU over one of its NVLinks; shown only where it is asked for.",
)
GPU_NVLINK_RATE = Metric(
    name="observatory_gpu_nvlink_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    scope="node",
    labels=("gpu", "direction"),
    help=(
        "Rate at which the GPU sent and received over all its NVLinks between the last two readings, by GPM; "
        "Hopper and later."
    ),
)
GPU_NVLINK_ERRORS = Metric(
    name="observatory_gpu_nvlink_errors_total",
    kind="counter",
    unit="errors",
    scope="node",
    labels=("gpu", "kind"),
    help=(
        "Errors on all of the GPU's NVLinks: crc_flit, crc_data, replay, recovery or ecc; on Blackwell and later "
        "malformed_packet, buffer_overrun, received, received_remote, received_general, link_integrity, discarded, "
        "link_recovery, link_recovery_failed or effective. One fault may count in several kinds."
    ),
)

METRICS = (
    GPU_PCIE_BYTES,
    GPU_PCIE_RETRIES,
    GPU_PCIE_ERRORS,
    GPU_PCIE_RATE,
    GPU_NVLINK_BYTES,
    GPU_NVLINK_LINK_BYTES,
    GPU_NVLINK_RATE,
    GPU_NVLINK_ERRORS,
)
