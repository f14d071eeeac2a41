"""Work that a device does in a step: matrix products by size, attention, element-wise bytes, and the optimizer's bytes.

A product runs at the rate that a square product of equal arithmetic intensity reaches; everything else moves bytes.
Counts what this project's transformer computes, kernel by kernel, as torch runs it without fusing; `is_compiled` counts
each chain of element-wise kernels as one. Not covered: caches that keep small tensors, and the time to start a kernel.
Source: Williams, Waterman and Patterson 2009, Roofline (arithmetic intensity decides which ceiling holds).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from workloads.cost_models.shape import Shape
from workloads.cost_models.step_time import ComputeTime
from workloads.cost_models.terms import States

FULL_BYTES = 4
"""Bytes of an fp32 element: rotations, the loss and the optimizer compute in fp32 in every precision."""
BACKWARD_PRODUCTS = 2.0
"""Backward multiplies by the weights and by the activations: two products of the same three dimensions."""
BACKWARD_ATTENTION = 2.5
"""Backward of a fused kernel computes the scores again: five products for forward's two.
Source: Dao 2023, FlashAttention-2, section 4.1."""
BACKWARD_ELEMENTWISE = 2.0
"""Backward of an element-wise kernel reads the gradient and what forward kept, and writes a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A kind of product in the forward of one step, over all ranks. size: see `equal_size`."""

    size: float
    flops: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardWork:
    """Forward of one optimizer step over all ranks.

    products: of the blocks. head: the product with the vocabulary, which no checkpointing repeats.
    attention: both products of a causal kernel, which computes half of the scores; its size is that of a square product
    of as many operations, since a fused kernel reads no scores from memory.
    elementwise_bytes: read and written by norms, rotations, residual sums, activation and loss.
    """

    products: tuple[Product, ...]
    head: Product
    attention: Product
    elementwise_bytes: float


def equal_size(m: float, n: float, k: float) -> float:
    """Return the rows of the square matrices whose product has as many operations for each byte as m x k times k x n.

    It is the harmonic mean: a product moves mk + kn + mn elements for 2 mkn operations.
    Example: 8,192 tokens by 4,096 x 1,024 weights is like a square product of 2,234 rows.
    """
    return 3 / (1 / m + 1 / n + 1 / k)


def forward_work(
    shape: Shape,
    *,
    microbatch_tokens: float,
    tensor_ranks: int = 1,
    element_bytes: int,
    stream_bytes: int,
    is_compiled: bool = False,
) -> ForwardWork:
    """Return the forward of one step.

    microbatch_tokens: tokens that a rank computes at a time. tensor_ranks: ranks that divide each product.
    element_bytes, stream_bytes: of an element of a product, and of the residual stream.

    Raises:
        ValueError: there is no token, or no rank.
    """
    if microbatch_tokens <= 0 or tensor_ranks < 1:
        raise ValueError(f"{microbatch_tokens:g} tokens on {tensor_ranks} tensor ranks are no work; use 1 or more")
    kv_width = shape.kv_heads * shape.head_width
    divided = (  # Inputs, outputs, and how often: q, k and v; o; gate and up; down; and the head.
        (shape.width, shape.query_width / tensor_ranks, shape.layers),
        (shape.width, kv_width / tensor_ranks, 2 * shape.layers),
        (shape.query_width / tensor_ranks, shape.width, shape.layers),
        (shape.width, shape.mlp_width / tensor_ranks, 2 * shape.layers),
        (shape.mlp_width / tensor_ranks, shape.width, shape.layers),
        (shape.width, shape.vocabulary / tensor_ranks, 1),
    )
    *products, head = (
        Product(
            size=equal_size(microbatch_tokens, outputs, inputs),
            flops=2.0 * shape.tokens * inputs * outputs * tensor_ranks * count,
        )
        for inputs, outputs, count in divided
    )
    # Scores and their product with the values: 2 x 2 s e for each query and head, half of it causal.
    attention_flops = 2.0 * shape.tokens * shape.layers * shape.query_width * shape.sequence
    together = microbatch_tokens * shape.query_width / tensor_ranks * shape.sequence / 2
    return ForwardWork(
        products=tuple(products),
        head=head,
        attention=Product(size=together ** (1 / 3), flops=attention_flops),
        elementwise_bytes=shape.tokens
        * elementwise_bytes_per_token(
            shape, element_bytes=element_bytes, stream_bytes=stream_bytes, is_compiled=is_compiled
        ),
    )


def elementwise_bytes_per_token(
    shape: Shape, *, element_bytes: int, stream_bytes: int, is_compiled: bool = False
) -> float:
    """Return the bytes that forward reads and writes for a token outside of products and attention's scores."""
    kv_width = shape.kv_heads * shape.head_width
    width, turned, half = shape.width, shape.query_width + kv_width, element_bytes
    is_cast = stream_bytes != element_bytes  # Autocast: each product casts what it reads.
    attention = half * (2 * turned + 2 * shape.query_width)  # Reads q, k, v, writes out; then a copy by token.
    sums = 2 * width * (2 * stream_bytes + half)  # Two residual sums.
    if is_compiled:
        norms = 2 * width * (stream_bytes + half)
        rotations = 2 * turned * half
        activation = 3 * shape.mlp_width * half
        loss = shape.vocabulary * (half + FULL_BYTES)
    else:
        casts = 5 * width * (stream_bytes + half) if is_cast else 0  # Of q, k, v, gate and up.
        norms = 2 * 2 * width * stream_bytes + casts
        # In fp32: four multiplications and two sums of halves, and their concatenation, 9 elements; and two casts.
        rotations = turned * (9 * FULL_BYTES + (2 * (half + FULL_BYTES) if half != FULL_BYTES else 0))
        activation = 5 * shape.mlp_width * half  # silu reads one and writes one, the product reads two.
        to_full = half + FULL_BYTES if half != FULL_BYTES else 0
        loss = shape.vocabulary * (to_full + 2 * FULL_BYTES)
    ends = 2 * width * stream_bytes + width * (stream_bytes + half) + loss  # The embedding, the last norm, the loss.
    return float(shape.layers * (attention + sums + norms + rotations + activation) + ends)


# Time by kind of work.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardTimes:
    """Seconds of a rank's forward in one step, by kind of work."""

    products_s: float
    head_s: float
    attention_s: float
    elementwise_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """Shares of the forward of blocks that backward computes again, by kind of work."""

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0


def compute_of(forward: ForwardTimes, recomputed: Recomputed) -> ComputeTime:
    """Return forward and backward of a rank whose forward takes these times."""
    again_s = (
        recomputed.products * forward.products_s
        + recomputed.attention * forward.attention_s
        + recomputed.elementwise * forward.elementwise_s
    )
    backward_s = (
        BACKWARD_PRODUCTS * (forward.products_s + forward.head_s)
        + BACKWARD_ATTENTION * forward.attention_s
        + BACKWARD_ELEMENTWISE * forward.elementwise_s
    )
    return ComputeTime(
        forward_s=forward.products_s + forward.head_s + forward.attention_s + forward.elementwise_s,
        backward_s=backward_s + again_s,
        recomputed_s=again_s,
    )


def update_bytes(states: States, *, has_master: bool, gradient_bytes: int, is_clipped: bool) -> float:
    """Return the bytes that a rank's fused AdamW and the clipping of gradients read and write in one step.

    AdamW reads weight, gradient and two moments and writes all but the gradient: 28 bytes for each weight that the rank
    updates, which is one for every 8 bytes of its state (12 with a master copy). Clipping reads all of the rank's
    gradients for their norm, then reads and writes them.
    has_master: the model's weights are bf16 copies of the optimizer's; gradients are first copied to fp32.
    """
    updated = states.optimizer_bytes / (12 if has_master else 8)
    each = 7 * FULL_BYTES
    if has_master:
        each += FULL_BYTES + 2  # Masters are rounded into the weights.
        each += gradient_bytes + FULL_BYTES if gradient_bytes != FULL_BYTES else 0
    return updated * each + (3 * states.gradients_bytes if is_clipped else 0)


def interpolated_rate(size: float, rungs: tuple[tuple[float, float], ...]) -> float:
    """Return the rate at a size, from rungs of size and rate, ascending: logarithmic between them, constant beyond.

    Example: between 100 FLOP/s at 256 rows and 400 at 1,024, 512 rows have 200.

    Raises:
        ValueError: there is no rung.
    """
    if not rungs:
        raise ValueError("a ladder without a rung has no rate; measure one size or more")
    if size <= rungs[0][0]:
        return rungs[0][1]
    for (below, low_rate), (above, high_rate) in pairwise(rungs):
        if size <= above:
            share = math.log(size / below) / math.log(above / below)
            return float(low_rate * (high_rate / low_rate) ** share)
    return rungs[-1][1]
