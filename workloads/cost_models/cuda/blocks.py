"""Tensors that a block's forward and backward make and free on CUDA, in torch's order.

Follows `workloads.core.transformer` through autograd: an operator's result lives until Python drops it or, where its
backward reads it, until that backward has run. Attention is torch's flash kernel, in fp32 the memory-efficient one, or
plain products; cuDNN's keeps the same tensors as flash.
Not covered: compiled blocks, products in fp8.
Source: torch 2.12, derivatives.yaml, torch/csrc/autograd/engine.cpp and input_buffer.cpp; flash_api.cpp, mha_bwd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from workloads.cost_models.cuda.sizes import CudaSizes
from workloads.cost_models.cuda.tape import STILL, Stretch, Tape, in_turn
from workloads.cost_models.memory import FULL_BYTES, Checkpoint

Gradients = Literal["new", "added"]
"""new: a weight's gradient is its first, and stays. added: it is added to a gradient that lives elsewhere."""

_Run = Literal["kept", "dropped", "selective", "again", "again_selective"]
"""How a block's forward runs. kept: all that backward reads stays. dropped, selective: under checkpointing. again,
again_selective: repeated in backward, which keeps everything and stops before the last product."""


_OF_PRODUCTS = ("scaled q", "scaled k", "kept v", "shares")
"""Tensors that attention by plain products leaves for backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Stretches around the halves of a block, in forward or in backward, for example gathering their weights."""

    before_attention: Stretch = STILL
    after_attention: Stretch = STILL
    before_mlp: Stretch = STILL
    after_mlp: Stretch = STILL


NOTHING = Around()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaBlocks(CudaSizes):
    """The blocks of one microbatch on a rank."""

    # Forward of a block.

    def forward(self, block: int, around: Around = NOTHING) -> Stretch:
        """Return a block's forward; its result is the stream between it and the next block."""
        return _forward(self, self.checkpoint_of(block), around)

    def run_block(self, run: _Run, around: Around = NOTHING) -> Stretch:
        """Return a block's forward, as forward runs it or as backward repeats it."""
        tape, width, is_again = Tape(), self.shape.width, run in ("again", "again_selective")
        kept = run == "kept" or is_again
        # Attention.
        self._norm(tape, "1")
        tape.play(around.before_attention)
        for name, size in (("q", self._query_width), ("k", self._kv_width), ("v", self._kv_width)):
            self._multiply(tape, name, "1", width * size, self.product(size), run)
        for name, size in (("q", self._query_width), ("k", self._kv_width)):
            # In fp32: the head, two halves of the result, and of one half both products and their sum.
            cast_bytes = FULL_BYTES * self.tokens * size if self.product_bytes != FULL_BYTES else 0
            tape.brief(cast_bytes + 2 * FULL_BYTES * self.tokens * size)
            tape.make(f"turned {name}", self.product(size))
        if self.is_efficient:
            tape.make("repeated k", self.product(self._query_width)).make("repeated v", self.product(self._query_width))
            tape.free("turned k")
        tape.brief(self.forward_attention_bytes)
        if self.is_math:
            self._attend_by_products(tape)
        elif run != "again_selective":
            tape.make("attended", self.product(self._query_width))
            tape.make("log-sum-exps", self._lse_bytes)
        if not kept and not self.is_math:
            tape.free("turned q", *(("repeated k", "repeated v") if self.is_efficient else ("turned k",)))
        tape.make("by token", self._by_token_bytes)
        self._multiply(tape, "o", None, self._query_width * width, self.product(width), run)
        if self.is_math:
            tape.free("attended")
        self._sum_ranks(tape)
        tape.play(around.after_attention)
        if not kept or self.is_cast or self._has_gathered_input:
            tape.free("normed 1")
        if run in ("kept", "dropped", "again"):
            tape.free("q", "k", *(("v",) if self._copies_values or run == "dropped" else ()))
        if run == "dropped":
            tape.free(*(_OF_PRODUCTS if self.is_math else ("attended", "log-sum-exps")))
        if not kept:
            tape.free("by token")
            self._free_inputs(tape, "1")
        tape.make("middle", self.stream)
        if run not in ("selective", "again_selective"):
            tape.free("o")
        # MLP.
        self._norm(tape, "2")
        tape.play(around.before_mlp)
        inner = self.product(self._mlp_width)
        self._multiply(tape, "gate", "2", width * self._mlp_width, inner, run)
        tape.make("activated", inner)
        if run == "dropped":
            tape.free("gate")
        self._multiply(tape, "up", "2", width * self._mlp_width, inner, run)
        tape.make("gated", inner)
        if not kept:
            tape.free("activated", *(("up",) if run == "dropped" else ()))
        if is_again:
            tape.make("W down", self.copy_bytes(width * self._mlp_width))
        else:
            self._multiply(tape, "down", None, self._mlp_width * width, self.product(width), run)
            self._sum_ranks(tape)
            tape.play(around.after_mlp)
        if not kept:
            tape.free("gated", "normed 2")
            self._free_inputs(tape, "2")
        elif self.is_cast or self._has_gathered_input:
            tape.free("normed 2")
        if is_again:
            return tape.stretch()
        tape.make("out", self.stream)
        if run != "selective":
            tape.free("down")
        if not kept:
            tape.free("middle")
        return tape.stretch()

    def _attend_by_products(self, tape: Tape) -> None:
        """Run attention as products in fp32, for which queries, keys and values are copied, and keys and values of
        groups repeated.

        Backward reads what is left, not the queries and keys that this was made from.
        Source: torch 2.12, aten/src/ATen/native/transformers/attention.cpp, _scaled_dot_product_attention_math.
        """
        query, key, scores = self._whole_query, self._whole_key, self._scores_bytes
        is_rounded, places = self.product_bytes != FULL_BYTES, self.positions**2
        copied = key if is_rounded else 0
        tape.make("whole q", query if is_rounded else 0).make("whole k", copied).make("whole v", copied)
        tape.make("scaled q", query)
        tape.make("places", places).brief(places).make("mask", FULL_BYTES * places).free("places")
        repeated = query if self._has_groups else 0
        tape.make("repeated k", repeated).make("repeated v", repeated).make("scaled k", query)
        tape.make("scores", scores).make("shares", scores).brief(scores // FULL_BYTES).free("scores")
        tape.make("rounded shares", scores // 2 if is_rounded else 0)
        if is_rounded:
            tape.make("whole attended", query).make("attended", self.product(self._query_width)).free("whole attended")
        else:
            tape.make("attended", query)
        tape.free("repeated k", "mask", "whole k", "whole q", "rounded shares", "turned q", "turned k")
        if self._has_groups:
            tape.free("whole v")
            tape.relabel("repeated v", "kept v")
        else:
            tape.free("repeated v")
            tape.relabel("whole v", "kept v")

    @property
    def _has_groups(self) -> bool:
        """Whether several query heads share a key."""
        return self.shape.heads != self.shape.kv_heads

    @property
    def _copies_values(self) -> bool:
        """Whether attention's backward reads copies of the values, not the product's own result."""
        is_copied = self.is_math and (self._has_groups or self.product_bytes != FULL_BYTES)
        return self.is_efficient or is_copied

    @property
    def _whole_query(self) -> int:
        return FULL_BYTES * self.tokens * self._query_width

    @property
    def _whole_key(self) -> int:
        return FULL_BYTES * self.tokens * self._kv_width

    @property
    def _scores_bytes(self) -> int:
        return FULL_BYTES * self.tokens * self.positions * self.shape.heads // self.tensor_ranks

    def _norm(self, tape: Tape, place: str) -> None:
        tape.make(f"normed {place}", self.stream).make(f"scales {place}", self.norm_scales)
        if self._has_gathered_input:
            tape.make(f"gathered {place}", self.product(self.shape.width))

    def _free_inputs(self, tape: Tape, place: str) -> None:
        tape.free(f"scales {place}", *((f"gathered {place}",) if self._has_gathered_input else ()))

    def _multiply(self, tape: Tape, name: str, place: str | None, weights: int, size_bytes: int, run: _Run) -> None:
        """Multiply by a weight. place: the norm whose output is read."""
        casts_own = place is not None and self.is_cast and not self._has_gathered_input
        if casts_own:
            tape.make(f"cast {name}", self.product(self.shape.width))
        tape.make(f"W {name}", self.copy_bytes(weights))
        if run != "again_selective":
            tape.make(name, size_bytes)
        if run in ("dropped", "selective"):
            if casts_own:
                tape.free(f"cast {name}")
            if self.copies != "cached":
                tape.free(f"W {name}")

    def _sum_ranks(self, tape: Tape) -> None:
        """Add up the ranks' summands; torch's functional all_reduce fills a copy."""
        if self.tensor_ranks > 1:
            tape.brief(self.product(self.shape.width) // (self.tensor_ranks if self.is_stream_sharded else 1))

    @property
    def _by_token_bytes(self) -> int:
        """The attended values laid out by token; flash lays them out as the queries are, by head."""
        is_copied = not self.is_efficient and min(self.shape.heads // self.tensor_ranks, self.positions) > 1
        return self.product(self._query_width) if is_copied else 0

    @property
    def _lse_bytes(self) -> int:
        return FULL_BYTES * self.tokens * self.shape.heads // self.tensor_ranks

    # Backward of a block.

    def backward(self, block: int, gradients: Gradients, around: Around = NOTHING) -> Stretch:
        """Return a block's backward, from the gradient of its result to that of its input, which takes its place.

        The block's input is freed.
        """
        return _backward(self, self.checkpoint_of(block), gradients, around)

    def differentiate_block(self, checkpoint: Checkpoint, gradients: Gradients, around: Around = NOTHING) -> Stretch:
        """Return the backward of a block with this checkpointing."""
        tape, width = Tape(), self.shape.width
        stored = _forward(self, checkpoint, NOTHING).net.activations - self.stream
        stored -= self.cached_bytes_of(checkpoint)
        inner, product = self.product(self._mlp_width), self.product(width)
        if self.is_cast:
            tape.make("cast gradient", product, "temporary")
        if self._gathers:
            tape.make("gathered gradient", product, "temporary")
        tape.play(around.before_mlp)
        if checkpoint != "none":
            again: _Run = "again" if checkpoint == "full" else "again_selective"
            tape.play(self.run_block(again, Around(before_attention=around.before_attention)))
        if checkpoint == "selective":  # Stored results that the repeated forward has read, and backward does not read.
            key = self.product(self._kv_width)
            tape.change(-self.product(self._query_width) - (2 if self.is_efficient else 1) * key - product)
        # MLP: the last product, then the product of gate and up, then these two.
        done = [*(["cast gradient"] if self.is_cast else []), *(["gathered gradient"] if self._gathers else [])]
        self._differentiate(tape, "down", self._mlp_width * width, inner, gradients, reads=inner, done=done)
        tape.make("d activated", inner, "temporary").make("d up", inner, "temporary")
        tape.free("d down input").change(-2 * inner)
        reads = self._read_bytes
        self._differentiate(tape, "up", width * self._mlp_width, product, gradients, reads=reads, done=["d up"])
        self._to_stream(tape, "up", is_first=True)
        tape.make("d gate", inner, "temporary").free("d activated").change(-inner)
        self._differentiate(tape, "gate", width * self._mlp_width, product, gradients, reads=reads, done=["d gate"])
        self._to_stream(tape, "gate", is_first=False)
        tape.play(around.after_mlp)
        self._norm_backward(tape, freed=self.stream + self._shared_bytes)
        # Attention.
        if checkpoint == "none":
            tape.play(around.before_attention)
        if self.is_cast:
            tape.make("cast gradient", product, "temporary")
        if self._gathers:
            tape.make("gathered gradient", product, "temporary")
        query, key = self.product(self._query_width), self.product(self._kv_width)
        reads_own = self._by_token_bytes
        self._differentiate(tape, "o", self._query_width * width, query, gradients, reads=reads_own, done=done)
        self._attention_backward(tape, query, key)
        self._turn_back(tape)
        for name, size in (("v", self._kv_width), ("k", self._kv_width), ("q", self._query_width)):
            self._differentiate(tape, name, width * size, product, gradients, reads=reads, done=[f"d {name}"])
            self._to_stream(tape, name, is_first=name == "v")
        tape.play(around.after_attention)
        self._norm_backward(tape, freed=self.stream + self._shared_bytes)
        left = tape.stretch().net.activations + stored + self.stream
        # The rest, which the lines above do not count one by one: scales, log-sum-exps, and rounding of these.
        tape.change(-left)
        return tape.stretch()

    def _turn_back(self, tape: Tape) -> None:
        """Run the backward of the rotation of keys and queries."""
        for name, size in (("k", self._kv_width), ("q", self._query_width)):
            full = FULL_BYTES * self.tokens * size
            if self.product_bytes != FULL_BYTES:
                tape.make("whole", full, "temporary").free(f"d {name}")
            else:
                tape.make("whole", 0, "temporary")
            # Temporary: two halves of the gradient, a negation, and what is added to a half; then both halves joined.
            tape.brief(2 * full)
            tape.make("halves", full, "temporary")
            tape.free("whole")
            if self.product_bytes == FULL_BYTES:
                tape.free(f"d {name}")
            tape.make("joined", full, "temporary").free("halves")
            tape.make(f"d {name}", self.product(size), "temporary")
            tape.free("joined")

    def cached_bytes_of(self, checkpoint: Checkpoint) -> int:
        """Return autocast's copies of one block's weights, which its forward leaves without keeping them."""
        if self.copies != "cached" or checkpoint == "none":
            return 0
        weights = self.shape.width * (2 * self._query_width + 2 * self._kv_width + 3 * self._mlp_width)
        return self.copy_bytes(weights)

    @property
    def _gathers(self) -> bool:
        """Whether the gradient of a product that ends a half of the block is gathered from the ranks' positions."""
        return self.tensor_ranks > 1 and self.is_stream_sharded

    @property
    def _read_bytes(self) -> int:
        """Bytes that a product that reads a norm's output keeps for itself alone."""
        return self.product(self.shape.width) if self.is_cast and not self._has_gathered_input else 0

    @property
    def _shared_bytes(self) -> int:
        """Bytes that all products that read a norm's output share."""
        if self._has_gathered_input:
            return self.product(self.shape.width)
        return 0 if self.is_cast else self.stream

    def _differentiate(
        self,
        tape: Tape,
        name: str,
        weights: int,
        input_bytes: int,
        gradients: Gradients,
        *,
        reads: int,
        done: Sequence[str] = (),
    ) -> None:
        """Run a product's backward: gradients of its input and its weight.

        reads: what it keeps for itself. done: the gradient of its result.
        """
        tape.make(f"d {name} input", input_bytes, "temporary")
        self._weight_gradient(tape, weights, gradients, freed=reads + self.copy_bytes(weights), done=done)

    def _weight_gradient(
        self, tape: Tape, weights: int, gradients: Gradients, *, freed: int = 0, done: Sequence[str] = ()
    ) -> None:
        """Make a weight's gradient, in the precision of the product and then in its own.

        freed: activations that only the product's backward reads. done: the gradient of its result.
        """
        tape.make("raw", self.product_bytes * weights, "temporary").change(-freed).free(*done)
        whole = self.gradient_bytes * weights
        if self.gradient_bytes != self.product_bytes:
            tape.brief(whole)
        tape.free("raw")
        if gradients == "new":
            tape.change(whole, "gradients")

    def _to_stream(self, tape: Tape, name: str, *, is_first: bool) -> None:
        """Add the gradient of a product's input to that of the norm's output."""
        if self._has_gathered_input:
            # DTensors are added out of place, and reduced over the ranks once all exist.
            size_bytes = self.product(self.shape.width)
            if is_first:
                tape.relabel(f"d {name} input", "d normed")
            else:
                tape.brief(size_bytes).free(f"d {name} input")
            return
        own = f"d {name} input"
        if self.is_cast:
            tape.make(f"cast d {name}", self.stream, "temporary").free(own)
            own = f"cast d {name}"
        if is_first:
            tape.relabel(own, "d normed")
        else:
            tape.free(own)

    def _norm_backward(self, tape: Tape, *, freed: int) -> None:
        """Run a norm's backward, and add its result to the gradient of the stream. freed: activations."""
        if self._has_gathered_input:
            tape.brief(self.product(self.shape.width))
        tape.make("d stream", self.stream, "temporary").free("d normed").change(-freed).free("d stream")

    def _attention_backward(self, tape: Tape, query: int, key: int) -> None:
        """Run attention's backward, from the gradient of its result to those of q, k and v."""
        if self.is_math:
            self._products_backward(tape, query, key)
            return
        sums = FULL_BYTES * self.tokens * self.shape.heads // self.tensor_ranks
        tape.make("d q", query, "temporary")
        if self.is_efficient:
            tape.make("d repeated", 2 * query, "temporary").brief(sums)
            tape.change(-4 * query - self._lse_bytes)
            tape.free("d o input").make("d v", key, "temporary").make("d k", key, "temporary").free("d repeated")
            return
        tape.make("d k", key, "temporary").make("d v", key, "temporary")
        expanded = 2 * query if self.shape.heads != self.shape.kv_heads else 0
        rows = FULL_BYTES * self.tokens * self._query_width + sums
        tape.brief(expanded + rows + self.backward_attention_bytes)
        tape.change(-2 * query - 2 * key - self._lse_bytes).free("d o input")

    def _products_backward(self, tape: Tape, query: int, key: int) -> None:
        """Run the backward of `_attend_by_products`; three tensors of scores live next to the one of forward."""
        whole, whole_key, scores = self._whole_query, self._whole_key, self._scores_bytes
        is_rounded = self.product_bytes != FULL_BYTES
        if is_rounded:
            tape.make("d whole attended", whole, "temporary").free("d o input")
        else:
            tape.relabel("d o input", "d whole attended")
        tape.make("d attended", whole, "temporary").free("d whole attended")
        tape.make("d repeated v", whole, "temporary").make("d chosen", scores, "temporary").free("d attended")
        tape.change(-whole if self._copies_values else -key)
        tape.make("d shares", scores, "temporary").make("d scores", scores, "temporary").free("d shares", "d chosen")
        tape.change(-scores)
        tape.make("d scaled q", whole, "temporary").make("d scaled k", whole, "temporary").free("d scores")
        tape.change(-2 * whole)
        tape.make("d repeated k", whole, "temporary").free("d scaled k")
        for name in ("k", "v"):
            if self._has_groups:
                tape.make(f"d whole {name}", whole_key, "temporary").free(f"d repeated {name}")
            else:
                tape.relabel(f"d repeated {name}", f"d whole {name}")
        tape.make("d whole q", whole, "temporary").free("d scaled q")
        for name, size in (("k", key), ("v", key), ("q", query)):
            if is_rounded:
                tape.make(f"d {name}", size, "temporary").free(f"d whole {name}")
            else:
                tape.relabel(f"d whole {name}", f"d {name}")

    # All blocks of this part of the model.

    def forwards(self, blocks: int) -> Stretch:
        """Return forward through all blocks, from the first."""
        return in_turn(self.forward(block) for block in range(blocks))

    def backwards(self, blocks: int, gradients: Gradients) -> Stretch:
        """Return backward through all blocks, from the last."""
        return in_turn(self.backward(block, gradients) for block in reversed(range(blocks)))


@lru_cache(maxsize=64)
def _forward(blocks: CudaBlocks, checkpoint: Checkpoint, around: Around) -> Stretch:
    runs: dict[Checkpoint, _Run] = {"none": "kept", "full": "dropped", "selective": "selective"}
    return blocks.run_block(runs[checkpoint], around)


@lru_cache(maxsize=64)
def _backward(blocks: CudaBlocks, checkpoint: Checkpoint, gradients: Gradients, around: Around) -> Stretch:
    return blocks.differentiate_block(checkpoint, gradients, around)
