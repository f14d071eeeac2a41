"""Sizes of a microbatch's tensors on a rank on CUDA, in bytes.

Under autocast each product casts its own input, and the casts of weights live until forward ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.cost_models.memory import FULL_BYTES, HALF_BYTES, Checkpoint, is_recomputed
from workloads.cost_models.shape import Shape

Copies = Literal["none", "cached", "each"]
"""Copies of weights that products compute with. none: products read the weights, or gathered weights. cached:
autocast's copies, which live until forward ends. each: a copy for each use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaSizes:
    """One microbatch through a rank's part of the model.

    sequences: in the microbatch. positions: of each sequence, as many as the rank holds.
    stream_bytes: of an element of the residual stream. product_bytes: of what products read and return.
    gradient_bytes: of an element of a weight's gradient as it stays.
    tensor_ranks: ranks that divide each product. is_stream_sharded: they also divide the stream, by positions.
    is_loss_sharded: they also keep the logits divided.
    is_efficient: attention is the memory-efficient kernel, for which keys and values are repeated.
    is_math: it is plain products in fp32, which keep all scores.
    forward_attention_bytes, backward_attention_bytes: what the exchange of a divided sequence holds in attention.
    """

    shape: Shape
    sequences: int
    positions: int
    stream_bytes: int
    product_bytes: int
    gradient_bytes: int
    copies: Copies
    is_efficient: bool
    checkpoint: Checkpoint
    checkpoint_every: int = 1
    first_block: int = 0
    loss_chunks: int = 1
    is_math: bool = False
    tensor_ranks: int = 1
    is_stream_sharded: bool = False
    is_loss_sharded: bool = False
    forward_attention_bytes: int = 0
    backward_attention_bytes: int = 0

    # Sizes.

    @property
    def tokens(self) -> int:
        """Positions of all sequences of the microbatch."""
        return self.sequences * self.positions

    @property
    def stream(self) -> int:
        """Bytes of the residual stream between two blocks."""
        return self.stream_bytes * self._own_tokens * self.shape.width

    @property
    def norm_scales(self) -> int:
        """Bytes that a norm keeps in addition to its input: a number in fp32 for each position."""
        return FULL_BYTES * self._own_tokens

    def product(self, width: int) -> int:
        """Return the bytes of a product's result of this width, in the precision of products."""
        return self.product_bytes * self.tokens * width

    def checkpoint_of(self, block: int) -> Checkpoint:
        """Return how a block of this part of the model is checkpointed."""
        again = is_recomputed(self.first_block + block, every=self.checkpoint_every)
        return self.checkpoint if again else "none"

    @property
    def is_cast(self) -> bool:
        """Whether products read casts of the stream."""
        return self.stream_bytes != self.product_bytes

    @property
    def _own_tokens(self) -> int:
        return self.tokens // (self.tensor_ranks if self.is_stream_sharded else 1)

    @property
    def _query_width(self) -> int:
        return self.shape.query_width // self.tensor_ranks

    @property
    def _kv_width(self) -> int:
        return self.shape.kv_heads * self.shape.head_width // self.tensor_ranks

    @property
    def _mlp_width(self) -> int:
        return self.shape.mlp_width // self.tensor_ranks

    @property
    def _own_vocabulary(self) -> int:
        return self.shape.vocabulary // self.tensor_ranks

    @property
    def _has_gathered_input(self) -> bool:
        """Whether products read one input that they share and that is not the norm's output."""
        return self.tensor_ranks > 1 and (self.is_cast or self.is_stream_sharded)

    def copy_bytes(self, weights: int) -> int:
        """Return the bytes of the copies of this many weights."""
        return 0 if self.copies == "none" else HALF_BYTES * weights

    def cached_bytes(self, blocks: int) -> int:
        """Return the bytes of autocast's copies of the checkpointed blocks' weights, which live until forward ends."""
        if self.copies != "cached":
            return 0
        checkpointed = sum(self.checkpoint_of(block) != "none" for block in range(blocks))
        return checkpointed * self.copy_bytes(self.shape.block_parameters() // self.tensor_ranks)
