"""Peak of allocated memory in one step of a pipeline's rank on CUDA, action by action.

A stage's work on one microbatch adds to what the rank holds for others. Buffers that tensors are received in live for
all microbatches at all times. A tensor that was sent lives until torch drops its handle: in 1F1B when the next one is
sent, in other schedules at the end of the step.
Source: torch 2.12, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workloads.cost_models.cuda.blocks import NOTHING, Around, Gradients
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import predict, tables_bytes, tokens_bytes
from workloads.cost_models.cuda.tape import Stretch, Tape
from workloads.cost_models.memory import INDEX_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import Pipeline, actions
from workloads.cost_models.terms import States


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOnCuda:
    """One stage's work on one microbatch. model: with only the stage's blocks."""

    model: CudaModel
    is_first: bool
    is_last: bool

    def forward(self) -> Stretch:
        """Return forward. What it leaves lives until backward: also the stage's result, if it is no loss."""
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if self.is_first:
            tape.play(model.embedding())
        tape.play(model.forwards(layers))
        if self.is_last:
            tape.play(model.head()).change(-model.head_copy_bytes)
        return tape.change(-model.cached_bytes(layers)).stretch()

    def backward(self, gradients: Gradients, *, is_held: bool) -> Stretch:
        """Return backward. is_held: torch holds what the stage has sent: its result, and its input's gradient."""
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if self.is_last:
            tape.play(model.head_backward(gradients))
        for block in reversed(range(layers)):
            is_top = block == layers - 1 and not self.is_last
            # The received gradient stays in its buffer, so that the first sum with it is a new tensor.
            received = Around(after_mlp=Tape().change(model.stream, "temporary").stretch())
            tape.play(model.backward(block, gradients, received if is_top else NOTHING))
        if self.is_first:
            tape.play(model.embedding_backward(gradients))
        else:
            tape.change(model.stream)  # The stage's input is a buffer, which stays.
            if not is_held:
                tape.change(-model.stream, "temporary")
        if not self.is_last and not is_held:
            tape.change(-model.stream)
        return tape.stretch()


def stages_on_cuda(model: CudaModel, counts: Sequence[int]) -> tuple[StageOnCuda, ...]:
    """Return all stages. model: the whole one. counts: blocks of each stage."""
    return tuple(
        StageOnCuda(
            model=replace(model, shape=replace(model.shape, layers=count), first_block=sum(counts[:stage])),
            is_first=stage == 0,
            is_last=stage == len(counts) - 1,
        )
        for stage, count in enumerate(counts)
    )


def pipeline_cuda_peak(
    pipeline: Pipeline,
    model: CudaModel,
    counts: Sequence[int],
    rank: int,
    *,
    states: States,
    gathered_bytes: int = 0,
    after_backward_bytes: int = 0,
) -> Prediction:
    """Predict the peak of a pipeline's rank.

    states: of the rank. gathered_bytes: whole weights of a rank whose states are sharded, from the first forward to the
    last backward. after_backward_bytes: what is made when all gradients are there.

    Raises:
        ValueError: the schedule splits backward, or cannot run this pipeline.
    """
    stages = stages_on_cuda(model, counts)
    own = pipeline.stages_of(rank)
    step, backwards = Stretch(), Counter[int]()
    frees_sent = pipeline.schedule == "one_f_one_b"
    played: dict[tuple[str, int, bool], Stretch] = {}
    for action in actions(pipeline)[rank]:
        stage, is_again = stages[action.stage], backwards[action.stage] > 0
        key = (action.kind, action.stage, is_again)
        if key not in played:
            if action.kind == "forward":
                played[key] = stage.forward()
            elif action.kind == "backward":
                gradients: Gradients = "added" if is_again else "new"
                played[key] = stage.backward(gradients, is_held=not (frees_sent and is_again))
            else:
                raise ValueError(f"{pipeline.schedule} splits backward, and the peak is predicted for whole ones only")
        step = step.then(played[key])
        backwards[action.stage] += action.kind != "forward"
    step = step.then(Tape().brief(after_backward_bytes).stretch())
    held = tokens_bytes(model, pipeline.microbatches) + _buffers_bytes(pipeline, model, own)
    if 0 in own:
        held += INDEX_BYTES * pipeline.microbatches * model.sequences * model.shape.sequence
    gathered = Tape().change(gathered_bytes, "parameters").stretch()
    return predict(gathered.then(step), states=states, buffers_bytes=len(own) * tables_bytes(model), held_bytes=held)


def _buffers_bytes(pipeline: Pipeline, model: CudaModel, own: Sequence[int]) -> int:
    """Return the bytes of the buffers that streams and their gradients are received in."""
    sides = sum((stage > 0) + (stage < pipeline.stages - 1) for stage in own)
    return sides * pipeline.microbatches * model.stream
