"""What a rank holds and sends where matrix products are divided among ranks, as in Megatron, to the byte.

All ranks take the same sequences through the model. Products are divided evenly: by heads, by the MLP's inner width and
by the vocabulary; the embedding by the residual stream's width. Norms are whole on each rank. See
`workloads.parts.tensor_parallel`.
Source: Shoeybi et al. 2019, Megatron-LM, section 3; Korthikanti et al. 2022, Reducing Activation Recomputation in Large
Transformer Models, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from workloads.laws.activations import FULL_BYTES, Checkpoint
from workloads.laws.terms import Collective, States, Transfer
from workloads.laws.weights import elements, model_weights
from workloads.parts.shape import Shape

AXIS = "tensor"
NUMBER_BYTES = 4
"""Of a single number in fp32: a count of steps, a norm, a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorTraffic:
    """What one step of a rank hands to collectives.

    sequences: of one microbatch.
    product_bytes: of an element that a product reads or gives.
    is_stream_divided: the residual stream is divided by positions. is_loss_divided: the logits stay divided.
    is_recomputed: backward runs the blocks' forward again, all but their last collective, which nothing needs.
    numbers: single numbers that the ranks agree on in an update: the norm that clipping needs, fp16's overflow.
    has_all_to_all: the embedding's columns are exchanged for positions by all_to_all; torch 2.11 to 2.13 has none for
    it on the CPU, where each rank gathers all columns and keeps its positions.
    """

    shape: Shape
    ranks: int
    sequences: int
    microbatches: int
    product_bytes: int
    is_stream_divided: bool
    is_loss_divided: bool
    is_recomputed: bool
    numbers: int
    has_all_to_all: bool

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """The collectives of one step; a rank waits for each of them but the compiler's."""
        if self.ranks == 1:
            return ()
        return (*self.embedding(), *self.blocks(self.shape.layers), *self.head(), *self.update())

    def embedding(self) -> Iterator[Transfer]:
        """The stream's columns come together; where it is divided, they are exchanged for positions, and back."""
        stream_bytes = FULL_BYTES * self._stream_elements
        if not self.is_stream_divided:
            yield self._transfer("all_gather", stream_bytes)
        elif self.has_all_to_all:
            yield self._transfer("all_to_all", stream_bytes // self.ranks, calls=2)
        else:
            yield self._transfer("all_gather", stream_bytes, calls=2)

    def blocks(self, layers: int) -> Iterator[Transfer]:
        """Two of each kind a block forward, one for attention and one for the MLP, and two backward."""
        halves = 2 * layers
        again = layers if self.is_recomputed else 0
        if self.is_stream_divided:
            yield self._transfer("all_gather", self._product_stream_bytes, calls=2 * halves + 2 * again)
            yield self._transfer("reduce_scatter", self._product_stream_bytes, calls=2 * halves + again)
        else:
            yield self._transfer("all_reduce", self._product_stream_bytes, calls=2 * halves + again)

    def head(self) -> Iterator[Transfer]:
        """What the head reads, its gradient, and the logits; or, of a loss that is divided, three numbers a token."""
        if self.is_stream_divided:
            yield self._transfer("all_gather", self._product_stream_bytes)
            yield self._transfer("reduce_scatter", self._product_stream_bytes)
        else:
            yield self._transfer("all_reduce", self._product_stream_bytes)
        if self.is_loss_divided:
            # The largest logit, the sum of exponentials, the target's logarithm.
            yield self._transfer("all_reduce", FULL_BYTES * self._positions, calls=3)
        else:
            yield self._transfer("all_gather", self.product_bytes * self._positions * self.shape.vocabulary)

    def update(self) -> Iterator[Transfer]:
        """Once a step: gradients of norms that have seen a rank's positions only, and single numbers."""
        if self.is_stream_divided:
            norms_bytes = FULL_BYTES * (2 * self.shape.layers + 1) * self.shape.width
            yield Transfer(collective="all_reduce", axis=AXIS, payload_bytes=norms_bytes)
        if self.numbers:
            yield Transfer(
                collective="all_reduce", axis=AXIS, payload_bytes=self.numbers * NUMBER_BYTES, calls=self.numbers
            )

    def _transfer(self, collective: Collective, payload_bytes: int, *, calls: int = 1) -> Transfer:
        """Equal calls in each microbatch. payload_bytes: of one."""
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


def divided_elements(shape: Shape, ranks: int) -> int:
    """Elements of one rank's weights: norms whole, all others an equal part."""
    weights = model_weights(shape)
    norms = elements(weight for weight in weights if len(weight) == 1)
    return norms + sum(math.prod(weight) // ranks for weight in weights if len(weight) > 1)


def divided_states(shape: Shape, ranks: int) -> States:
    """What each rank holds between steps, all in fp32; AdamW counts the steps of each tensor by itself."""
    weights_bytes = FULL_BYTES * divided_elements(shape, ranks)
    return States(
        parameters_bytes=weights_bytes,
        gradients_bytes=weights_bytes,
        optimizer_bytes=2 * weights_bytes + NUMBER_BYTES * shape.parameter_tensors(),
    )


def paper_activation_bytes(
    shape: Shape, sequences: int, checkpoint: Checkpoint, *, ranks: int, is_stream_divided: bool
) -> int:
    """The paper's account of one microbatch: bytes kept of the blocks of a GPT in fp16 with dropout, on one rank.

    As `workloads.laws.activations.paper_activation_bytes` with one rank. Of a stream that is divided the paper gathers
    what products read a second time in backward, so that all is divided; torch keeps it gathered.
    Source: Korthikanti et al. 2022, table 2.
    """
    stream = shape.sequence * sequences * shape.width
    scores = Fraction(shape.heads * shape.sequence**2 * sequences, ranks)
    whole, divided = (0, 34) if is_stream_divided else (10, 24)
    if checkpoint == "full":
        whole, divided = (0, 2) if is_stream_divided else (2, 0)
    per_layer = whole * stream + Fraction(divided * stream, ranks) + (5 * scores if checkpoint == "none" else 0)
    return math.ceil(shape.layers * per_layer)
