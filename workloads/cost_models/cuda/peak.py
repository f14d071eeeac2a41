"""Peak of allocated memory in one step on CUDA, on a rank with whole weights; and memory that no tensor accounts for.

The peak is that of torch's allocator, as `torch.cuda.max_memory_allocated` reads it: tensors, and the workspaces that
torch allocates for cuBLAS. `unallocated_bytes` estimates what else a GPU holds.
"""

from __future__ import annotations

from workloads.cost_models.cuda.blocks import Gradients
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.tape import Stretch, Tape
from workloads.cost_models.memory import FULL_BYTES, INDEX_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.terms import States

THREAD_WORKSPACE_BYTES = 32 << 20
"""cuBLAS's workspace for a thread that multiplies matrices, which torch allocates: on Hopper.
Source: torch 2.12, CUDABlas, getChosenWorkspaceSize."""
WORKSPACE_BYTES = 2 * THREAD_WORKSPACE_BYTES
"""The workspaces of forward's thread and of backward's."""

# Memory that the allocator does not count: assumed, not measured, and separate from the peak.

CONTEXT_BYTES = 750_000_000
"""CUDA's context with torch's kernels: 0.5 to 1 GB."""
COMMUNICATOR_BYTES = 300_000_000
"""NCCL's buffers of one communicator."""
FRAGMENTATION_RATIO = 0.03
"""Share of the peak that the allocator reserves in blocks too small to be used."""


def unallocated_bytes(peak_bytes: int, *, communicators: int) -> int:
    """Estimate a rank's GPU memory beyond the allocator's peak: context, NCCL's buffers, fragmentation."""
    return CONTEXT_BYTES + communicators * COMMUNICATOR_BYTES + int(FRAGMENTATION_RATIO * peak_bytes)


def tables_bytes(model: CudaModel) -> int:
    """Return the bytes of the rotary tables, which each part of the model has."""
    return FULL_BYTES * model.shape.sequence * model.shape.head_width


def tokens_bytes(model: CudaModel, microbatches: int) -> int:
    """Return the bytes of a step's tokens."""
    return INDEX_BYTES * microbatches * model.sequences * (model.shape.sequence + 1)


def whole_pass(model: CudaModel, gradients: Gradients) -> Stretch:
    """Return forward and backward of one microbatch through a whole model.

    A table that is also the head has one gradient: the head's waits in autograd for the embedding's, which is added in
    place, and only then is the sum added to a gradient that lives elsewhere.
    """
    layers, is_tied = model.shape.layers, model.shape.is_tied
    waiting = model.gradient_bytes * model.shape.vocabulary * model.shape.width if is_tied else 0
    if gradients == "new":
        waiting = 0  # It is the gradient that stays.
    tape = Tape().play(model.embedding()).play(model.forwards(layers)).play(model.head())
    tape.change(-model.cached_bytes(layers) - model.head_copy_bytes)
    tape.play(model.head_backward(gradients)).change(waiting, "temporary").play(model.backwards(layers, gradients))
    tape.play(model.embedding_backward("added" if is_tied else gradients))
    return tape.change(-waiting, "temporary").stretch()


def passes(first: Stretch, later: Stretch, microbatches: int) -> Stretch:
    """Return the first microbatch and those after it, which are alike."""
    return first.then(later.times(microbatches - 1))


def predict(
    step: Stretch,
    *,
    states: States,
    buffers_bytes: int,
    held_bytes: int,
    gradients_bytes: int = 0,
    other_bytes: int = 0,
) -> Prediction:
    """Return the peak of a step.

    held_bytes: activations that live all through the step. gradients_bytes: gradients that live before it.
    """
    return Prediction(
        parameters_bytes=states.parameters_bytes + step.peak.parameters,
        buffers_bytes=buffers_bytes,
        gradients_bytes=gradients_bytes + step.peak.gradients,
        optimizer_bytes=states.optimizer_bytes,
        activations_bytes=held_bytes + step.peak.activations,
        temporary_bytes=step.peak.temporary,
        other_bytes=WORKSPACE_BYTES + other_bytes,
    )


def replicated_peak(
    model: CudaModel,
    *,
    states: States,
    microbatches: int,
    is_bucketed: bool = False,
    after_backward_bytes: int = 0,
    held_bytes: int = 0,
    other_bytes: int = 0,
) -> Prediction:
    """Predict the peak of a rank that holds whole weights and gradients.

    is_bucketed: DistributedDataParallel keeps the gradients in buckets; those that accumulate live next to them.
    after_backward_bytes: made once all gradients exist, for example the copy of them that is averaged.
    held_bytes, other_bytes: other tensors that live through the step, and between steps.
    """
    gradients_bytes = states.gradients_bytes if is_bucketed else 0
    first: Gradients = "added" if is_bucketed and microbatches == 1 else "new"
    step = passes(whole_pass(model, first), whole_pass(model, "added"), microbatches)
    step = step.then(Tape().brief(after_backward_bytes).stretch())
    return predict(
        step,
        states=states,
        buffers_bytes=tables_bytes(model),
        held_bytes=tokens_bytes(model, microbatches) + held_bytes,
        gradients_bytes=gradients_bytes,
        other_bytes=other_bytes,
    )
