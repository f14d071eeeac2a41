"""Metrics of what a node's GPUs are doing: how busy they are, with how much memory, for how many processes."""

from __future__ import annotations

from collectors.metric import Metric

GPU_UTILIZATION = Metric(
    name="observatory_gpu_utilization_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of NVML's last sample period in which at least one kernel ran on the GPU.",
)
GPU_MEMORY_UTILIZATION = Metric(
    name="observatory_gpu_memory_utilization_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of NVML's last sample period in which device memory was read or written.",
)
GPU_ENCODER_UTILIZATION = Metric(
    name="observatory_gpu_encoder_utilization_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of NVML's last sample period in which the video encoder was busy.",
)
GPU_DECODER_UTILIZATION = Metric(
    name="observatory_gpu_decoder_utilization_ratio",
    kind="gauge",
    unit="ratio",
    scope="node",
    labels=("gpu",),
    help="Share of NVML's last sample period in which the video decoder was busy.",
)
GPU_MEMORY_USED_BYTES = Metric(
    name="observatory_gpu_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory in use by all processes, without what the driver reserves for itself.",
)
GPU_MEMORY_RESERVED_BYTES = Metric(
    name="observatory_gpu_memory_reserved_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory that driver and firmware keep for themselves.",
)
GPU_MEMORY_FREE_BYTES = Metric(
    name="observatory_gpu_memory_free_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory that a process could still be given.",
)
GPU_MEMORY_BYTES = Metric(
    name="observatory_gpu_memory_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Device memory of the GPU, that of the driver included.",
)
GPU_BAR1_USED_BYTES = Metric(
    name="observatory_gpu_bar1_used_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Addresses of the window through which CPU and other devices reach the GPU's memory that are mapped now.",
)
GPU_BAR1_BYTES = Metric(
    name="observatory_gpu_bar1_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu",),
    help="Size of the window through which CPU and other devices reach the GPU's memory.",
)
GPU_TASKS = Metric(
    name="observatory_gpu_compute_tasks",
    kind="gauge",
    unit="tasks",
    scope="node",
    labels=("gpu",),
    help="Processes that have a compute context on the GPU, those in its MIG instances included; absent in a container"
    " with PIDs of its own, where the driver does not name all.",
)
GPU_INSTANCE_MEMORY_USED_BYTES = Metric(
    name="observatory_gpu_instance_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu", "slice"),
    help="Device memory in use in a MIG instance.",
)
GPU_INSTANCE_MEMORY_BYTES = Metric(
    name="observatory_gpu_instance_memory_bytes",
    kind="gauge",
    unit="bytes",
    scope="node",
    labels=("gpu", "slice"),
    help="Device memory that a MIG instance has to itself.",
)
GPU_INSTANCE_TASKS = Metric(
    name="observatory_gpu_instance_compute_tasks",
    kind="gauge",
    unit="tasks",
    scope="node",
    labels=("gpu", "slice"),
    help="Processes that have a compute context in a MIG instance; absent in a container with PIDs of its own.",
)

METRICS = (
    GPU_UTILIZATION,
    GPU_MEMORY_UTILIZATION,
    GPU_ENCODER_UTILIZATION,
    GPU_DECODER_UTILIZATION,
    GPU_MEMORY_USED_BYTES,
    GPU_MEMORY_RESERVED_BYTES,
    GPU_MEMORY_FREE_BYTES,
    GPU_MEMORY_BYTES,
    GPU_BAR1_USED_BYTES,
    GPU_BAR1_BYTES,
    GPU_TASKS,
    GPU_INSTANCE_MEMORY_USED_BYTES,
    GPU_INSTANCE_MEMORY_BYTES,
    GPU_INSTANCE_TASKS,
)
