"""Memory of a rank: activations of one microbatch, and the states and activations that papers account for.

States as this implementation keeps them are in `workloads.cost_models.terms`; the peak of a step, which counts all live
tensors, is in `workloads.cost_models.peak_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal, Self

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import States

Precision = Literal["fp32", "bf16", "fp16"]
Checkpoint = Literal["none", "full", "selective"]
Weights = Literal["autocast", "bf16_compute", "bf16", "fp8"]
"""How weights are kept and computed with. autocast: kept in fp32, products and attention round. bf16_compute: kept in
fp32, all layers compute with copies in bf16. bf16: kept in bf16, the optimizer keeps a master copy in fp32. fp8: as
bf16_compute, but the blocks' products round to fp8."""

FULL_BYTES = 4
"""Bytes of one fp32 element; weights, residual stream, norms and loss are fp32 in every precision."""
HALF_BYTES = 2
"""Bytes of one bf16 or fp16 element."""
INDEX_BYTES = 8
"""Bytes of one token's number, int64."""


def is_recomputed(block: int, *, every: int) -> bool:
    """Whether backward recomputes a block, counted from 0, where the last of every `every` blocks is checkpointed.

    Example: with 2 the blocks 1, 3, 5 and so on, as torchtitan counts.
    """
    return (block + 1) % every == 0


def recomputed_count(blocks: range, *, every: int) -> int:
    """Return how many of these blocks backward recomputes."""
    return sum(is_recomputed(block, every=every) for block in blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Tensors of one microbatch on one rank that holds the whole model, in bytes.

    sequences: number of sequences that pass through the model at a time.
    checkpoint_every: n, where the last of every n blocks is checkpointed; 1: all are.
    first_block: number in the whole model of the shape's first block, where the shape has only some of its blocks.
    Sizes of one block are those of a checkpointed block, unless `at_block` made the microbatch.
    Under autocast (bf16, fp16) matrix products and attention are in half precision, and the rest stays in fp32.
    Covers torch's kernels on the CPU, not compiled; their norm also keeps its output before the multiplication by its
    weight. Not covered: CUDA kernels, and heads of 2 elements, for which torch uses another attention kernel.

    Raises:
        ValueError: there is no sequence.
    """

    shape: Shape
    sequences: int
    precision: Precision
    checkpoint: Checkpoint
    checkpoint_every: int = 1
    first_block: int = 0

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise ValueError(f"sequences is {self.sequences}; it must be 1 or more")

    def at_block(self, below: int) -> Self:
        """Return the microbatch as one block sees it, checkpointed or not. below: number of blocks beneath it."""
        if self.checkpoint_every == 1:
            return self
        is_kept = not is_recomputed(self.first_block + below, every=self.checkpoint_every)
        return replace(self, checkpoint="none" if is_kept else self.checkpoint, checkpoint_every=1)

    def stored_blocks_bytes(self, blocks: int) -> int:
        """Return what forward keeps of the shape's first blocks."""
        if self.checkpoint_every == 1:
            return blocks * self.stored_block_bytes
        return sum(self.at_block(below).stored_block_bytes for below in range(blocks))

    def rerun_casts_bytes(self, blocks: int) -> int:
        """Return the bytes of autocast's copies of the weights of the recomputed blocks among the first ones.

        Forward does not store the copies, but they live until its end.
        """
        if self.checkpoint == "none":
            return 0
        first = self.first_block
        rerun = recomputed_count(range(first, first + blocks), every=self.checkpoint_every)
        return rerun * self.block_casts_bytes

    @property
    def is_autocast(self) -> bool:
        """Whether matrix products are computed in a different precision from that of the weights."""
        return self.precision != "fp32"

    @property
    def tokens_bytes(self) -> int:
        """Token numbers; inputs and targets are views of them."""
        return INDEX_BYTES * self.sequences * (self.shape.sequence + 1)

    @property
    def targets_bytes(self) -> int:
        """Contiguous targets: a copy, unless the view is contiguous already."""
        return INDEX_BYTES * self._positions if min(self.sequences, self.shape.sequence) > 1 else 0

    @property
    def stream_bytes(self) -> int:
        """The residual stream between two blocks."""
        return FULL_BYTES * self._positions * self.shape.width

    @property
    def width_bytes(self) -> int:
        """What a product reads from the stream, or adds to it; (tokens, width)."""
        return self._product_bytes(self.shape.width)

    @property
    def query_bytes(self) -> int:
        """One tensor of all query heads; (tokens, query_width)."""
        return self._product_bytes(self.shape.query_width)

    @property
    def inner_bytes(self) -> int:
        """One tensor inside the MLP; (tokens, mlp_width)."""
        return self._product_bytes(self.shape.mlp_width)

    @property
    def logits_bytes(self) -> int:
        """Logits as the head computes them; backward does not read them."""
        return self._product_bytes(self.shape.vocabulary)

    @property
    def probabilities_bytes(self) -> int:
        """Logarithms of the probabilities, or their gradient."""
        return FULL_BYTES * self._positions * self.shape.vocabulary

    @property
    def block_casts_bytes(self) -> int:
        """Autocast's copies of one block's weights."""
        return HALF_BYTES * self.shape.block_parameters() if self.is_autocast else 0

    @property
    def down_cast_bytes(self) -> int:
        """Autocast's copy of the MLP's last weight, one of the block's."""
        return HALF_BYTES * self.shape.width * self.shape.mlp_width if self.is_autocast else 0

    @property
    def head_cast_bytes(self) -> int:
        """Autocast's copy of the head's weight."""
        return HALF_BYTES * self.shape.width * self.shape.vocabulary if self.is_autocast else 0

    @property
    def block_bytes(self) -> int:
        """All that backward reads of one block, from the block's input to the input of its last product."""
        # Attention's output is laid out by head; the projection after it reads a copy laid out by token.
        copy_bytes = self.query_bytes if min(self.shape.heads, self.shape.sequence) > 1 else 0
        attention = self.query_bytes + 2 * self._kv_bytes + self._attended_bytes + copy_bytes
        mlp = 4 * self.inner_bytes  # Gate, its silu, up, and the product of these two.
        norms = self.norm_bytes(readers=3) + self.norm_bytes(readers=2)
        return 2 * self.stream_bytes + norms + attention + mlp + self.block_casts_bytes

    @property
    def stored_block_bytes(self) -> int:
        """What forward keeps of one block under the chosen checkpointing."""
        if self.checkpoint == "none":
            return self.block_bytes
        if self.checkpoint == "full":
            return self.stream_bytes
        products = self.query_bytes + 2 * self.width_bytes + 2 * self._kv_bytes + 2 * self.inner_bytes
        return self.stream_bytes + products + self._attended_bytes

    @property
    def head_bytes(self) -> int:
        """What forward keeps of the last norm, the head and the loss, whose sum of weights is a scalar."""
        head = self.stream_bytes + self.norm_bytes(readers=1) + self.head_cast_bytes
        return head + self.probabilities_bytes + self.targets_bytes + FULL_BYTES

    def norm_bytes(self, readers: int) -> int:
        """Return what a norm keeps for backward, where `readers` products read its output.

        That is a scale per token, its output before the weight, and what the products read. Its input is the residual
        stream, counted elsewhere. Under autocast each product makes its own copy.
        """
        read_bytes = readers * self.width_bytes if self.is_autocast else self.stream_bytes
        return FULL_BYTES * self._positions + self.stream_bytes + read_bytes

    @property
    def _positions(self) -> int:
        return self.sequences * self.shape.sequence

    @property
    def _kv_bytes(self) -> int:
        return self._product_bytes(self.shape.kv_heads * self.shape.head_width)

    @property
    def _attended_bytes(self) -> int:
        """Attention's output, and the log-sum-exp of each query."""
        return self.query_bytes + FULL_BYTES * self._positions * self.shape.heads

    def _product_bytes(self, width: int) -> int:
        return (HALF_BYTES if self.is_autocast else FULL_BYTES) * self._positions * width


def paper_activation_bytes(shape: Shape, sequences: int, checkpoint: Checkpoint, *, checkpoint_every: int = 1) -> int:
    """Return the paper's account: bytes that the blocks of a GPT in fp16 with dropout keep on one rank.

    The paper's attention keeps all scores, which this model's never does; embedding, head and loss are not counted. Of
    the shape only layers, width, heads and sequence are read.
    selective: keeps all but what attention makes between its products.
    checkpoint_every: see `Microbatch`.
    Source: Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, table 2.

    Raises:
        ValueError: there is no sequence.
    """
    if sequences < 1:
        raise ValueError(f"sequences is {sequences}; it must be 1 or more")
    stream = shape.sequence * sequences * shape.width
    scores = shape.heads * shape.sequence**2 * sequences
    each = {"none": 34 * stream + 5 * scores, "selective": 34 * stream, "full": 2 * stream}
    rerun = recomputed_count(range(shape.layers), every=checkpoint_every)
    return rerun * each[checkpoint] + (shape.layers - rerun) * each["none"]


ZeroStage = Literal[0, 1, 2, 3]
"""What ZeRO divides among data ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters."""


def paper_states(
    parameters: int,
    *,
    stage: ZeroStage,
    data_ranks: int,
    model_ranks: int = 1,
    bytes_each: tuple[int, int, int] = (2, 2, 12),
) -> States:
    """Return the states of one rank, each part rounded up to the byte; assumes that every part divides evenly.

    model_ranks: ranks that divide the model itself among them, by tensors or by layers.
    bytes_each: of a parameter's weight, gradient and optimizer state, before anything is divided. By default the
    paper's mixed precision: fp16 weights and gradients; weights, momentum and variance of Adam in fp32.
    Source: Rajbhandari et al. 2020, ZeRO, sections 3.1 and 5 and figure 1.

    Raises:
        ValueError: there is no rank.
    """
    for name, ranks in (("data_ranks", data_ranks), ("model_ranks", model_ranks)):
        if ranks < 1:
            raise ValueError(f"{name} is {ranks}; it must be 1 or more")
    share = Fraction(parameters, model_ranks)
    # Stage 3 also divides parameters, stage 2 gradients, stage 1 the optimizer's states.
    parameters, gradients, optimizer = (
        ceil(size_bytes * share / (data_ranks if stage >= sharded_from else 1))
        for size_bytes, sharded_from in zip(bytes_each, (3, 2, 1), strict=True)
    )
    return States(parameters_bytes=parameters, gradients_bytes=gradients, optimizer_bytes=optimizer)
