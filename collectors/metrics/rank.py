"""Metrics of a rank: training steps, memory, checkpoints, and the parts of traced steps."""

from __future__ import annotations

from collectors.metrics.metric import EACH_RANK, metrics_in

# Training steps.

STEP_SECONDS = EACH_RANK.gauge(
    "observatory_step_seconds",
    "Time of one optimizer step of a rank, from the end of the previous step to its own end, all waits included.",
)
PHASE_SECONDS = EACH_RANK.gauge(
    "observatory_phase_seconds{phase}",
    "Time of one step that a rank's device spent in a phase: data (waiting for its batch), forward, backward,"
    " optimizer. A GPU waits for a batch only when it has no work left; observatory_data_wait_seconds is the"
    " wait of the host.",
)
DATA_WAIT_SECONDS = EACH_RANK.gauge(
    "observatory_data_wait_seconds",
    "Time of one step in which the host of a rank waited for its batch while its GPU may have computed. It is"
    " not part of the step, so do not add it to the phases; absent on a CPU, where the phase data is this wait.",
)
TOKENS = EACH_RANK.counter(
    "observatory_tokens_total",
    "Tokens that a rank has trained on in its warm-up and measured steps; traced steps are not counted. Ranks"
    " that take the same tokens through parts of a model count equal shares of them, so the ranks add up to the"
    " batch.",
)
TOKENS_PER_SECOND = EACH_RANK.gauge(
    "observatory_tokens_per_second", "Tokens that a rank counts in one measured step, divided by the step's time."
)
MFU = EACH_RANK.gauge(
    "observatory_mfu_ratio",
    "Model FLOPs per second and device in one measured step of a rank (PaLM's formula), divided by the device's"
    " dense peak at the run's precision; absent if no data sheet gives one.",
)
MEASURED_MFU = EACH_RANK.gauge(
    "observatory_measured_mfu_ratio",
    "Model FLOPs per second and device in one measured step of a rank (PaLM's formula), divided by the fastest matrix"
    " product that a matmul run had measured on the same hardware at the same precision before the run.",
)
LOSS = EACH_RANK.gauge("observatory_loss_nats", "Mean cross-entropy of a rank's own tokens in one step.")
LEARNING_RATE = EACH_RANK.gauge(
    "observatory_learning_rate_ratio",
    "Learning rate that a rank's optimizer used in one step, after its rule, warm-up and decay: the factor of AdamW's"
    " update, which has no unit.",
)
GRADIENT_NORM = EACH_RANK.gauge(
    "observatory_gradient_norm_ratio",
    "Euclidean norm of the whole gradient of one step before clipping, over all weights and ranks that hold"
    " parts of it, which has no unit. The clipping computes it, so it is absent if the option clip is 0, on a"
    " rank that does not clip (for example a worker of a synchronous parameter server), and in a step whose"
    " norm is not finite.",
)
OBSERVER_SECONDS = EACH_RANK.gauge(
    "observatory_observer_seconds",
    "Host time of one step that a rank's own collectors and log took: reading the clock's events and the"
    " memory, also at the end of each phase, and writing the log line of the previous step.",
)

PHASES = ("data", "forward", "backward", "optimizer")
"""The phases of every training step, in order; a strategy may mark additional phases."""


# Memory: the CUDA allocator's account, live tensors, the training state, and the process.

ALLOCATED_BYTES = EACH_RANK.gauge(
    "observatory_memory_allocated_bytes",
    "Device memory held by tensors at the end of a step, by the caching allocator's account.",
)
RESERVED_BYTES = EACH_RANK.gauge(
    "observatory_memory_reserved_bytes",
    "Device memory that the caching allocator holds at the end of a step, used or not.",
)
ACTIVE_BYTES = EACH_RANK.gauge(
    "observatory_memory_active_bytes",
    "Device memory at the end of a step in blocks that tensors hold or that a stream may still use, by the caching"
    " allocator's account.",
)
INACTIVE_SPLIT_BYTES = EACH_RANK.gauge(
    "observatory_memory_inactive_split_bytes",
    "Device memory at the end of a step in unused parts of blocks whose other parts are used, so the caching"
    " allocator cannot return it to the device (fragmentation).",
)
PEAK_BYTES = EACH_RANK.gauge(
    "observatory_memory_peak_bytes",
    "Most device memory held by tensors at once during a step, and during the unsampled steps before it, by the"
    " caching allocator's account. Steps are sampled only now and then if sampling each would take more than"
    " 0.5 % of their time.",
)
PHASE_PEAK_BYTES = EACH_RANK.gauge(
    "observatory_memory_phase_peak_bytes{phase}",
    "Most device memory held by tensors at once in a phase of a step, including the time between it and the"
    " previous phase, by the caching allocator's account; absent on a CPU, where no allocator accounts for"
    " memory, and for most steps if sampling each would take more than 0.5 % of their time.",
)
ALLOCATION_RETRIES = EACH_RANK.counter(
    "observatory_memory_allocation_retries_total",
    "Allocations that succeeded only after the caching allocator had returned its unused memory to the device.",
)
OUT_OF_MEMORY = EACH_RANK.counter(
    "observatory_memory_out_of_memory_total",
    "Out-of-memory errors that the caching allocator has raised.",
    unit="errors",
)
LIVE_TENSOR_BYTES = EACH_RANK.gauge(
    "observatory_memory_live_tensor_bytes{category=total|...}",
    "Bytes of live tensors at their peak in one unmeasured step on the CPU, by category and in total.",
)
STAGE_ACTIVATION_BYTES = EACH_RANK.gauge(
    "observatory_memory_stage_activation_bytes{stage}",
    "Most bytes that forwards of a pipeline stage's live microbatches have left for backward, in one unmeasured"
    " step; on CUDA by the caching allocator's account, without the buffers of received messages.",
)
TIMELINE_PEAK_BYTES = EACH_RANK.gauge(
    "observatory_memory_timeline_peak_bytes{category=total|...}",
    "Bytes of a rank's blocks at the moment of one unmeasured step when it held most, by category and in total:"
    " those of its state, activations (made in forward and kept after it), temporary (made and dropped in one"
    " phase), other; blocks that are older than the step and belong to no state are not counted.",
)
STATE_BYTES = EACH_RANK.gauge(
    "observatory_memory_state_bytes{part}",
    "Bytes of the storages behind one part of the training state on a rank after an optimizer step, each"
    " storage once: parameters, gradients, optimizer.",
)
RESIDENT_BYTES = EACH_RANK.gauge(
    "observatory_process_resident_bytes",
    "Resident memory of a rank's process at the end of a step, libraries and shared pages included.",
)


# Checkpoints.

CHECKPOINT_STALL_SECONDS = EACH_RANK.gauge(
    "observatory_checkpoint_stall_seconds",
    "Time for which a rank's training paused while a checkpoint was saved: until all ranks' files were on disk, or"
    " until its states were copied to the host's memory if a thread writes them.",
)
CHECKPOINT_WRITE_SECONDS = EACH_RANK.gauge(
    "observatory_checkpoint_write_seconds",
    "Time from the start of a save until a rank knew that all ranks' files were on disk.",
)
CHECKPOINT_BYTES = EACH_RANK.gauge(
    "observatory_checkpoint_bytes", "Bytes of the files that a rank wrote in one checkpoint."
)
SAVING_STEP_SECONDS = EACH_RANK.gauge(
    "observatory_saving_step_seconds",
    "Time of one optimizer step of a rank that began while a checkpoint was written in the background; never part of"
    " speed.",
)


# Traced steps: how their time divides into computation, communication and neither.

TRACED_STEP_SECONDS = EACH_RANK.gauge(
    "observatory_traced_step_seconds",
    "Time of one step under the profiler; slower than others, and never part of speed.",
)
COMPUTE_SECONDS = EACH_RANK.gauge(
    "observatory_traced_compute_seconds",
    "Time of one traced step in which computation ran; overlapping spans count once.",
)
COMMUNICATION_SECONDS = EACH_RANK.gauge(
    "observatory_traced_communication_seconds",
    "Time of one traced step in which communication ran, waits for peers included; overlapping spans count once.",
)
OVERLAP_SECONDS = EACH_RANK.gauge(
    "observatory_traced_overlap_seconds", "Time of one traced step in which communication and computation both ran."
)
EXPOSED_COMMUNICATION_SECONDS = EACH_RANK.gauge(
    "observatory_traced_exposed_communication_seconds",
    "Time of one traced step in which communication ran and computation did not.",
)
EXPOSED_COPY_SECONDS = EACH_RANK.gauge(
    "observatory_traced_exposed_copy_seconds",
    "Time of one traced step in which copies ran and neither computation nor communication did.",
)
IDLE_SECONDS = EACH_RANK.gauge(
    "observatory_traced_idle_seconds", "Time of one traced step in which no traced event ran."
)
OVERLAP_RATIO = EACH_RANK.gauge(
    "observatory_traced_overlap_ratio", "Overlap of one traced step, divided by its communication time."
)
EXPOSED_COMMUNICATION_RATIO = EACH_RANK.gauge(
    "observatory_traced_exposed_communication_ratio",
    "Exposed communication of one traced step, divided by the traced step's time.",
)
COLLECTIVE_SECONDS = EACH_RANK.gauge(
    "observatory_traced_collective_seconds{collective}",
    "Time of one traced step in which a collective ran, by the name of its events; NCCL uses one kernel, which"
    " is called send, for messages and all_to_all. Overlapping spans count once.",
)
COLLECTIVE_OVERLAP_RATIO = EACH_RANK.gauge(
    "observatory_traced_collective_overlap_ratio{collective}",
    "Time of one traced step in which a collective and computation both ran, divided by the collective's.",
)
ATTENTION_PAIRS = EACH_RANK.gauge(
    "observatory_traced_attention_pairs",
    "Pairs of query and key that the rank attended in the forward pass of a traced step, over all heads and layers.",
)
PAYLOAD_BYTES = EACH_RANK.gauge(
    "observatory_traced_payload_bytes{collective, axis}",
    "Bytes of the tensors that a rank passed to a collective in a traced step, averaged over the traced window"
    " and before the collective's own factor; axis is the axis of the device mesh whose ranks took part, or"
    " other.",
)

METRICS = metrics_in(globals())
