"""Metrics of which parts of a GPU work, by its own performance monitors (GPM); Hopper and later."""

from __future__ import annotations

from collectors.metric import Metric

GPU_GRAPHICS_ACTIVITY = Metric(
    name="observatory_gpu_graphics_activity_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of the time between the last two readings in which any compute or graphics context was active.",
)
GPU_SM_ACTIVITY = Metric(
    name="observatory_gpu_sm_activity_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of the GPU's multiprocessors that were busy, averaged between the last two readings.",
)
GPU_SM_OCCUPANCY = Metric(
    name="observatory_gpu_sm_occupancy_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Warps that were resident, as a share of the most there can be, averaged between the last two readings.",
)
GPU_TENSOR_ACTIVITY = Metric(
    name="observatory_gpu_tensor_activity_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu", "kind"),
    help=(
        "Share of the time between the last two readings in which tensor cores worked: in any way, and by kind of "
        "product: half (hmma), integer (imma), double (dfma)."
    ),
)
GPU_PIPE_ACTIVITY = Metric(
    name="observatory_gpu_pipe_activity_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu", "pipe"),
    help=(
        "Share of the time between the last two readings in which multiprocessors did arithmetic outside of "
        "tensor cores: integer, fp64, fp32 or fp16."
    ),
)
GPU_DRAM_ACTIVITY = Metric(
    name="observatory_gpu_dram_bandwidth_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help=(
        "Bandwidth of device memory that was used, as a share of the most there can be, averaged between the last "
        "two readings."
    ),
)

METRICS = (
    GPU_GRAPHICS_ACTIVITY,
    GPU_SM_ACTIVITY,
    GPU_SM_OCCUPANCY,
    GPU_TENSOR_ACTIVITY,
    GPU_PIPE_ACTIVITY,
    GPU_DRAM_ACTIVITY,
)
