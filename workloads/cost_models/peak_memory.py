"""Peak of live tensors in one step of a rank that holds the whole model, searched moment by moment.

Backward frees activations while gradients grow: the peak is not the sum of all parts, and not always at one
moment. A moment is a point of the step that can be the peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, Microbatch
from workloads.cost_models.terms import States


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Live bytes on one rank at the peak of a step, in this implementation.

    Sorted as torch's MemTracker sorts them: by what made a tensor, and when.
    buffers_bytes: tables of positions.
    gradients_bytes: gradients of weights that exist at the peak; after the step all do.
    activations_bytes: what forward made or recomputed, and what else the step holds: tokens, logits, and the copy of
    the gradients that is averaged in one piece.
    temporary_bytes: what backward made and still needs: gradients of activations, and of the weight in progress.
    other_bytes: what outlives the step and is not a state, for example the part of gradients that compression left out
    and adds next time.
    Not counted: scalars, and memory outside tensors: the loader, libraries, the allocator's own memory.
    """

    parameters_bytes: int
    buffers_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporary_bytes: int
    other_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All live bytes."""
        states_bytes = self.parameters_bytes + self.buffers_bytes + self.gradients_bytes + self.optimizer_bytes
        return states_bytes + self.activations_bytes + self.temporary_bytes + self.other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """Bytes of gradients that exist before and after the backward of one microbatch."""

    before_bytes: int
    after_bytes: int

    def at(self, ready: Fraction) -> int:
        """Return the bytes that exist when this share of the weights has its gradient."""
        return self.before_bytes + int((self.after_bytes - self.before_bytes) * ready)


def fresh_gradients(gradients_bytes: int, microbatches: int) -> tuple[Backward, ...]:
    """Return the backwards of a step that frees its gradients first: they grow in the first, later ones add to them."""
    grow = Backward(before_bytes=0, after_bytes=gradients_bytes)
    add = Backward(before_bytes=gradients_bytes, after_bytes=gradients_bytes)
    return (grow, *[add] * (microbatches - 1))


def bucketed_gradients(gradients_bytes: int, microbatches: int) -> tuple[Backward, ...]:
    """Return the backwards of a step whose gradients live in permanent buckets, as in DistributedDataParallel.

    Accumulated gradients grow alongside the buckets, until the last backward moves them into the buckets.
    """
    if microbatches == 1:
        return (Backward(before_bytes=gradients_bytes, after_bytes=gradients_bytes),)
    both_bytes = 2 * gradients_bytes
    grow = Backward(before_bytes=gradients_bytes, after_bytes=both_bytes)
    add = Backward(before_bytes=both_bytes, after_bytes=both_bytes)
    move = Backward(before_bytes=both_bytes, after_bytes=gradients_bytes)
    return (grow, *[add] * (microbatches - 2), move)


def step_peak(
    microbatch: Microbatch, *, states: States, backwards: Sequence[Backward], averaged_bytes: int = 0
) -> Prediction:
    """Predict the live bytes at the peak of a step; see `Microbatch` for its scope.

    backwards: one for each microbatch.
    averaged_bytes: gradients that are copied end to end after the last backward, while the originals live.
    Examines only the moments that can be the peak if the MLP is at least twice as wide as the residual stream. In
    microbatches with no more tokens than the stream is wide, other moments come close: the total is right within 3 %,
    but its parts may be those of another moment.
    """
    shape = microbatch.shape
    step = StepMoments(microbatch=microbatch, held_bytes=len(backwards) * microbatch.tokens_bytes)
    moments = [(moment, backward.at(moment.ready)) for backward in backwards for moment in step.moments()]
    moments.append((Moment(activations_bytes=step.held_bytes + averaged_bytes), backwards[-1].after_bytes))
    peak, gradients_bytes = max(moments, key=lambda pair: pair[0].bytes + pair[1])
    return Prediction(
        parameters_bytes=states.parameters_bytes,
        buffers_bytes=FULL_BYTES * shape.sequence * shape.head_width,
        gradients_bytes=gradients_bytes,
        optimizer_bytes=states.optimizer_bytes,
        activations_bytes=peak.activations_bytes,
        temporary_bytes=peak.temporary_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Bytes that the computation itself holds at one moment.

    ready: share of the weights that have their gradient.
    """

    activations_bytes: int
    temporary_bytes: int = 0
    ready: Fraction = Fraction(0)

    @property
    def bytes(self) -> int:
        """Activations and temporaries together."""
        return self.activations_bytes + self.temporary_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMoments:
    """The moments of one microbatch that can be the peak.

    held_bytes: what the step holds through all of them: the rank's tokens.
    """

    microbatch: Microbatch
    held_bytes: int

    def moments(self) -> Iterator[Moment]:
        """Yield the moments from the end of forward to the end of backward."""
        yield self.end_of_forward()
        yield self.loss()
        yield self.head()
        yield self.last_norm()
        # Where blocks are alike, each changes the total by the same amount: the peak is at the top or the bottom block.
        layers = self.microbatch.shape.layers
        for below in reversed(range(layers)) if self.microbatch.checkpoint_every > 1 else (layers - 1, 0):
            yield from self.mlp(below)

    def end_of_forward(self) -> Moment:
        """End of forward: the logits, and autocast's copies of them and of all weights, checkpointed or not."""
        size = self.microbatch
        copies_bytes = size.logits_bytes + (size.probabilities_bytes if size.is_autocast else 0)
        copies_bytes += size.rerun_casts_bytes(size.shape.layers)
        return Moment(activations_bytes=self.stored_bytes + size.head_bytes + copies_bytes)

    def loss(self) -> Moment:
        """Backward of the loss: the gradient of log-probabilities becomes that of logits; targets are freed."""
        size = self.microbatch
        return Moment(
            activations_bytes=self.stored_bytes + size.head_bytes - size.targets_bytes,
            temporary_bytes=2 * size.probabilities_bytes,
        )

    def head(self) -> Moment:
        """Backward of the head: gradients of its weight and input.

        Under autocast it has read both already, and copies their gradients.
        """
        size = self.microbatch
        norm_bytes = size.stream_bytes + size.norm_bytes(readers=1)
        made_bytes = size.stream_bytes + FULL_BYTES * self._head_weights
        if size.is_autocast:
            norm_bytes -= size.width_bytes
            made_bytes += size.head_cast_bytes
        else:
            made_bytes += size.probabilities_bytes
        return Moment(activations_bytes=self.stored_bytes + norm_bytes, temporary_bytes=made_bytes)

    def last_norm(self) -> Moment:
        """Backward of the last norm: five tensors of the stream's size make up the gradient of its input."""
        size = self.microbatch
        return Moment(
            activations_bytes=self.stored_bytes + size.stream_bytes,
            temporary_bytes=5 * size.stream_bytes,
            ready=self._ready(self._head_weights),
        )

    def mlp(self, below: int) -> Iterator[Moment]:
        """Backward of an MLP: its last product gets its gradients, then gate and up get theirs.

        below: number of blocks beneath this one.
        """
        size, shape = self.microbatch.at_block(below), self.microbatch.shape
        down_weights = shape.width * shape.mlp_width
        down_gradient_bytes = FULL_BYTES * down_weights
        read_bytes = size.inner_bytes + size.down_cast_bytes  # Inputs of the last product, unused afterwards.
        below_bytes = self.microbatch.stored_blocks_bytes(below)
        kept_bytes = self.held_bytes + below_bytes + size.block_bytes - read_bytes
        kept_bytes, made_bytes = _recomputed(size, kept_bytes, size.stream_bytes)
        before = self._ready(self._head_weights + (shape.layers - 1 - below) * shape.block_parameters())
        product_bytes = made_bytes + size.inner_bytes
        if size.is_autocast:
            halves_bytes = product_bytes + size.width_bytes + size.down_cast_bytes
            copies_bytes = product_bytes + size.down_cast_bytes + down_gradient_bytes
            yield Moment(activations_bytes=kept_bytes + read_bytes, temporary_bytes=halves_bytes, ready=before)
            yield Moment(activations_bytes=kept_bytes, temporary_bytes=copies_bytes, ready=before)
        else:
            both_bytes = product_bytes + down_gradient_bytes
            yield Moment(activations_bytes=kept_bytes + read_bytes, temporary_bytes=both_bytes, ready=before)
        yield Moment(
            activations_bytes=kept_bytes,
            temporary_bytes=made_bytes + 3 * size.inner_bytes,
            ready=before + self._ready(down_weights),
        )

    @property
    def stored_bytes(self) -> int:
        """What forward keeps of all blocks, and what the step holds."""
        return self.held_bytes + self.microbatch.stored_blocks_bytes(self.microbatch.shape.layers)

    @property
    def _head_weights(self) -> int:
        return self.microbatch.shape.vocabulary * self.microbatch.shape.width

    def _ready(self, weights: int) -> Fraction:
        return Fraction(weights, self.microbatch.shape.parameters())


def _recomputed(size: Microbatch, kept_bytes: int, made_bytes: int) -> tuple[int, int]:
    """Return what backward keeps and makes in a block once it has recomputed what checkpointing left out."""
    if size.checkpoint != "none":  # The stream between attention and MLP is recomputed: temporary.
        kept_bytes -= size.stream_bytes
        made_bytes += size.stream_bytes
    if size.checkpoint == "selective":  # The last product's output is stored, but never used.
        kept_bytes += size.width_bytes
    return kept_bytes, made_bytes


# Further moments of a block, in addition to those of `StepMoments`: in forward of the last block, and in backward
# product by product.
#
# They can be the peak only where a rank does not hold the whole model through the step.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoments:
    """Moments of one block of a microbatch.

    held_bytes: what the step holds through forward and backward.
    """

    microbatch: Microbatch
    held_bytes: int

    def last_block_begins(self) -> Moment:
        """Forward has reached the last block; its input exists."""
        return Moment(activations_bytes=self._before_last_bytes + self.microbatch.stream_bytes)

    def last_mlp_begins(self) -> Moment:
        """Forward has reached the last MLP, and its norm is done."""
        size = self._at_last
        half_bytes = {
            "none": self._attention_bytes,
            "full": 3 * size.stream_bytes,
            "selective": size.stored_block_bytes - 2 * size.inner_bytes - size.width_bytes + 2 * size.stream_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + half_bytes + self._attention_casts_bytes)

    def last_mlp_ends(self) -> Moment:
        """Forward computes the last product of the last block."""
        size = self._at_last
        block_bytes = {
            "none": size.block_bytes + size.width_bytes,
            "full": 3 * size.stream_bytes + size.inner_bytes + size.width_bytes + size.block_casts_bytes,
            "selective": size.stored_block_bytes + 2 * size.stream_bytes + size.inner_bytes + size.block_casts_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + block_bytes)

    def head_ends(self) -> Moment:
        """Forward computes the head's product; the loss has not begun."""
        size = self.microbatch
        norm_bytes = size.stream_bytes + size.norm_bytes(readers=1) + size.head_cast_bytes
        if size.is_autocast:
            norm_bytes += size.stream_bytes  # The head got the norm's output and has copied it.
        layers = size.shape.layers
        blocks_bytes = size.stored_blocks_bytes(layers) + size.rerun_casts_bytes(layers)
        return Moment(activations_bytes=self.held_bytes + size.logits_bytes + blocks_bytes + norm_bytes)

    def backward_begins(self, below: int) -> Moment:
        """Backward has reached the block. below: number of blocks beneath it."""
        size = self.microbatch.at_block(below)
        kept_bytes = self._below_bytes(below) + size.stored_block_bytes
        return Moment(activations_bytes=kept_bytes, temporary_bytes=size.stream_bytes)

    def up(self, below: int) -> Moment:
        """Under autocast: backward copies the gradient of the MLP's second weight (`up`) to fp32."""
        size, after = self.microbatch, self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes + size.inner_bytes + size.width_bytes + size.down_cast_bytes,
            temporary_bytes=after.temporary_bytes + size.inner_bytes + self._mlp_copy_bytes,
        )

    def gate(self, below: int) -> Moment:
        """Under autocast: backward copies the gradient of the MLP's last weight (`gate`) to fp32."""
        after = self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes,
            temporary_bytes=after.temporary_bytes + self._mlp_copy_bytes,
        )

    def mlp_ends(self, below: int) -> Moment:
        """Backward is done with the MLP, but not with its norm."""
        size = self.microbatch.at_block(below)
        kept_bytes = self._below_bytes(below) + self._attention_bytes + self._attention_casts_bytes
        kept_bytes, made_bytes = _recomputed(size, kept_bytes, 2 * size.stream_bytes)
        return Moment(activations_bytes=kept_bytes, temporary_bytes=made_bytes)

    def query(self, below: int) -> Moment:
        """Backward of the block's last product (`query`): gradients of its weight and input."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + size.stream_bytes
        weights = size.shape.width * size.shape.query_width
        made_bytes = 2 * size.stream_bytes + FULL_BYTES * weights
        if size.is_autocast:  # Its inputs are freed, and the gradient of its weight is copied to fp32.
            return Moment(
                activations_bytes=kept_bytes + size.norm_bytes(readers=0),
                temporary_bytes=made_bytes + HALF_BYTES * weights,
            )
        return Moment(
            activations_bytes=kept_bytes + size.norm_bytes(readers=1),
            temporary_bytes=made_bytes + 2 * size.stream_bytes,
        )

    def backward_ends(self, below: int) -> Moment:
        """Backward is done with the block: only the gradient of its input is left."""
        return Moment(activations_bytes=self._below_bytes(below), temporary_bytes=self.microbatch.stream_bytes)

    def _below_bytes(self, below: int) -> int:
        return self.held_bytes + self.microbatch.stored_blocks_bytes(below)

    @property
    def _at_last(self) -> Microbatch:
        return self.microbatch.at_block(self.microbatch.shape.layers - 1)

    @property
    def _before_last_bytes(self) -> int:
        size, before = self.microbatch, self.microbatch.shape.layers - 1
        return self.held_bytes + size.stored_blocks_bytes(before) + size.rerun_casts_bytes(before)

    @property
    def _attention_casts_bytes(self) -> int:
        return self.microbatch.block_casts_bytes - 3 * self.microbatch.down_cast_bytes

    @property
    def _attention_bytes(self) -> int:
        """What backward reads of a block, without the MLP, the inputs of the MLP's products, and copies of weights."""
        size = self.microbatch
        read_bytes = (2 if size.is_autocast else 1) * size.width_bytes
        return size.block_bytes - size.block_casts_bytes - 4 * size.inner_bytes - read_bytes

    @property
    def _mlp_copy_bytes(self) -> int:
        """Gradient of one of the MLP's weights, in both precisions."""
        return (FULL_BYTES + HALF_BYTES) * self.microbatch.shape.width * self.microbatch.shape.mlp_width
