"""Metrics of a whole run: what its summary says, each with an interval where there are trials enough."""

from __future__ import annotations

from collectors.metric import Metric

RUN_STEP_SECONDS = Metric(
    name="observatory_run_step_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    help="Step time of a run: the median step of the slowest rank in a trial, and the median of that over trials.",
)
RUN_TOKENS_PER_SECOND = Metric(
    name="observatory_run_tokens_per_second",
    kind="gauge",
    unit="per_second",
    scope="run",
    help="Tokens of one step over all ranks, divided by the run's step time.",
)
RUN_TOKENS_PER_SECOND_PER_DEVICE = Metric(
    name="observatory_run_device_tokens_per_second",
    kind="gauge",
    unit="per_second",
    scope="run",
    help="Tokens per second of a run, divided by its ranks.",
)
RUN_FLOPS = Metric(
    name="observatory_run_device_flops_per_second",
    kind="gauge",
    unit="per_second",
    scope="run",
    help="Model FLOPs of one step by PaLM's formula, divided by the run's step time and its ranks.",
)
RUN_MFU = Metric(
    name="observatory_run_mfu_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Model FLOPs per second and device (PaLM's formula), divided by its dense peak at the run's precision.",
)
RUN_PHASE_SECONDS = Metric(
    name="observatory_run_phase_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("phase",),
    help="Time of a phase in a step: the median step of the rank that spent most in it, and the median over trials.",
)
RUN_SCALING_EFFICIENCY = Metric(
    name="observatory_run_scaling_efficiency_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("scaling",),
    help="Tokens per second and rank of a run, divided by those of its one-rank baseline with equal work per rank"
    " (weak) or equal total work (strong).",
)
RUN_PEAK_MEMORY_BYTES = Metric(
    name="observatory_run_peak_memory_bytes",
    kind="gauge",
    unit="bytes",
    scope="run",
    labels=("account",),
    help="Most memory of any rank: allocator (tensors on the GPU, largest measured step), live_tensors (tensors on the"
    " CPU, one unmeasured step) or resident (the process).",
)
RUN_LOSS = Metric(
    name="observatory_run_loss_nats",
    kind="gauge",
    unit="nats",
    scope="run",
    help="Cross-entropy of the last measured step, as the mean over ranks that compute a loss.",
)

METRICS = (
    RUN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
    RUN_FLOPS,
    RUN_MFU,
    RUN_PHASE_SECONDS,
    RUN_SCALING_EFFICIENCY,
    RUN_PEAK_MEMORY_BYTES,
    RUN_LOSS,
)
