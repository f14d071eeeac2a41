"""The peak of live tensors in one step of a rank that holds the whole model, sought moment by moment.

Backward frees activations while gradients grow: the peak is not the sum of all parts, nor always at one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, Microbatch
from workloads.cost_models.terms import States


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What lives on one rank at the moment of a step at which most does, in this implementation.

    Sorted as torch's MemTracker sorts: by what made a tensor, and by when.
    buffers_bytes: the tables of positions.
    gradients_bytes: those of weights that are there at that moment; after the step all are.
    activations_bytes: what forward made, or ran again, or the step holds beside it: tokens, logits, and the copy of the
    gradients that is averaged at once.
    temporary_bytes: what backward made and still needs: gradients of activations, and of the weight it is at.
    other_bytes: what outlives the step and is no state: what compression left out of gradients, and goes on from.
    Left out are scalars, and what is no tensor: the loader, libraries, the allocator's own.
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
        """All that lives."""
        states_bytes = self.parameters_bytes + self.buffers_bytes + self.gradients_bytes + self.optimizer_bytes
        return states_bytes + self.activations_bytes + self.temporary_bytes + self.other_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """The bytes of gradients that are there before one microbatch's backward, and after it."""

    before_bytes: int
    after_bytes: int

    def at(self, ready: Fraction) -> int:
        """Those that are there when this share of the weights has its gradient."""
        return self.before_bytes + int((self.after_bytes - self.before_bytes) * ready)


def fresh_gradients(gradients_bytes: int, microbatches: int) -> tuple[Backward, ...]:
    """The backwards of a step that first frees its gradients: they grow in one, and are added to in the others."""
    grow = Backward(before_bytes=0, after_bytes=gradients_bytes)
    add = Backward(before_bytes=gradients_bytes, after_bytes=gradients_bytes)
    return (grow, *[add] * (microbatches - 1))


def bucketed_gradients(gradients_bytes: int, microbatches: int) -> tuple[Backward, ...]:
    """The backwards of a step whose gradients live in buckets that are never freed, as DistributedDataParallel's.

    What is accumulated grows beside the buckets, until the last backward moves it into them.
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
    """What lives at the peak of a step; see `Microbatch` for what is covered.

    backwards: one for each microbatch.
    averaged_bytes: gradients that are laid end to end after the last backward, beside themselves.
    Looks at those moments only that can be the peak where the MLP is at least twice as wide as the residual stream. In
    microbatches of no more tokens than the stream is wide, other moments come near: the total is right within 3 %,
    while its parts may be those of another moment.
    """
    shape = microbatch.shape
    step = Step(microbatch=microbatch, held_bytes=len(backwards) * microbatch.tokens_bytes + microbatch.logits_bytes)
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
    """What the work itself holds at one moment.

    ready: the share of the weights that have their gradient.
    """

    activations_bytes: int
    temporary_bytes: int = 0
    ready: Fraction = Fraction(0)

    @property
    def bytes(self) -> int:
        """Both together."""
        return self.activations_bytes + self.temporary_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The moments of one microbatch that can be the peak.

    held_bytes: what the step holds through all of them: the rank's tokens, and the logits.
    """

    microbatch: Microbatch
    held_bytes: int

    def moments(self) -> Iterator[Moment]:
        """From the end of forward to that of backward."""
        yield self.end_of_forward()
        yield self.loss()
        yield self.head()
        yield self.last_norm()
        # Blocks are alike, and so is the change from each to the one below: the peak is at one of the two ends.
        yield from self.mlp(below=self.microbatch.shape.layers - 1)
        yield from self.mlp(below=0)

    def end_of_forward(self) -> Moment:
        """Until here live autocast's copies of all weights, checkpointed or not, and of the logits."""
        size = self.microbatch
        copies_bytes = size.probabilities_bytes if size.is_autocast else 0
        if size.checkpoint != "none":
            copies_bytes += size.shape.layers * size.block_casts_bytes
        return Moment(activations_bytes=self.stored_bytes + size.head_bytes + copies_bytes)

    def loss(self) -> Moment:
        """The gradient of the logarithms becomes that of the logits; the targets are gone."""
        size = self.microbatch
        return Moment(
            activations_bytes=self.stored_bytes + size.head_bytes - size.targets_bytes,
            temporary_bytes=2 * size.probabilities_bytes,
        )

    def head(self) -> Moment:
        """The gradients of the head's weight and input; under autocast it has read both already, and copies them."""
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
        """The gradient of its input comes together from five tensors of that size."""
        size = self.microbatch
        return Moment(
            activations_bytes=self.stored_bytes + size.stream_bytes,
            temporary_bytes=5 * size.stream_bytes,
            ready=self._ready(self._head_weights),
        )

    def mlp(self, below: int) -> Iterator[Moment]:
        """The MLP's last product gets its gradients, then gate and up get theirs.

        below: blocks beneath this one.
        """
        size, shape = self.microbatch, self.microbatch.shape
        down_weights = shape.width * shape.mlp_width
        down_gradient_bytes = FULL_BYTES * down_weights
        read_bytes = size.inner_bytes + size.down_cast_bytes  # By the last product; nothing after it needs them.
        kept_bytes = self.held_bytes + below * size.stored_block_bytes + size.block_bytes - read_bytes
        made_bytes = size.stream_bytes
        if size.checkpoint != "none":  # The stream between attention and MLP is made anew, by backward.
            kept_bytes -= size.stream_bytes
            made_bytes += size.stream_bytes
        if size.checkpoint == "selective":
            kept_bytes += size.width_bytes  # What the last product gave is stored, and never asked for.
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
        """What forward leaves of all blocks, and what is held."""
        return self.held_bytes + self.microbatch.shape.layers * self.microbatch.stored_block_bytes

    @property
    def _head_weights(self) -> int:
        return self.microbatch.shape.vocabulary * self.microbatch.shape.width

    def _ready(self, weights: int) -> Fraction:
        return Fraction(weights, self.microbatch.shape.parameters())


# What the work itself holds at moments of a block that can be the peak only where weights come and go.
#
# Beside those of `workloads.cost_models.peak_memory`: of its last forward, and of its backward, product by product.


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoments:
    """The moments of one block of a microbatch.

    held_bytes: what the step holds through forward and backward but the logits.
    """

    microbatch: Microbatch
    held_bytes: int

    def last_block_begins(self) -> Moment:
        """Forward has come to the last block; its input is there."""
        return Moment(activations_bytes=self._before_last_bytes + self.microbatch.stream_bytes)

    def last_mlp_begins(self) -> Moment:
        """Forward has come to the last MLP, and its norm is through."""
        size = self.microbatch
        half_bytes = {
            "none": self._attention_bytes,
            "full": 3 * size.stream_bytes,
            "selective": size.stored_block_bytes - 2 * size.inner_bytes - size.width_bytes + 2 * size.stream_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + half_bytes + self._attention_casts_bytes)

    def last_mlp_ends(self) -> Moment:
        """The last product of the last block, in forward."""
        size = self.microbatch
        block_bytes = {
            "none": size.block_bytes + size.width_bytes,
            "full": 3 * size.stream_bytes + size.inner_bytes + size.width_bytes + size.block_casts_bytes,
            "selective": size.stored_block_bytes + 2 * size.stream_bytes + size.inner_bytes + size.block_casts_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + block_bytes)

    def head_ends(self) -> Moment:
        """The head's product, in forward; the loss has not begun."""
        size = self.microbatch
        norm_bytes = size.stream_bytes + size.norm_bytes(readers=1) + size.head_cast_bytes
        if size.is_autocast:
            norm_bytes += size.stream_bytes  # The head was handed what the norm gave, and has made a copy.
        blocks_bytes = size.shape.layers * (size.stored_block_bytes + self._casts_bytes)
        return Moment(activations_bytes=self.held_bytes + size.logits_bytes + blocks_bytes + norm_bytes)

    def backward_begins(self, below: int) -> Moment:
        """Backward has come to the block. below: blocks beneath it."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + size.stored_block_bytes
        return Moment(activations_bytes=kept_bytes, temporary_bytes=size.stream_bytes)

    def up(self, below: int) -> Moment:
        """Under autocast: the gradient of a weight of the MLP, the second that is ready, is copied to fp32."""
        size, after = self.microbatch, self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes + size.inner_bytes + size.width_bytes + size.down_cast_bytes,
            temporary_bytes=after.temporary_bytes + size.inner_bytes + self._mlp_copy_bytes,
        )

    def gate(self, below: int) -> Moment:
        """Under autocast: the gradient of the MLP's last weight is copied to fp32."""
        after = self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes,
            temporary_bytes=after.temporary_bytes + self._mlp_copy_bytes,
        )

    def mlp_ends(self, below: int) -> Moment:
        """Backward is through with the MLP, and not yet with its norm."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + self._attention_bytes + self._attention_casts_bytes
        made_bytes = 2 * size.stream_bytes
        if size.checkpoint != "none":  # The stream between attention and MLP is made anew, by backward.
            kept_bytes -= size.stream_bytes
            made_bytes += size.stream_bytes
        if size.checkpoint == "selective":
            kept_bytes += size.width_bytes  # What the last product gave is stored, and never asked for.
        return Moment(activations_bytes=kept_bytes, temporary_bytes=made_bytes)

    def query(self, below: int) -> Moment:
        """The last of the block's products gets its gradients, those of its weight and input."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + size.stream_bytes
        weights = size.shape.width**2
        made_bytes = 2 * size.stream_bytes + FULL_BYTES * weights
        if size.is_autocast:  # What it read is gone, and the gradient of its weight is copied to fp32.
            return Moment(
                activations_bytes=kept_bytes + size.norm_bytes(readers=0),
                temporary_bytes=made_bytes + HALF_BYTES * weights,
            )
        return Moment(
            activations_bytes=kept_bytes + size.norm_bytes(readers=1),
            temporary_bytes=made_bytes + 2 * size.stream_bytes,
        )

    def backward_ends(self, below: int) -> Moment:
        """The gradient of the block's input is all that it leaves."""
        return Moment(activations_bytes=self._below_bytes(below), temporary_bytes=self.microbatch.stream_bytes)

    def _below_bytes(self, below: int) -> int:
        return self.held_bytes + self.microbatch.logits_bytes + below * self.microbatch.stored_block_bytes

    @property
    def _before_last_bytes(self) -> int:
        size = self.microbatch
        return self.held_bytes + (size.shape.layers - 1) * (size.stored_block_bytes + self._casts_bytes)

    @property
    def _casts_bytes(self) -> int:
        """A block's copies of weights, where forward stores none of them: they live until its end."""
        return self.microbatch.block_casts_bytes if self.microbatch.checkpoint != "none" else 0

    @property
    def _attention_casts_bytes(self) -> int:
        return self.microbatch.block_casts_bytes - 3 * self.microbatch.down_cast_bytes

    @property
    def _attention_bytes(self) -> int:
        """Of what backward reads of a block, all but the MLP, what its products read, and copies of weights."""
        size = self.microbatch
        read_bytes = (2 if size.is_autocast else 1) * size.width_bytes
        return size.block_bytes - size.block_casts_bytes - 4 * size.inner_bytes - read_bytes

    @property
    def _mlp_copy_bytes(self) -> int:
        """A gradient of one of the MLP's weights, in both precisions."""
        return (FULL_BYTES + HALF_BYTES) * self.microbatch.shape.width * self.microbatch.shape.mlp_width
