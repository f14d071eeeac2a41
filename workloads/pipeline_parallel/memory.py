"""Memory and traffic of pipeline stages: states, activations, messages, and the peak of live tensors in a step.

The peak is searched action by action: a stage's work on one microbatch adds to what the rank holds for others. Receive
buffers also live, and sent tensors as long as torch keeps their handles. MemTracker sees a buffer from its first use
on, but under autocast never a buffer of gradients, because autocast only copies it.
Not covered: schedules that split backward, for which autograd chooses what one half keeps for the other.
Source: torch 2.13, torch/distributed/pipelining/stage.py and schedules.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from workloads.cost_models.memory import FULL_BYTES, INDEX_BYTES, Microbatch
from workloads.cost_models.peak_memory import BlockMoments, Moment, Prediction, StepMoments
from workloads.cost_models.schedules import (
    HALVED_BACKWARD,
    Pipeline,
    actions,
    actions_of_rank,
    live_microbatches_of_stages,
)
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Dimensions, States, Transfer, block_weights, elements, outer_weights

LOSS_BYTES = 4
"""Bytes of the last stage's output, a loss in fp32."""
STEP_BYTES = 4
"""Bytes of AdamW's step count, one per weight tensor, in fp32."""


def stage_weights(shape: Shape, counts: Sequence[int], stage: int) -> tuple[Dimensions, ...]:
    """Return the tensors of one stage: its blocks; in the first the embedding; in the last the last norm and head."""
    embedding, norm, head = outer_weights(shape)
    return (
        *((embedding,) if stage == 0 else ()),
        *block_weights(shape) * counts[stage],
        *((norm, head) if stage == len(counts) - 1 else ()),
    )


def stage_states(weights: Iterable[Dimensions]) -> States:
    """Return weights, gradients and AdamW's two moments of these tensors, all in fp32."""
    tensors = tuple(weights)
    weights_bytes = FULL_BYTES * elements(tensors)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + STEP_BYTES * len(tensors),
    )


def boundary_bytes(shape: Shape, sequences: int, *, element_bytes: int = FULL_BYTES) -> int:
    """Return the bytes of one microbatch's residual stream, which stages pass on.

    element_bytes: of the stream; it is fp32 even under autocast, and bf16 if weights compute in bf16.
    """
    return element_bytes * sequences * shape.sequence * shape.width


def boundary_transfers(pipeline: Pipeline, *, numbers: int) -> tuple[Transfer, ...]:
    """Return the transfers of the rank that sends most: activations to the next stage, gradients to the previous one.

    numbers: scalars that the ranks of a pipeline agree on in a step, for example the norm of all gradients.
    """
    if pipeline.ranks == 1:
        return ()
    messages = max(_messages(pipeline, rank) for rank in range(pipeline.ranks))
    sent = Transfer(collective="send", axis="stage", payload_bytes=messages * pipeline.boundary_bytes, calls=messages)
    return (sent, *boundary_agreements(pipeline, numbers=numbers))


def boundary_agreements(pipeline: Pipeline, *, numbers: int) -> tuple[Transfer, ...]:
    """Return the transfers in which the ranks of a pipeline agree on single numbers, after a step's last backward."""
    if pipeline.ranks == 1 or not numbers:
        return ()
    return (Transfer(collective="all_reduce", axis="stage", payload_bytes=FULL_BYTES * numbers, calls=numbers),)


def stored_bytes(microbatch: Microbatch, counts: Sequence[int], stage: int) -> int:
    """Return the bytes that a stage's forward of one microbatch keeps: its input, and its output until that is sent.

    Tokens do not count: they live through the whole step.
    """
    out_bytes = microbatch.head_bytes + LOSS_BYTES if stage == len(counts) - 1 else microbatch.stream_bytes
    own = microbatch_of_stage(microbatch, counts, stage)
    return own.stored_blocks_bytes(counts[stage]) + out_bytes


def microbatch_of_stage(microbatch: Microbatch, counts: Sequence[int], stage: int) -> Microbatch:
    """Return the microbatch of a model that has only the stage's blocks."""
    shape = replace(microbatch.shape, layers=counts[stage])
    return replace(microbatch, shape=shape, first_block=sum(counts[:stage]))


def activations_by_stage(pipeline: Pipeline, microbatch: Microbatch, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the most bytes that the forwards of each stage's live microbatches hold at once, without tokens.

    A tensor that a stage passes to another stage on the same rank is also that stage's input; it counts for the stage
    that made it.

    Raises:
        ValueError: the schedule cannot run this pipeline.
    """
    live = live_microbatches_of_stages(actions(pipeline))
    stages_bytes = []
    for stage in range(pipeline.stages):
        is_handed = stage > 0 and pipeline.rank_of(stage - 1) == pipeline.rank_of(stage)
        own_bytes = stored_bytes(microbatch, counts, stage) - (microbatch.stream_bytes if is_handed else 0)
        stages_bytes.append(live[stage] * own_bytes)
    return tuple(stages_bytes)


def _messages(pipeline: Pipeline, rank: int) -> int:
    """Return the tensors that a rank sends in a step: one per microbatch and stage end that faces another rank."""
    facing = sum(
        0 <= neighbour < pipeline.stages and pipeline.rank_of(neighbour) != rank
        for stage in pipeline.stages_of(rank)
        for neighbour in (stage - 1, stage + 1)
    )
    return facing * pipeline.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class _LiveBytes:
    """Live bytes at one moment, in addition to the permanent states."""

    activations_bytes: int
    temporary_bytes: int
    gradients_bytes: int

    @property
    def bytes(self) -> int:
        return self.activations_bytes + self.temporary_bytes + self.gradients_bytes


def pipeline_step_peak(pipeline: Pipeline, microbatch: Microbatch, counts: Sequence[int], rank: int) -> Prediction:
    """Predict the live bytes on a pipeline rank at the peak of a step; see `Microbatch` for its scope.

    counts: blocks of each stage.

    Raises:
        ValueError: the schedule splits backward, or cannot run this pipeline.
    """
    if pipeline.schedule in HALVED_BACKWARD:
        raise ValueError(f"{pipeline.schedule} splits backward, and the peak is predicted for whole backwards only")
    peak = max(_moments(pipeline, microbatch, counts, rank), key=lambda moment: moment.bytes)
    shape, stages = microbatch.shape, pipeline.stages_of(rank)
    states = stage_states(weight for stage in stages for weight in stage_weights(shape, counts, stage))
    return Prediction(
        parameters_bytes=states.parameters_bytes,
        buffers_bytes=len(stages) * FULL_BYTES * shape.sequence * shape.head_width,  # Each stage has its own tables.
        gradients_bytes=peak.gradients_bytes,
        optimizer_bytes=states.optimizer_bytes,
        activations_bytes=peak.activations_bytes,
        temporary_bytes=peak.temporary_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """A rank between two actions: how many forwards and backwards each stage has run.

    has_first: it has the first stage, and so a copy of the inputs without the last token of each sequence.
    """

    pipeline: Pipeline
    microbatch: Microbatch
    counts: Sequence[int]
    has_first: bool
    forwards: Counter[int] = field(default_factory=Counter)
    backwards: Counter[int] = field(default_factory=Counter)

    @property
    def waiting_bytes(self) -> int:
        """Activations of microbatches between forward and backward, and what messages still hold of finished ones."""
        waiting_bytes = self.pipeline.microbatches * self.microbatch.tokens_bytes
        sequences = self.pipeline.microbatches * self.microbatch.sequences
        if self.has_first and sequences > 1:  # One sequence without its last token is already contiguous.
            waiting_bytes += INDEX_BYTES * sequences * self.microbatch.shape.sequence
        for stage, begun in self.forwards.items():
            waiting_bytes += (begun - self.backwards[stage]) * stored_bytes(self.microbatch, self.counts, stage)
        streams = sum(
            (stage > 0) * count + (not self.is_last(stage)) * self._unfreed(count)
            for stage, count in self.backwards.items()
        )
        return waiting_bytes + streams * self.microbatch.stream_bytes

    @property
    def messages_bytes(self) -> int:
        """Received gradients, and sent gradients that torch still holds."""
        streams = sum(
            self.sees_received_gradients(stage) * count + (stage > 0) * self._unfreed(count)
            for stage, count in self.backwards.items()
        )
        return streams * self.microbatch.stream_bytes

    @property
    def gradients_bytes(self) -> int:
        """Weight gradients of the stages that have run a backward."""
        return sum(self.weights_bytes(stage) for stage, count in self.backwards.items() if count)

    def sees_received_gradients(self, stage: int) -> bool:
        """Whether MemTracker sees the gradients that a stage receives."""
        return not self.is_last(stage) and not self.microbatch.is_autocast

    def is_last(self, stage: int) -> bool:
        """Whether a stage is the last, which has the head."""
        return stage == self.pipeline.stages - 1

    def weights_bytes(self, stage: int) -> int:
        """Return the bytes of all weights of a stage, or of their gradients."""
        return FULL_BYTES * elements(stage_weights(self.microbatch.shape, self.counts, stage))

    def microbatch_of(self, stage: int) -> Microbatch:
        """See `microbatch_of_stage`."""
        return microbatch_of_stage(self.microbatch, self.counts, stage)

    def end_of_forward(self, stage: int) -> _LiveBytes:
        """Return the end of a stage's forward; in the last stage the loss has just read the logits."""
        size = self.microbatch_of(stage)
        activations_bytes = self.waiting_bytes + stored_bytes(self.microbatch, self.counts, stage)
        activations_bytes += size.rerun_casts_bytes(size.shape.layers)
        if self.is_last(stage):
            activations_bytes += size.logits_bytes + (size.probabilities_bytes if size.is_autocast else 0)
        return _LiveBytes(
            activations_bytes=activations_bytes,
            temporary_bytes=self.messages_bytes,
            gradients_bytes=self.gradients_bytes,
        )

    def backward(self, stage: int) -> Iterator[_LiveBytes]:
        """Yield the moments of a stage's backward, from the loss or the received gradient to the stage's input.

        They are moments of a model with only the stage's blocks, together with what else the rank holds.
        """
        size, is_last = self.microbatch_of(stage), self.is_last(stage)
        shape, table = size.shape, size.shape.vocabulary * size.shape.width
        head = table if is_last else 0
        # Activations of waiting microbatches, and this stage's own output.
        held_bytes = self.waiting_bytes - stored_bytes(self.microbatch, self.counts, stage)
        if not is_last:
            held_bytes += size.stream_bytes

        def live(moment: Moment, *, ready: int, is_top: bool = False) -> _LiveBytes:
            """ready: number of the stage's weights that have their gradient, if this is its first backward.

            is_top: the moment starts from the received gradient itself, which its own bytes include.
            """
            temporary_bytes = moment.temporary_bytes + self.messages_bytes
            if not is_last:
                # The received gradient, unless the moment already counts it.
                temporary_bytes += size.stream_bytes * (self.sees_received_gradients(stage) - is_top)
            return _LiveBytes(
                activations_bytes=moment.activations_bytes,
                temporary_bytes=temporary_bytes,
                gradients_bytes=self.gradients_bytes + (0 if self.backwards[stage] else FULL_BYTES * ready),
            )

        step = StepMoments(microbatch=size, held_bytes=held_bytes)
        if is_last:
            yield live(step.loss(), ready=0)
            yield live(step.head(), ready=0)
            yield live(step.last_norm(), ready=head)
        top = shape.layers - 1
        # If blocks are alike, the outermost ones and the one under the received gradient are enough.
        for below in {0, max(0, top - 1), top} if size.checkpoint_every == 1 else range(shape.layers):
            for moment in step.mlp(below):
                # `StepMoments` counts the head as ready, which only the last stage has.
                ready = int(moment.ready * shape.parameters()) - table
                yield live(moment, ready=head + ready, is_top=below == top)
        # The stage's first block, the last one in backward.
        blocks = BlockMoments(microbatch=size, held_bytes=held_bytes)
        before = head + (shape.layers - 1) * (shape.block_parameters() + 2 * shape.width)
        if size.is_autocast:
            product = shape.width * shape.mlp_width
            yield live(blocks.up(0), ready=before + product, is_top=shape.layers == 1)
            yield live(blocks.gate(0), ready=before + 2 * product, is_top=shape.layers == 1)
        after_query = before + shape.block_parameters() + shape.width
        yield live(blocks.query(0), ready=after_query - shape.width * shape.query_width)
        if stage == 0:
            # The embedding's gradient, which is added to that of earlier microbatches.
            made_bytes = size.stream_bytes + FULL_BYTES * table
            embedding = Moment(activations_bytes=held_bytes, temporary_bytes=made_bytes)
            yield live(embedding, ready=self.weights_bytes(stage) // FULL_BYTES - table)

    def _unfreed(self, sent: int) -> int:
        """Return how many of the messages sent in one direction torch still holds."""
        return min(sent, 1) if self.pipeline.schedule == "one_f_one_b" else sent


def _moments(pipeline: Pipeline, microbatch: Microbatch, counts: Sequence[int], rank: int) -> Iterator[_LiveBytes]:
    """Yield the moments that can be the peak, action by action."""
    has_first = 0 in pipeline.stages_of(rank)
    state = _Rank(pipeline=pipeline, microbatch=microbatch, counts=counts, has_first=has_first)
    for action in actions_of_rank(pipeline, rank):
        if action.kind == "forward":
            yield state.end_of_forward(action.stage)
            state.forwards[action.stage] += 1
        else:
            yield from state.backward(action.stage)
            state.backwards[action.stage] += 1
