"""The peak of live tensors in one step of a pipeline rank, sought action by action of its schedule.

What a stage computes for one microbatch lives beside what is held for others; the peak is where both together are most.
So do the buffers that messages come in, and what was sent, for as long as torch keeps its handle. MemTracker sees a
buffer from its first use on, and one of gradients never under autocast, which only reads it for a copy.
Not covered: schedules that part backward, whose halves keep what autograd chooses.
Source: torch 2.13, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from workloads.laws.activations import FULL_BYTES, Microbatch
from workloads.laws.block_moments import BlockMoments
from workloads.laws.live_tensors import Moment, Prediction, Step
from workloads.laws.pipeline import HALVED_BACKWARD, Pipeline
from workloads.laws.schedules import actions
from workloads.laws.stages import stage_states, stage_weights, stored_bytes
from workloads.laws.weights import elements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """What lives at a moment beside the states that are always there."""

    activations_bytes: int
    temporary_bytes: int
    gradients_bytes: int

    @property
    def bytes(self) -> int:
        return self.activations_bytes + self.temporary_bytes + self.gradients_bytes


def pipeline_step_peak(pipeline: Pipeline, microbatch: Microbatch, counts: Sequence[int], rank: int) -> Prediction:
    """What lives on a pipeline rank at the peak of a step; see `Microbatch` for what is covered.

    counts: blocks of each stage.

    Raises:
        ValueError: the schedule parts backward, or cannot run this pipeline.
    """
    if pipeline.schedule in HALVED_BACKWARD:
        raise ValueError(f"{pipeline.schedule} parts backward; the law follows whole ones")
    peak = max(
        _moments(_Rank(pipeline=pipeline, microbatch=microbatch, counts=counts), rank), key=lambda one: one.bytes
    )
    shape, stages = microbatch.shape, pipeline.stages_of(rank)
    states = stage_states(weight for stage in stages for weight in stage_weights(shape, counts, stage))
    return Prediction(
        parameters_bytes=states.parameters_bytes,
        buffers_bytes=FULL_BYTES * shape.sequence * shape.head_width,
        gradients_bytes=peak.gradients_bytes,
        optimizer_bytes=states.optimizer_bytes,
        activations_bytes=peak.activations_bytes,
        temporary_bytes=peak.temporary_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """A rank between two actions: how many microbatches each stage has taken forward, and back."""

    pipeline: Pipeline
    microbatch: Microbatch
    counts: Sequence[int]
    forwards: Counter[int] = field(default_factory=Counter)
    backwards: Counter[int] = field(default_factory=Counter)

    @property
    def waiting_bytes(self) -> int:
        """Activations of microbatches that wait, and of those that are through what messages still hold."""
        waiting_bytes = self.pipeline.microbatches * self.microbatch.tokens_bytes
        for stage, taken in self.forwards.items():
            waiting_bytes += (taken - self.backwards[stage]) * stored_bytes(self.microbatch, self.counts, stage)
        streams = sum(
            (stage > 0) * through + (not self.is_last(stage)) * self._kept(through)
            for stage, through in self.backwards.items()
        )
        return waiting_bytes + streams * self.microbatch.stream_bytes

    @property
    def messages_bytes(self) -> int:
        """Gradients that came, and those that went."""
        streams = sum(
            self.has_seen_gradients(stage) * through + (stage > 0) * self._kept(through)
            for stage, through in self.backwards.items()
        )
        return streams * self.microbatch.stream_bytes

    @property
    def gradients_bytes(self) -> int:
        """Of stages that have been backward once."""
        return sum(self.weights_bytes(stage) for stage, through in self.backwards.items() if through)

    def has_seen_gradients(self, stage: int) -> bool:
        """Whether the gradients that come to a stage are seen."""
        return not self.is_last(stage) and not self.microbatch.is_autocast

    def is_last(self, stage: int) -> bool:
        """Whether a stage has the head."""
        return stage == self.pipeline.stages - 1

    def weights_bytes(self, stage: int) -> int:
        """Of all weights of a stage, or of their gradients."""
        return FULL_BYTES * elements(stage_weights(self.microbatch.shape, self.counts, stage))

    def alone(self, stage: int) -> Microbatch:
        """The microbatch of a model that has the stage's blocks only."""
        return replace(self.microbatch, shape=replace(self.microbatch.shape, layers=self.counts[stage]))

    def _kept(self, sent: int) -> int:
        """Of so many messages in one direction those that torch still holds."""
        return min(sent, 1) if self.pipeline.schedule == "one_f_one_b" else sent


def _moments(rank: _Rank, place: int) -> Iterator[_Live]:
    """Those that can be the peak, action by action."""
    for action in actions(rank.pipeline)[place]:
        if action.kind == "forward":
            yield _end_of_forward(rank, action.stage)
            rank.forwards[action.stage] += 1
        else:
            yield from _Backward(rank=rank, stage=action.stage).moments()
            rank.backwards[action.stage] += 1


def _end_of_forward(rank: _Rank, stage: int) -> _Live:
    """In the last stage the loss has just read the logits."""
    size = rank.alone(stage)
    activations_bytes = rank.waiting_bytes + stored_bytes(rank.microbatch, rank.counts, stage)
    if size.checkpoint != "none":
        activations_bytes += size.shape.layers * size.block_casts_bytes
    if rank.is_last(stage):
        activations_bytes += size.logits_bytes + (size.probabilities_bytes if size.is_autocast else 0)
    return _Live(
        activations_bytes=activations_bytes,
        temporary_bytes=rank.messages_bytes,
        gradients_bytes=rank.gradients_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backward:
    """A stage's backward of one microbatch, by the moments of a model that has the stage's blocks only."""

    rank: _Rank
    stage: int

    def moments(self) -> Iterator[_Live]:
        """From the loss, or the gradient that came, to the stage's input."""
        size, step = self._size, Step(microbatch=self._size, held_bytes=self._held_bytes)
        if self.rank.is_last(self.stage):
            yield self._live(step.loss(), ready=0)
            yield self._live(step.head(), ready=0)
            yield self._live(step.last_norm(), ready=self._head)
        top = size.shape.layers - 1
        for below in {0, max(0, top - 1), top}:
            for moment in step.mlp(below):
                ready = int(moment.ready * size.shape.parameters()) - self._head
                yield self._live(moment, ready=self._after_head(ready), is_top=below == top)
        yield from self._last_block()
        if self.stage == 0:
            yield self._embedding()

    def _last_block(self) -> Iterator[_Live]:
        """The stage's first block, with which backward ends."""
        size, shape = self._size, self._size.shape
        blocks = BlockMoments(microbatch=size, held_bytes=self._held_bytes - size.logits_bytes)
        is_top = shape.layers == 1
        before = (shape.layers - 1) * (shape.block_parameters() + 2 * shape.width)
        if size.is_autocast:
            product = shape.width * shape.mlp_width
            yield self._live(blocks.up(0), ready=self._after_head(before + product), is_top=is_top)
            yield self._live(blocks.gate(0), ready=self._after_head(before + 2 * product), is_top=is_top)
        ready = before + shape.block_parameters() + shape.width - shape.width**2
        yield self._live(blocks.query(0), ready=self._after_head(ready))

    def _embedding(self) -> _Live:
        """The gradient of its table, which is added to that of earlier microbatches."""
        table = self._size.shape.vocabulary * self._size.shape.width
        made_bytes = self._size.stream_bytes + FULL_BYTES * table
        moment = Moment(activations_bytes=self._held_bytes, temporary_bytes=made_bytes)
        return self._live(moment, ready=self.rank.weights_bytes(self.stage) // FULL_BYTES - table)

    def _live(self, moment: Moment, *, ready: int, is_top: bool = False) -> _Live:
        """A moment with what the rank holds beside it.

        ready: weights of the stage that have their gradient, if this is the first backward. is_top: whether what the
        moment begins with is the gradient that came.
        """
        temporary_bytes = moment.temporary_bytes + self.rank.messages_bytes
        if not self.rank.is_last(self.stage):
            temporary_bytes += self._size.stream_bytes * (self.rank.has_seen_gradients(self.stage) - is_top)
        gradients_bytes = self.rank.gradients_bytes
        if not self.rank.backwards[self.stage]:
            gradients_bytes += FULL_BYTES * ready
        return _Live(
            activations_bytes=moment.activations_bytes,
            temporary_bytes=temporary_bytes,
            gradients_bytes=gradients_bytes,
        )

    def _after_head(self, ready: int) -> int:
        return ready + self._head if self.rank.is_last(self.stage) else ready

    @property
    def _held_bytes(self) -> int:
        """What waits, and what this stage gave."""
        waiting_bytes = self.rank.waiting_bytes - stored_bytes(self.rank.microbatch, self.rank.counts, self.stage)
        return waiting_bytes if self.rank.is_last(self.stage) else waiting_bytes + self._size.stream_bytes

    @property
    def _size(self) -> Microbatch:
        return self.rank.alone(self.stage)

    @property
    def _head(self) -> int:
        return self._size.shape.vocabulary * self._size.shape.width
