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
RUN_MEAN_STEP_SECONDS = Metric(
    name="observatory_run_mean_step_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    help="Time of all measured steps of the rank that took longest, divided by their number: the median over trials.",
)
RUN_TOKENS_PER_SECOND = Metric(
    name="observatory_run_tokens_per_second",
    kind="gauge",
    unit="per_second",
    scope="run",
    help="Tokens of one step over all ranks, divided by the run's mean step.",
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
    help="Model FLOPs of one step by PaLM's formula, divided by the run's mean step and its ranks.",
)
RUN_MFU = Metric(
    name="observatory_run_mfu_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Model FLOPs per second and device (PaLM's formula), divided by its dense peak at the run's precision.",
)
RUN_MEASURED_MFU = Metric(
    name="observatory_run_measured_mfu_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Model FLOPs per second and device (PaLM's formula), divided by the fastest matrix product that a matmul run"
    " measured on the same hardware at the same precision.",
)
RUN_PHASE_SECONDS = Metric(
    name="observatory_run_phase_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("phase",),
    help="Time of a phase in a step: the mean step of the rank that spent most in it, the median over trials.",
)
RUN_DATA_WAIT_SECONDS = Metric(
    name="observatory_run_data_wait_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    help="Time of a step in which the host waited for a batch while its GPU may have computed: the mean step of the"
    " rank whose host waited most, the median over trials; absent on a CPU, where it is the phase data.",
)
RUN_SCALING_EFFICIENCY = Metric(
    name="observatory_run_scaling_efficiency_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("scaling", "baseline"),
    help="Tokens per second and rank of a run, divided by those of its baseline with equal work per rank (weak) or"
    " equal total work (strong). The baseline is one rank measured in turn with the run (beside) or found in the"
    " history, or the run that a person told; unknown where an older version wrote it. Only those of one kind compare.",
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
RUN_MEMORY_ACCOUNT_BYTES = Metric(
    name="observatory_run_memory_account_bytes",
    kind="gauge",
    unit="bytes",
    scope="run",
    labels=("part", "account"),
    help="Bytes of a part of training's memory (parameters, gradients, optimizer, activations, other that outlives a"
    " step, unexplained of it, total): measured (the most of any rank), or expected by this implementation's account or"
    " the paper's.",
)
RUN_MEMORY_PREDICTED_RATIO = Metric(
    name="observatory_run_memory_predicted_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("part",),
    help="Bytes of a part of training's memory that this implementation's account expects, divided by those measured.",
)
RUN_OBSERVER_RATIO = Metric(
    name="observatory_run_observer_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Host time that the collectors and the log of a rank took in all measured steps, divided by these steps' time;"
    " the largest rank's, and the median over trials.",
)
RUN_LOSS = Metric(
    name="observatory_run_loss_nats",
    kind="gauge",
    unit="nats",
    scope="run",
    help="Cross-entropy of the last measured step, as the mean over ranks that compute a loss.",
)
RUN_TRACED_STEP_SECONDS = Metric(
    name="observatory_run_traced_step_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    help="Step under the profiler: the median over a trial's ranks and traced steps, then over trials; what it exceeds"
    " the median step by is the profiler's cost.",
)
RUN_TRACED_RATIO = Metric(
    name="observatory_run_traced_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("part",),
    help="Part of a traced step, divided by the traced step's time: compute, communication, overlap,"
    " exposed_communication, exposed_copy, idle; the median over a trial's ranks and steps, then over trials.",
)
RUN_OVERLAP_RATIO = Metric(
    name="observatory_run_overlap_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    help="Overlap of communication with computation, divided by communication time: the median over a trial's ranks and"
    " traced steps, and the median over trials.",
)
RUN_COLLECTIVE_OVERLAP_RATIO = Metric(
    name="observatory_run_collective_overlap_ratio",
    kind="gauge",
    unit="ratio",
    scope="run",
    labels=("collective",),
    help="Overlap of one collective with computation, divided by the collective's time, in a run that uses several: the"
    " median over a trial's ranks and traced steps, and the median over trials.",
)
RUN_ATTENTION_PAIRS = Metric(
    name="observatory_run_attention_pairs",
    kind="gauge",
    unit="pairs",
    scope="run",
    labels=("extreme", "account"),
    help="Pairs of query and key that a rank attends in a step's forward, of all heads and layers: of the rank that has"
    " least and of the one that has most; counted in traced steps, or expected by the layout.",
)
RUN_PAYLOAD_BYTES = Metric(
    name="observatory_run_payload_bytes",
    kind="gauge",
    unit="bytes",
    scope="run",
    labels=("collective", "axis", "account"),
    help="Bytes of tensors that a rank hands to a collective over an axis of the device mesh in a step, before the"
    " collective's own factor: expected (by the strategy's law) or counted (in traced steps, the largest rank).",
)

RUN_COMMUNICATION_SECONDS = Metric(
    name="observatory_run_communication_seconds",
    kind="gauge",
    unit="seconds",
    scope="run",
    labels=("account",),
    help="Time of a step in which collectives run, hidden or not: traced, or expected by the strategy's law on the link"
    " that a collectives run measured on the same hardware.",
)

METRICS = (
    RUN_STEP_SECONDS,
    RUN_MEAN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
    RUN_FLOPS,
    RUN_MFU,
    RUN_MEASURED_MFU,
    RUN_PHASE_SECONDS,
    RUN_DATA_WAIT_SECONDS,
    RUN_SCALING_EFFICIENCY,
    RUN_PEAK_MEMORY_BYTES,
    RUN_MEMORY_ACCOUNT_BYTES,
    RUN_MEMORY_PREDICTED_RATIO,
    RUN_OBSERVER_RATIO,
    RUN_LOSS,
    RUN_TRACED_STEP_SECONDS,
    RUN_TRACED_RATIO,
    RUN_OVERLAP_RATIO,
    RUN_COLLECTIVE_OVERLAP_RATIO,
    RUN_ATTENTION_PAIRS,
    RUN_PAYLOAD_BYTES,
    RUN_COMMUNICATION_SECONDS,
)
