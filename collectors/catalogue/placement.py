"""Metrics that join the node's hardware to the runs on it."""

from __future__ import annotations

from collectors.metric import Metric

RANK_GPU = Metric(
    name="observatory_rank_gpu_info",
    kind="info",
    unit="info",
    scope="rank",
    labels=("run", "gpu", "slice"),
    help="A rank of a run that goes on now, and the index of a GPU of the node that it computes on; slice is the part"
    " of one that MIG split, empty for the whole; the value is always 1.",
)
RANK_GPU_MEMORY = Metric(
    name="observatory_rank_gpu_memory_used_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("gpu", "slice"),
    help="Device memory that the driver counts for a rank's process on a GPU or a slice of it, its CUDA context"
    " included; absent where the driver does not tell, and of ranks whose process the node counts otherwise.",
)

METRICS = (RANK_GPU, RANK_GPU_MEMORY)
