"""Metrics that say which GPUs a node has, how they are set up, and which of them answer."""

from __future__ import annotations

from collectors.metric import Metric

GPU_INFO = Metric(
    name="observatory_gpu_info",
    kind="info",
    unit="info",
    scope="node",
    labels=(
        "gpu",
        "uuid",
        "name",
        "serial",
        "pci_address",
        "pcie",
        "vbios",
        "driver",
        "cuda",
        "persistence",
        "mig",
        "numa",
        "nvlink",
    ),
    help=(
        "A GPU of the node: its index, identity and setting; pcie is generation and lanes at most, nvlink version "
        "and links up; what NVML does not tell is unknown; the value is always 1."
    ),
)
GPU_STATE = Metric(
    name="observatory_gpu_state_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("gpu", "state"),
    help=(
        "Whether the GPU answers: answering, late (no whole answer by the deadline; what is shown has the age that is "
        "told beside it), lost until it is found again after a reset or a new start of the driver, or failed by a "
        "mistake of the agent's own, which its log names; the value is always 1."
    ),
)
GPU_INSTANCE = Metric(
    name="observatory_gpu_instance_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("gpu", "slice", "uuid", "name"),
    help="A slice of a GPU that MIG split, by GPU instance and compute instance; the value is always 1.",
)
GPU_FABRIC = Metric(
    name="observatory_gpu_fabric_info",
    kind="info",
    unit="info",
    scope="node",
    labels=("gpu", "state", "clique"),
    help=(
        "How far the GPU has joined its NVLink fabric, and in which clique: not_started, in_progress or "
        "completed; the value is always 1."
    ),
)
GPU_POWER_LIMIT_WATTS = Metric(
    name="observatory_gpu_power_limit_watts",
    kind="gauge",
    unit="watts",
    scope="node",
    labels=("gpu", "limit"),
    help=(
        "Power limits of the GPU: the one in force (current), the factory's (default), and what it may be set to "
        "(minimum, maximum)."
    ),
)
GPU_CLOCK_LIMIT_HERTZ = Metric(
    name="observatory_gpu_clock_limit_hertz",
    kind="gauge",
    unit="hertz",
    scope="node",
    labels=("gpu", "clock"),
    help="How fast a clock of the GPU may run at most: sm, memory or video.",
)
GPU_PCIE_GENERATION = Metric(
    name="observatory_gpu_pcie_link_generation",
    kind="gauge",
    unit="generation",
    scope="node",
    labels=("gpu", "link"),
    help="Generation of the GPU's PCIe link: now (idle GPUs lower it) and maximum, of what GPU and slot allow.",
)
GPU_PCIE_LANES = Metric(
    name="observatory_gpu_pcie_link_lanes",
    kind="gauge",
    unit="lanes",
    scope="node",
    labels=("gpu", "link"),
    help="Width of the GPU's PCIe link: now and maximum, of what GPU and slot allow.",
)
GPU_PCIE_LINK = Metric(
    name="observatory_gpu_pcie_link_bytes_per_second",
    kind="gauge",
    unit="bytes_per_second",
    scope="node",
    labels=("gpu", "link"),
    help=(
        "What the GPU's PCIe link carries in one direction by its generation and lanes: now (idle GPUs slow it "
        "down) and maximum."
    ),
)

METRICS = (
    GPU_INFO,
    GPU_STATE,
    GPU_INSTANCE,
    GPU_FABRIC,
    GPU_POWER_LIMIT_WATTS,
    GPU_CLOCK_LIMIT_HERTZ,
    GPU_PCIE_GENERATION,
    GPU_PCIE_LANES,
    GPU_PCIE_LINK,
)
