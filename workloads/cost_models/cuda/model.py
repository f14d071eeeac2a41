"""Tensors that embedding, head and loss make and free on CUDA, to complete one microbatch on a rank."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.cost_models.cuda.blocks import Gradients
from workloads.cost_models.cuda.halves import CudaHalves
from workloads.cost_models.cuda.tape import STILL, Stretch, Tape
from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, INDEX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaModel(CudaHalves):
    """One microbatch through a rank's part of the model."""

    # Embedding, head and loss.

    def embedding(self) -> Stretch:
        """Return the embedding's forward, whose result is the stream."""
        tape = Tape()
        copied = HALF_BYTES * self.shape.vocabulary * self.shape.width if self.copies == "each" else 0
        tape.make("copy", copied)
        columns = FULL_BYTES if self.stream_bytes == FULL_BYTES else HALF_BYTES
        if self.tensor_ranks > 1:  # Columns of each rank, gathered and then laid out again.
            own = columns * self.tokens * self.shape.width // self.tensor_ranks
            tape.make("columns", own).brief(2 * columns * self.tokens * self.shape.width)
            tape.make("stream", self.stream).free("columns")
        else:
            tape.make("stream", self.stream)
        return tape.free("copy").stretch()

    def embedding_backward(self, gradients: Gradients) -> Stretch:
        """Return the embedding's backward, which frees the gradient of the stream."""
        tape, weights = Tape(), self.shape.vocabulary * self.shape.width // self.tensor_ranks
        raw = self.stream_bytes * weights
        tape.make("raw", raw, "temporary").change(-self.stream, "temporary")
        if self.gradient_bytes != self.stream_bytes:
            tape.brief(self.gradient_bytes * weights)
        tape.free("raw")
        if gradients == "new":
            tape.change(self.gradient_bytes * weights, "gradients")
        return tape.stretch()

    def head(self, after_model: Stretch = STILL) -> Stretch:
        """Return the forward of last norm, head and loss; the loss is a number that is not counted.

        after_model: what happens when the model returns: its logits, or the loss where that is computed in chunks.
        """
        tape, width = Tape(), self.shape.width
        tape.make("normed", self.stream).make("scales", self.norm_scales)
        if self.loss_chunks > 1:
            tape.make("targets", INDEX_BYTES * self.tokens)
            tape.make("W", self.copy_bytes(self.shape.vocabulary * width))
            part = -(-self.tokens // self.loss_chunks)
            cast = self.product_bytes * part * width if self.is_cast else 0
            logits = self.product_bytes * part * self.shape.vocabulary
            whole = FULL_BYTES * part * self.shape.vocabulary
            tape.brief(cast + logits + (whole if self.product_bytes != FULL_BYTES else 0) + whole)
            if self.copies != "cached":
                tape.free("W")
            return tape.play(after_model).stretch()
        if self.is_cast or self._has_gathered_input:
            tape.make("cast", self.product(width))
        vocabulary = self.shape.vocabulary if not self.is_loss_sharded else self._own_vocabulary
        tape.make("W", self.copy_bytes(self._own_vocabulary * width))
        if self.tensor_ranks > 1 and not self.is_loss_sharded:
            # Gathered along the last dimension: the parts as they come, and then side by side.
            tape.make("own", self.product(self._own_vocabulary)).make("parts", self.product(vocabulary))
            tape.make("logits", self.product(vocabulary)).free("own", "parts")
        else:
            tape.make("logits", self.product(vocabulary))
        if self.is_cast or self._has_gathered_input:
            tape.free("normed")
        tape.play(after_model)
        whole = FULL_BYTES * self.tokens * vocabulary
        tape.make("targets", self._targets_bytes)
        if self.product_bytes != FULL_BYTES:
            tape.make("whole logits", whole)
        tape.make("logarithms", whole)
        tape.free("logits", *(("whole logits",) if self.product_bytes != FULL_BYTES else ()))
        return tape.stretch()

    @property
    def _targets_bytes(self) -> int:
        return INDEX_BYTES * self.tokens

    @property
    def head_copy_bytes(self) -> int:
        """Autocast's copy of the head, which forward leaves without keeping it where the loss is in chunks."""
        is_left = self.copies == "cached" and self.loss_chunks > 1
        return self.copy_bytes(self.shape.vocabulary * self.shape.width) if is_left else 0

    def head_backward(self, gradients: Gradients, before_model: Stretch = STILL) -> Stretch:
        """Return the backward of loss, head and last norm, which ends with the gradient of the stream.

        before_model: what happens when the model's result has its gradient.
        """
        tape, width, weights = Tape(), self.shape.width, self._own_vocabulary * self.shape.width
        stored = self.head().net.activations - self.head_copy_bytes
        if self.loss_chunks > 1:
            self._chunks_backward(tape.play(before_model), gradients)
        else:
            vocabulary = self.shape.vocabulary if not self.is_loss_sharded else self._own_vocabulary
            whole = FULL_BYTES * self.tokens * vocabulary
            tape.make("d logarithms", whole, "temporary").make("d logits", whole, "temporary")
            if self.is_loss_sharded:  # Ones at the targets, and exponentials.
                tape.brief(whole)
            tape.free("d logarithms").change(-whole - self._targets_bytes)
            if self.product_bytes != FULL_BYTES:
                tape.make("rounded", self.product(vocabulary), "temporary").free("d logits")
            else:
                tape.make("rounded", 0, "temporary")
            tape.play(before_model)
            if self.tensor_ranks > 1 and not self.is_loss_sharded:
                tape.make("own", self.product(self._own_vocabulary), "temporary")
            tape.make("d head input", self.product(width), "temporary")
            copied = self.copy_bytes(weights) + (self.product(width) if self.is_cast or self._has_gathered_input else 0)
            is_own = self.tensor_ranks > 1 and not self.is_loss_sharded
            done = [
                "rounded",
                *(["own"] if is_own else []),
                *(["d logits"] if self.product_bytes == FULL_BYTES else []),
            ]
            self._weight_gradient(tape, weights, gradients, freed=copied, done=done)
            self._to_stream(tape, "head", is_first=True)
        if self.loss_chunks > 1 or not self._has_gathered_input:
            tape.make("d stream", self.stream, "temporary").free("d normed")
        else:
            tape.brief(self.product(width)).make("d stream", self.stream, "temporary").free("d normed")
        tape.change(-stored - self.stream - tape.stretch().net.activations)
        return tape.stretch()

    # The halves of the head's backward; the loss is not in chunks.

    def head_input_half(self) -> Stretch:
        """Return the first half, which holds the gradients of the logits and of the norm's output."""
        tape, logits = Tape(), FULL_BYTES * self.tokens * self.shape.vocabulary
        tape.make("d logarithms", logits, "temporary").make("d logits", logits, "temporary").free("d logarithms")
        if self.product_bytes != FULL_BYTES:
            tape.make("rounded", self.product(self.shape.vocabulary), "temporary").free("d logits")
        else:
            tape.relabel("d logits", "rounded")
        if self.tensor_ranks > 1:  # The rank's part of it is a tensor of its own.
            tape.make("held", self.product(self._own_vocabulary), "temporary").free("rounded")
        self._hand_on(tape, "head", is_first=True)
        self._hold_normed(tape, "last")
        return tape.make("d stream", self.stream, "temporary").stretch()

    @property
    def loss_bytes(self) -> int:
        """Bytes that the loss alone keeps; they are freed when the first half of the stage's backward is done."""
        return FULL_BYTES * self.tokens * self.shape.vocabulary + self._targets_bytes

    def head_weight_half(self, gradients: Gradients) -> Stretch:
        """Return the second half."""
        tape, weights = Tape(), self._own_vocabulary * self.shape.width
        tape.make("last", 0, "temporary").change(-self.stream, "temporary")
        held = self.product(self._own_vocabulary)
        is_own = self.is_cast or self._has_gathered_input
        freed = self.product(self.shape.width) if is_own else self.stream
        self._differentiate_weight(tape, weights, gradients, freed=freed, held=held)
        return tape.free("last").stretch()

    def _chunks_backward(self, tape: Tape, gradients: Gradients) -> None:
        """Compute each chunk's logits again, and its gradients; those of the head's weight are added up."""
        shape, weights = self.shape, self.shape.vocabulary * self.shape.width
        part = -(-self.tokens // self.loss_chunks)
        logits, whole = (size * part * shape.vocabulary for size in (self.product_bytes, FULL_BYTES))
        is_rounded = self.product_bytes != FULL_BYTES
        # A copy that is made for each use has a gradient of its own; the others share one in the product's precision.
        sum_bytes = (self.gradient_bytes if self.copies == "each" else self.product_bytes) * weights
        tape.make("sum", 0, "temporary")
        for chunk in range(self.loss_chunks):
            if chunk == 1:
                tape.free("sum").make("sum", sum_bytes, "temporary")
            tape.make("cast", self.product_bytes * part * shape.width if self.is_cast else 0)
            tape.make("W", self.copy_bytes(weights))
            tape.make("logits", logits).make("whole logits", whole if is_rounded else 0).make("logarithms", whole)
            tape.free("logits", "whole logits")
            tape.make("d logarithms", whole, "temporary").make("d logits", whole, "temporary")
            tape.free("d logarithms", "logarithms")
            if is_rounded:
                tape.make("rounded", logits, "temporary").free("d logits")
            tape.make("raw input", self.product_bytes * part * shape.width, "temporary")
            tape.make("raw", self.product_bytes * weights, "temporary").free("W", "cast")
            if self.copies == "each":
                tape.brief(sum_bytes)
            tape.make(f"d {chunk}", self.stream_bytes * part * shape.width, "temporary")
            tape.free("raw", "raw input", "rounded" if is_rounded else "d logits")
        tape.free("sum")
        tape.make("sum", sum_bytes, "temporary")
        whole_bytes = self.gradient_bytes * weights
        if sum_bytes != whole_bytes:
            tape.brief(whole_bytes)
        tape.free("sum")
        if gradients == "new":
            tape.change(whole_bytes, "gradients")
        tape.make("d normed", self.stream, "temporary")
        tape.free(*(f"d {chunk}" for chunk in range(self.loss_chunks)))
