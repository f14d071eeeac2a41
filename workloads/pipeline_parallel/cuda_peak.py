"""Peak of allocated memory in one step of a pipeline's rank on CUDA, action by action.

A stage's work on one microbatch adds to what the rank holds for others. Receive buffers live for all microbatches at
all times. A sent tensor lives until torch drops its handle: in 1F1B when the next one is sent, in other schedules at
the end of the step.
Source: torch 2.12, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from workloads.cost_models.cuda.blocks import NOTHING, Around, Gradients
from workloads.cost_models.cuda.model import CudaModel
from workloads.cost_models.cuda.peak import predict, tables_bytes, tokens_bytes
from workloads.cost_models.cuda.tape import Stretch, Tape, in_turn
from workloads.cost_models.memory import INDEX_BYTES
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import ActionKind, Pipeline, actions_of_rank
from workloads.cost_models.terms import States

Name = TypeVar("Name")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOnCuda:
    """One stage's work on one microbatch. model: with only the stage's blocks."""

    model: CudaModel
    is_first: bool
    is_last: bool

    def forward(self) -> Stretch:
        """Return forward. Its tensors live until backward, including the stage's result if that is not the loss."""
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if self.is_first:
            tape.play(model.embedding())
        tape.play(model.forwards(layers))
        if self.is_last:
            tape.play(model.head()).change(-model.head_copy_bytes)
        return tape.change(-model.cached_bytes(layers)).stretch()

    def backward(self, gradients: Gradients, *, is_held: bool) -> Stretch:
        """Return backward. is_held: torch holds the stage's sent tensors: its result, and its input's gradient."""
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if self.is_last:
            tape.play(model.head_backward(gradients))
        for block in reversed(range(layers)):
            is_top = block == layers - 1 and not self.is_last
            # The received gradient stays in its buffer, so the first sum with it is a new tensor.
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

    def input_half(self) -> Stretch:
        """Return the first half of a split backward; the first stage has none: nothing needs its input's gradient."""
        if self.is_first:
            return Stretch()
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        if self.is_last:
            tape.play(model.head_input_half())
        for block in reversed(range(layers)):
            is_top = block == layers - 1 and not self.is_last
            received = Around(after_mlp=Tape().change(model.stream, "temporary").stretch())
            tape.play(model.input_half(received if is_top else NOTHING))
        if self.is_last:
            tape.change(-model.loss_bytes)
        return tape.stretch()

    def weight_half(self, gradients: Gradients) -> Stretch:
        """Return the second half of a split backward, after which only the sent tensors of the microbatch are left: the
        stage's result and its input's gradient."""
        if self.is_first:
            return self.backward(gradients, is_held=True)
        model, layers = self.model, self.model.shape.layers
        tape = Tape()
        for _ in range(layers):
            tape.play(model.weight_half(gradients))
        if self.is_last:
            tape.play(model.head_weight_half(gradients))
        sent = 0 if self.is_last else model.stream
        left = self.forward().net.activations + self.input_half().net.activations + tape.stretch().net.activations
        return tape.change(sent - left).stretch()


def stage_on_cuda(model: CudaModel, counts: Sequence[int], stage: int) -> StageOnCuda:
    """Return a stage. model: the whole model. counts: blocks of each stage."""
    # Of the blocks before it, only the remainder modulo `checkpoint_every` matters, so most stages are equal.
    first_block = sum(counts[:stage]) % model.checkpoint_every
    return _stage(model, counts[stage], first_block, stage == 0, stage == len(counts) - 1)


@lru_cache(maxsize=256)
def _stage(model: CudaModel, layers: int, first_block: int, is_first: bool, is_last: bool) -> StageOnCuda:
    cut = replace(model, shape=replace(model.shape, layers=layers), first_block=first_block)
    return StageOnCuda(model=cut, is_first=is_first, is_last=is_last)


@lru_cache(maxsize=256)
def _played(stage: StageOnCuda, kind: ActionKind, gradients: Gradients, is_held: bool) -> Stretch:
    """Return a stage's part of a step; stages and ranks that are alike share it."""
    match kind:
        case "forward":
            return stage.forward()
        case "backward":
            return stage.backward(gradients, is_held=is_held)
        case "input_backward":
            return stage.input_half()
        case "weight_backward":
            return stage.weight_half(gradients)


def in_runs(names: Sequence[Name]) -> Iterator[tuple[Sequence[Name], int]]:
    """Yield the names in order, as runs of one or two alternating names, with the number of repeats.

    Example: F F F B F B F B is F 3 times, B F twice, and B once.
    """
    at = 0
    while at < len(names):
        unit, times = names[at : at + 1], 1
        for size in (1, 2):
            repeated, count = names[at : at + size], 1
            while names[at + count * size : at + (count + 1) * size] == repeated:
                count += 1
            if count > 1:
                unit, times = repeated, count
                break
        yield unit, times
        at += times * len(unit)


_NamedAction = tuple[int, ActionKind, bool]
"""Stage and kind of an action, and whether it adds to existing gradients of the stage's weights."""


@lru_cache(maxsize=4096)
def _runs_of_rank(pipeline: Pipeline, rank: int) -> tuple[tuple[tuple[_NamedAction, ...], int], ...]:
    """Return a rank's actions in order, in runs. Cached, because a plan needs many models on the same schedule.

    Raises:
        ValueError: the schedule cannot run this pipeline.
    """
    names: list[_NamedAction] = []
    begun = set[int]()
    for action in actions_of_rank(pipeline, rank):
        makes_gradients = action.kind in ("backward", "weight_backward")
        names.append((action.stage, action.kind, makes_gradients and action.stage in begun))
        if makes_gradients:
            begun.add(action.stage)
    return tuple((tuple(unit), times) for unit, times in in_runs(names))


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
    last backward. after_backward_bytes: made once all gradients exist.

    Raises:
        ValueError: the schedule cannot run this pipeline.
    """
    own = pipeline.stages_of(rank)
    stages = {stage: stage_on_cuda(model, counts, stage) for stage in own}
    frees_sent = pipeline.schedule == "one_f_one_b"
    step = Stretch()
    for unit, times in _runs_of_rank(replace(pipeline, boundary_bytes=0), rank):
        part = in_turn(
            _played(stages[stage], kind, "added" if is_again else "new", not (frees_sent and is_again))
            for stage, kind, is_again in unit
        )
        step = step.then(part.times(times))
    step = step.then(Tape().brief(after_backward_bytes).stretch())
    # Receive buffers for streams and their gradients.
    sides = sum((stage > 0) + (stage < pipeline.stages - 1) for stage in own)
    held = tokens_bytes(model, pipeline.microbatches) + sides * pipeline.microbatches * model.stream
    if 0 in own:
        held += INDEX_BYTES * pipeline.microbatches * model.sequences * model.shape.sequence
    gathered = Tape().change(gathered_bytes, "parameters").stretch()
    return predict(gathered.then(step), states=states, buffers_bytes=len(own) * tables_bytes(model), held_bytes=held)
