"""The two halves of a backward on CUDA, as zero-bubble schedules run them: gradients of inputs, then those of weights.

The first half frees nothing that forward left: autograd retains the graph, and torch holds the gradient that reaches
each weight's product or norm. The second half computes weight by weight in the model's order, frees what the product
read, and frees the rest at its end.
Source: torch 2.12, torch/distributed/pipelining/_backward.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from workloads.cost_models.cuda.blocks import NOTHING, Around, CudaBlocks, Gradients
from workloads.cost_models.cuda.tape import Kind, Stretch, Tape
from workloads.cost_models.memory import FULL_BYTES


class _RetainingTape(Tape):
    """Records a stretch in which no activation is freed."""

    def change(self, size_bytes: int, kind: Kind = "activations") -> Self:
        return self if kind == "activations" and size_bytes < 0 else super().change(size_bytes, kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaHalves(CudaBlocks):
    """The halves of a backward through the blocks of one microbatch on a rank."""

    def input_half(self, around: Around = NOTHING) -> Stretch:
        """Return the first half of a block's backward; what torch holds for the second half stays as temporary."""
        tape, product = _RetainingTape(), self.product(self.shape.width)
        inner, query, key = (self.product(size) for size in (self._mlp_width, self._query_width, self._kv_width))
        # MLP. The gradients that reach its three products are held: that of its result, and those of up and gate.
        tape.make("held down", product if self.is_cast else 0, "temporary")
        tape.make("d down input", inner, "temporary")
        tape.make("d activated", inner, "temporary").make("held up", inner, "temporary").free("d down input")
        self._hand_on(tape, "up", is_first=True)
        tape.make("held gate", inner, "temporary").free("d activated")
        self._hand_on(tape, "gate", is_first=False)
        tape.play(around.after_mlp)
        self._hold_norm(tape, "2")
        # Attention.
        tape.make("held o", product if self.is_cast else 0, "temporary")
        tape.make("d o input", query, "temporary")
        self._attention_backward(tape, query, key)
        self._turn_back(tape)
        for name in ("v", "k", "q"):
            self._hand_on(tape, name, is_first=name == "v")
        self._hold_norm(tape, "1")
        return tape.stretch()

    def _hand_on(self, tape: Tape, name: str, *, is_first: bool) -> None:
        """Compute the gradient of a product's input alone."""
        tape.make(f"d {name} input", self.product(self.shape.width), "temporary")
        self._to_stream(tape, name, is_first=is_first)

    def _hold_norm(self, tape: Tape, place: str) -> None:
        """Run a norm's backward; the gradient that reaches its weight is held.

        Products that read no cast hold the gradient of the stream itself, so the sum is not made in place.
        """
        self._hold_normed(tape, place)
        tape.make("d stream", self.stream, "temporary")
        tape.make(f"held stream {place}", 0 if self.is_cast else self.stream, "temporary").free("d stream")

    def _hold_normed(self, tape: Tape, place: str) -> None:
        """Hold the gradient of a norm's output, in the stream's precision, of the positions that the rank has of it."""
        if self._has_gathered_input:
            tape.make(f"held norm {place}", self.stream, "temporary").free("d normed")
        else:
            tape.relabel("d normed", f"held norm {place}")

    def weight_half(self, gradients: Gradients) -> Stretch:
        """Return the second half of a block's backward; the rest is freed when the stage's last weight is done."""
        tape, width = Tape(), self.shape.width
        inner, query, key = (self.product(size) for size in (self._mlp_width, self._query_width, self._kv_width))
        result = self.product(width) if self.is_cast else self.stream
        own, shared = self._read_bytes, self._shared_bytes
        tape.make("last", 0, "temporary")
        tape.change(-self.stream, "temporary")  # The norm's weight.
        self._differentiate_weight(tape, width * self._query_width, gradients, freed=own, held=query)
        self._differentiate_weight(tape, width * self._kv_width, gradients, freed=own, held=key)
        self._differentiate_weight(tape, width * self._kv_width, gradients, freed=own + shared, held=key)
        self._differentiate_weight(tape, self._query_width * width, gradients, freed=self._by_token_bytes, held=result)
        tape.change(-self.stream, "temporary")
        self._differentiate_weight(tape, width * self._mlp_width, gradients, freed=own, held=inner)
        self._differentiate_weight(tape, width * self._mlp_width, gradients, freed=own + shared, held=inner)
        self._differentiate_weight(tape, self._mlp_width * width, gradients, freed=inner, held=result)
        return tape.free("last").stretch()

    def _differentiate_weight(self, tape: Tape, weights: int, gradients: Gradients, *, freed: int, held: int) -> None:
        """Compute a weight's gradient. freed: what the product has read. held: the gradient of its result.

        A gradient that is added to another one lives until the next weight's exists.
        """
        self._weight_gradient(tape, weights, gradients, freed=freed + self.copy_bytes(weights))
        tape.change(-held, "temporary")
        added = FULL_BYTES * weights if gradients == "added" else 0
        tape.free("last").make("last", added, "temporary")
