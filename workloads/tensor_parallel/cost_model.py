"""Cost model of tensor parallelism as in Megatron: activations, peak, traffic and states of a rank.

All except the peak are exact to the byte.
All ranks pass the same sequences through the model. Products are divided evenly: by heads, by the MLP's inner width and
by the vocabulary; the embedding by the residual stream's width. Norms are whole on each rank. See
`workloads.tensor_parallel.strategy`.
Source: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, Reducing Activation Recomputation in Large
Transformer Models, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, Checkpoint, Microbatch, recomputed_count
from workloads.cost_models.peak_memory import Backward, Prediction, StepMoments, step_peak
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import Collective, States, Transfer, elements, model_weights

# Activations that one forward keeps on a rank with a part of each product: `workloads.cost_models.memory`, divided.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedMicrobatch(Microbatch):
    """Tensors of one microbatch on one rank, in bytes.

    shape: of the model, but with the rank's part of vocabulary and mlp_width; `shard_microbatch` makes it.
    The inputs of products are whole on each rank, even if the stream is divided: torch keeps the gathered tensors.
    """

    ranks: int
    is_stream_sharded: bool
    is_loss_sharded: bool

    @property
    def stream_bytes(self) -> int:
        return FULL_BYTES * self._own_positions * self.shape.width

    @property
    def logits_bytes(self) -> int:
        return self._product_bytes(self._own_vocabulary)

    @property
    def probabilities_bytes(self) -> int:
        return FULL_BYTES * self._positions * self._own_vocabulary

    @property
    def block_casts_bytes(self) -> int:
        if not self.is_autocast:
            return 0
        mlp = 3 * self.shape.width * self.shape.mlp_width
        return HALF_BYTES * ((self.shape.block_parameters() - mlp) // self.ranks + mlp)

    @property
    def block_bytes(self) -> int:
        own_query_bytes = self.query_bytes // self.ranks
        copy_bytes = own_query_bytes if min(self.shape.heads // self.ranks, self.shape.sequence) > 1 else 0
        attention = own_query_bytes + self._own_heads_bytes + copy_bytes
        norms = self.norm_bytes(readers=3) + self.norm_bytes(readers=2)
        return 2 * self.stream_bytes + norms + attention + 4 * self.inner_bytes + self.block_casts_bytes

    @property
    def stored_block_bytes(self) -> int:
        """See `Microbatch`; for products by rows, the rank's own summand of the result is stored."""
        if self.checkpoint == "none":
            return self.block_bytes
        if self.checkpoint == "full":
            return self.stream_bytes
        products = self.query_bytes // self.ranks + 2 * self.width_bytes + 2 * self.inner_bytes
        return self.stream_bytes + products + self._own_heads_bytes

    def norm_bytes(self, readers: int) -> int:
        """See `Microbatch`; all readers share one copy, which is gathered for them."""
        is_same = not self.is_autocast and not self.is_stream_sharded
        read_bytes = self.stream_bytes if is_same else min(readers, 1) * self.width_bytes
        return FULL_BYTES * self._own_positions + self.stream_bytes + read_bytes

    @property
    def _own_positions(self) -> int:
        return self._positions // (self.ranks if self.is_stream_sharded else 1)

    @property
    def _own_vocabulary(self) -> int:
        return self.shape.vocabulary * (1 if self.is_loss_sharded else self.ranks)

    @property
    def _own_heads_bytes(self) -> int:
        """Keys, values, attention's output and log-sum-exp of the rank's heads."""
        return (2 * self._kv_bytes + self._attended_bytes) // self.ranks


def shard_microbatch(
    microbatch: Microbatch, *, ranks: int, is_stream_sharded: bool, is_loss_sharded: bool
) -> ShardedMicrobatch:
    """Return one rank's part of a microbatch."""
    shape = microbatch.shape
    return ShardedMicrobatch(
        shape=replace(shape, vocabulary=shape.vocabulary // ranks, mlp_width=shape.mlp_width // ranks),
        sequences=microbatch.sequences,
        precision=microbatch.precision,
        checkpoint=microbatch.checkpoint,
        checkpoint_every=microbatch.checkpoint_every,
        ranks=ranks,
        is_stream_sharded=is_stream_sharded,
        is_loss_sharded=is_loss_sharded,
    )


# Peak of live tensors in one step of a rank that has a part of each matrix product.
#
# Products by rows return a whole sum, and gathered inputs are whole, so the moments are those of a whole model.


def tensor_parallel_peak(microbatch: ShardedMicrobatch, *, states: States, backwards: Sequence[Backward]) -> Prediction:
    """Predict the live bytes at the peak of a step; see `workloads.cost_models.peak_memory.step_peak`.

    Right within 4 % if the MLP is at least twice as wide as the residual stream. Not counted: buffers that collectives
    fill while their inputs still live, and a few numbers per token.
    """
    peak = step_peak(microbatch, states=states, backwards=backwards)
    if not microbatch.is_loss_sharded:
        return peak
    step = StepMoments(microbatch=microbatch, held_bytes=len(backwards) * microbatch.tokens_bytes)
    # torch computes the gradient of a divided loss in one step, of three tensors: ones at targets, probabilities, and
    # their product.
    loss = replace(
        peak,
        gradients_bytes=max(backward.before_bytes for backward in backwards),
        activations_bytes=step.stored_bytes + microbatch.head_bytes,
        temporary_bytes=3 * microbatch.probabilities_bytes,
    )
    return max(peak, loss, key=lambda prediction: prediction.total_bytes)


AXIS = "tensor"
NUMBER_BYTES = 4
"""Bytes of a single number in fp32: a count of steps, a norm, a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTraffic:
    """Bytes that a rank passes to collectives in one step.

    sequences: of one microbatch.
    product_bytes: of an element that a product reads or returns. stream_element_bytes: of the residual stream's.
    is_stream_sharded: the residual stream is divided by positions. is_loss_sharded: the logits stay divided.
    is_recomputed: in the last of every `recomputed_every` blocks, backward runs forward again, except the last
    collective, whose result nothing needs.
    numbers: single numbers that the ranks agree on in an update: the norm for clipping, fp16's overflow.
    has_all_to_all: the embedding's columns are exchanged for positions by all_to_all. torch 2.11 to 2.13 does not do
    this on the CPU, where each rank gathers all columns and keeps its positions.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    product_bytes: int
    is_stream_sharded: bool
    is_loss_sharded: bool
    is_recomputed: bool
    numbers: int
    has_all_to_all: bool
    stream_element_bytes: int = FULL_BYTES
    recomputed_every: int = 1

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """Collectives of one step; a rank waits for each of them, except those that the compiler hides."""
        if self.ranks == 1:
            return ()
        return (*self.embedding(), *self.blocks(self.shape.layers), *self.head(), *self.update())

    def embedding(self) -> Iterator[Transfer]:
        """Yield the gather of the stream's columns; for a divided stream, their exchange for positions and back."""
        stream_bytes = self.stream_element_bytes * self._stream_elements
        if not self.is_stream_sharded:
            yield self._transfer("all_gather", stream_bytes)
        elif self.has_all_to_all:
            yield self._transfer("all_to_all", stream_bytes // self.ranks, calls=2)
        else:
            yield self._transfer("all_gather", stream_bytes, calls=2)

    def blocks(self, layers: int, *, first: int = 0) -> Iterator[Transfer]:
        """Yield two collectives of each kind per block in forward, for attention and MLP, and two in backward.

        first: number of the first of these blocks in the model.
        """
        halves = 2 * layers
        blocks = range(first, first + layers)
        again = recomputed_count(blocks, every=self.recomputed_every) if self.is_recomputed else 0
        if self.is_stream_sharded:
            yield self._transfer("all_gather", self._product_stream_bytes, calls=2 * halves + 2 * again)
            yield self._transfer("reduce_scatter", self._product_stream_bytes, calls=2 * halves + again)
        else:
            yield self._transfer("all_reduce", self._product_stream_bytes, calls=2 * halves + again)

    def head(self) -> Iterator[Transfer]:
        """Yield the head's input, its gradient, and the logits; or, for a divided loss, three numbers per token."""
        if self.is_stream_sharded:
            yield self._transfer("all_gather", self._product_stream_bytes)
            yield self._transfer("reduce_scatter", self._product_stream_bytes)
        else:
            yield self._transfer("all_reduce", self._product_stream_bytes)
        if self.is_loss_sharded:
            # The largest logit, the sum of exponentials, the target's logarithm.
            yield self._transfer("all_reduce", FULL_BYTES * self._positions, calls=3)
        else:
            yield self._transfer("all_gather", self.product_bytes * self._positions * self.shape.vocabulary)

    def update(self) -> Iterator[Transfer]:
        """Yield the transfers of an update: gradients of norms that saw only a rank's positions, and single numbers."""
        if self.is_stream_sharded:
            norms_bytes = FULL_BYTES * (2 * self.shape.layers + 1) * self.shape.width
            yield Transfer(collective="all_reduce", axis=AXIS, payload_bytes=norms_bytes)
        if self.numbers:
            yield Transfer(
                collective="all_reduce", axis=AXIS, payload_bytes=self.numbers * NUMBER_BYTES, calls=self.numbers
            )

    def _transfer(self, collective: Collective, payload_bytes: int, *, calls: int = 1) -> Transfer:
        """Return equal calls in each microbatch. payload_bytes: of one call."""
        calls *= self.microbatches
        return Transfer(collective=collective, axis=AXIS, payload_bytes=calls * payload_bytes, calls=calls)

    @property
    def _positions(self) -> int:
        return self.sequences * self.shape.sequence

    @property
    def _stream_elements(self) -> int:
        return self._positions * self.shape.width

    @property
    def _product_stream_bytes(self) -> int:
        return self.product_bytes * self._stream_elements


def sharded_elements(shape: Shape, ranks: int) -> int:
    """Return the elements of one rank's weights: norms whole, an equal part of all others."""
    weights = model_weights(shape)
    norms = elements(weight for weight in weights if len(weight) == 1)
    return norms + sum(math.prod(weight) // ranks for weight in weights if len(weight) > 1)


def tensor_parallel_states(shape: Shape, ranks: int) -> States:
    """Return the states of each rank, all in fp32; AdamW keeps a step count for each tensor."""
    weights_bytes = FULL_BYTES * sharded_elements(shape, ranks)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + NUMBER_BYTES * shape.parameter_tensors(),
    )


def paper_activation_bytes(
    shape: Shape,
    sequences: int,
    checkpoint: Checkpoint,
    *,
    ranks: int,
    is_stream_sharded: bool,
    checkpoint_every: int = 1,
) -> int:
    """Return the paper's account of one microbatch: bytes that the blocks of a GPT keep on one rank, fp16 with dropout.

    With one rank it equals `workloads.cost_models.memory.paper_activation_bytes`. For a divided stream the paper
    gathers the inputs of products again in backward, so that everything stays divided; torch keeps them gathered.
    Source: Korthikanti et al. 2022, table 2.
    """
    stream = shape.sequence * sequences * shape.width
    scores = Fraction(shape.heads * shape.sequence**2 * sequences, ranks)

    def per_layer(checkpoint: Checkpoint) -> Fraction:
        # Per token and element of width: bytes that every rank keeps whole, and bytes that the ranks divide.
        replicated, sharded = (0, 34) if is_stream_sharded else (10, 24)
        if checkpoint == "full":
            replicated, sharded = (0, 2) if is_stream_sharded else (2, 0)
        return replicated * stream + Fraction(sharded * stream, ranks) + (5 * scores if checkpoint == "none" else 0)

    rerun = recomputed_count(range(shape.layers), every=checkpoint_every)
    return math.ceil(rerun * per_layer(checkpoint) + (shape.layers - rerun) * per_layer("none"))
