"""Metrics of memory in a rank: the CUDA allocator's account, live tensors, training's state, and the process's own."""

from __future__ import annotations

from collectors.metric import Metric

ALLOCATED_BYTES = Metric(
    name="observatory_memory_allocated_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Device memory held by tensors at the end of a step, by the caching allocator's account.",
)
RESERVED_BYTES = Metric(
    name="observatory_memory_reserved_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Device memory that the caching allocator holds at the end of a step, used or not.",
)
ACTIVE_BYTES = Metric(
    name="observatory_memory_active_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Device memory at the end of a step in blocks that tensors hold or that a stream may still use, by the caching"
    " allocator's account.",
)
INACTIVE_SPLIT_BYTES = Metric(
    name="observatory_memory_inactive_split_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Device memory at the end of a step in unused parts of blocks whose other parts are used, so that the caching"
    " allocator cannot return it to the device: its fragmentation.",
)
PEAK_BYTES = Metric(
    name="observatory_memory_peak_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Most device memory held by tensors at once during a step, and during those before it that were not asked, by"
    " the caching allocator's account. Steps so short that asking would take more than 0.5 % of their time are asked"
    " now and then.",
)
PHASE_PEAK_BYTES = Metric(
    name="observatory_memory_phase_peak_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("phase",),
    help="Most device memory held by tensors at once in a phase of a step, what lies between it and the phase before it"
    " included, by the caching allocator's account; absent on a CPU, where no allocator keeps one, and of most steps"
    " that are so short that asking would take more than 0.5 % of their time.",
)
ALLOCATION_RETRIES = Metric(
    name="observatory_memory_allocation_retries_total",
    kind="counter",
    unit="retries",
    scope="rank",
    help="Allocations that succeeded only after the caching allocator had returned its unused memory to the device.",
)
OUT_OF_MEMORY = Metric(
    name="observatory_memory_out_of_memory_total",
    kind="counter",
    unit="errors",
    scope="rank",
    help="Out-of-memory errors that the caching allocator has raised.",
)
LIVE_TENSOR_BYTES = Metric(
    name="observatory_memory_live_tensor_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("category",),
    help="Bytes of live tensors at their peak in one unmeasured step on the CPU, by category and in total.",
)
TIMELINE_PEAK_BYTES = Metric(
    name="observatory_memory_timeline_peak_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("category",),
    help="Bytes of a rank's blocks at the moment of one unmeasured step when it held most, by category and in total:"
    " those of its state, activations (made in forward and kept after it), temporary (made and dropped in one phase),"
    " other; blocks that are older than the step and of no state are not seen.",
)
STAGE_ACTIVATION_BYTES = Metric(
    name="observatory_memory_stage_activation_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("stage",),
    help="Most bytes that forwards of a pipeline stage's live microbatches have left for backward, in one unmeasured"
    " step; on CUDA by the caching allocator's account, without the buffers that messages come in.",
)
STATE_BYTES = Metric(
    name="observatory_memory_state_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    labels=("part",),
    help="Bytes of the storages behind a part of training's state on a rank after an optimizer step, each storage once:"
    " parameters, gradients, optimizer.",
)
RESIDENT_BYTES = Metric(
    name="observatory_process_resident_bytes",
    kind="gauge",
    unit="bytes",
    scope="rank",
    help="Resident memory of a rank's process at the end of a step, libraries and shared pages included.",
)

METRICS = (
    ALLOCATED_BYTES,
    RESERVED_BYTES,
    ACTIVE_BYTES,
    INACTIVE_SPLIT_BYTES,
    PEAK_BYTES,
    PHASE_PEAK_BYTES,
    ALLOCATION_RETRIES,
    OUT_OF_MEMORY,
    LIVE_TENSOR_BYTES,
    STAGE_ACTIVATION_BYTES,
    TIMELINE_PEAK_BYTES,
    STATE_BYTES,
    RESIDENT_BYTES,
)
