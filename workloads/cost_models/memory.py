"""The bytes of training state on one rank by the accounts of papers.

The states as this implementation keeps them are the card's to say, see `workloads.cost_models.terms`; what lives beside
them in a step is in `workloads.cost_models.peak_memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import States

# What one forward leaves behind for its backward on a rank, in bytes: tensor by tensor for this model.
#
# Two accounts: `activation_bytes` is this implementation's, `paper_activation_bytes` a paper's, of another model.

Precision = Literal["fp32", "bf16", "fp16"]
Checkpoint = Literal["none", "full", "selective"]

FULL_BYTES = 4
"""Of one element in fp32, which weights, residual stream, norms and loss keep in every precision."""
HALF_BYTES = 2
INDEX_BYTES = 8
"""Of one token's number, int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """The tensors of one microbatch on one rank that holds the whole model, in bytes.

    sequences: those that go through the model at a time.
    Under autocast (bf16, fp16) products and attention are in half precision, and the rest stays in fp32.
    Covers torch's kernels on the CPU, not compiled, whose norm also keeps its output before its weight. Not covered are
    those of CUDA, and heads of 2 elements, which torch gives to another attention.

    Raises:
        ValueError: there is no sequence.
    """

    shape: Shape
    sequences: int
    precision: Precision
    checkpoint: Checkpoint

    def __post_init__(self) -> None:
        if self.sequences < 1:
            raise ValueError(f"sequences is {self.sequences}; it must be 1 or more")

    @property
    def is_autocast(self) -> bool:
        """Whether products are computed in another precision than the weights have."""
        return self.precision != "fp32"

    @property
    def tokens_bytes(self) -> int:
        """The numbers of the tokens; inputs and targets are views of them."""
        return INDEX_BYTES * self.sequences * (self.shape.sequence + 1)

    @property
    def targets_bytes(self) -> int:
        """The targets laid end to end: a copy, unless they lie so already."""
        return INDEX_BYTES * self._positions if min(self.sequences, self.shape.sequence) > 1 else 0

    @property
    def stream_bytes(self) -> int:
        """The residual stream between two blocks."""
        return FULL_BYTES * self._positions * self.shape.width

    @property
    def width_bytes(self) -> int:
        """What a product reads from the stream, or adds to it."""
        return self._product_bytes(self.shape.width)

    @property
    def inner_bytes(self) -> int:
        """One of the tensors inside of the MLP."""
        return self._product_bytes(self.shape.mlp_width)

    @property
    def logits_bytes(self) -> int:
        """The logits as the head computes them. Backward does not read them, but the step holds them."""
        return self._product_bytes(self.shape.vocabulary)

    @property
    def probabilities_bytes(self) -> int:
        """The logarithms of the probabilities, or their gradient."""
        return FULL_BYTES * self._positions * self.shape.vocabulary

    @property
    def block_casts_bytes(self) -> int:
        """The copies of one block's weights that autocast makes."""
        return HALF_BYTES * self.shape.block_parameters() if self.is_autocast else 0

    @property
    def down_cast_bytes(self) -> int:
        """The copy of the MLP's last weight, one of the block's."""
        return HALF_BYTES * self.shape.width * self.shape.mlp_width if self.is_autocast else 0

    @property
    def head_cast_bytes(self) -> int:
        """The copy of the head's weight."""
        return HALF_BYTES * self.shape.width * self.shape.vocabulary if self.is_autocast else 0

    @property
    def block_bytes(self) -> int:
        """All that backward reads of one block, from the block's input to what its last product reads."""
        # Attention's output lies head by head, and the product behind it reads a copy that lies token by token.
        copy_bytes = self.width_bytes if min(self.shape.heads, self.shape.sequence) > 1 else 0
        attention = self.width_bytes + 2 * self._kv_bytes + self._attended_bytes + copy_bytes
        mlp = 4 * self.inner_bytes  # Gate, its silu, up, and the product of these two.
        norms = self.norm_bytes(readers=3) + self.norm_bytes(readers=2)
        return 2 * self.stream_bytes + norms + attention + mlp + self.block_casts_bytes

    @property
    def stored_block_bytes(self) -> int:
        """What forward leaves of one block, by the way of checkpointing."""
        if self.checkpoint == "none":
            return self.block_bytes
        if self.checkpoint == "full":
            return self.stream_bytes
        products = 3 * self.width_bytes + 2 * self._kv_bytes + 2 * self.inner_bytes
        return self.stream_bytes + products + self._attended_bytes

    @property
    def head_bytes(self) -> int:
        """What forward leaves of the last norm, the head and the loss, whose sum of weights is a scalar."""
        head = self.stream_bytes + self.norm_bytes(readers=1) + self.head_cast_bytes
        return head + self.probabilities_bytes + self.targets_bytes + FULL_BYTES

    def norm_bytes(self, readers: int) -> int:
        """A norm's scale of each token, its output before the weight, and what the products behind it read.

        Its input is the stream's. Under autocast each product makes a copy of its own.
        """
        read = readers * self.width_bytes if self.is_autocast else self.stream_bytes
        return FULL_BYTES * self._positions + self.stream_bytes + read

    @property
    def _positions(self) -> int:
        return self.sequences * self.shape.sequence

    @property
    def _kv_bytes(self) -> int:
        return self._product_bytes(self.shape.kv_heads * self.shape.head_width)

    @property
    def _attended_bytes(self) -> int:
        """Attention's output, and the log-sum-exp of each query."""
        return self.width_bytes + FULL_BYTES * self._positions * self.shape.heads

    def _product_bytes(self, width: int) -> int:
        return (HALF_BYTES if self.is_autocast else FULL_BYTES) * self._positions * width


def activation_bytes(shape: Shape, sequences: int, precision: Precision, checkpoint: Checkpoint) -> int:
    """Bytes kept for backward when one microbatch's forward is through, without weights and tables of positions.

    This implementation's account, to the byte; see `Microbatch`.
    """
    microbatch = Microbatch(shape=shape, sequences=sequences, precision=precision, checkpoint=checkpoint)
    return microbatch.tokens_bytes + shape.layers * microbatch.stored_block_bytes + microbatch.head_bytes


def paper_activation_bytes(shape: Shape, sequences: int, checkpoint: Checkpoint) -> int:
    """The paper's account: bytes kept of the blocks of a GPT in fp16 with dropout, on one rank.

    Its attention keeps all scores, which this model's never does; embedding, head and loss are not counted. Of the
    shape only layers, width, heads and sequence are read.
    selective: all but what attention makes between its products.
    Source: Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, table 2.

    Raises:
        ValueError: there is no sequence.
    """
    if sequences < 1:
        raise ValueError(f"sequences is {sequences}; it must be 1 or more")
    stream = shape.sequence * sequences * shape.width
    scores = shape.heads * shape.sequence**2 * sequences
    per_layer = {"none": 34 * stream + 5 * scores, "selective": 34 * stream, "full": 2 * stream}[checkpoint]
    return shape.layers * per_layer


Stage = Literal[0, 1, 2, 3]
"""What ZeRO divides among data ranks: nothing, optimizer states, gradients too, parameters too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Bytes of state that an account gives each parameter, before anything is divided."""

    parameters: int
    gradients: int
    optimizer: int


MIXED_PRECISION = Account(parameters=2, gradients=2, optimizer=12)
"""The paper's: fp16 weights and gradients; weights, momentum and variance of Adam in fp32.

Source: Rajbhandari et al. 2020, ZeRO, section 3.1.
"""

HALF_PRECISION = Account(parameters=2, gradients=2, optimizer=4)
"""All in two bytes, Adam's two moments too, and no fp32 copy of the weights: a popular account that is too low."""


def paper_states(
    parameters: int,
    *,
    stage: Stage,
    data_ranks: int,
    model_ranks: int = 1,
    account: Account = MIXED_PRECISION,
) -> States:
    """States of one rank, each part rounded up to the byte; as if every part could be divided evenly.

    model_ranks: those that divide the model itself among them, by tensors or by layers.
    Source: Rajbhandari et al. 2020, ZeRO, section 5 and figure 1.

    Raises:
        ValueError: there is no rank.
    """
    for name, ranks in (("data_ranks", data_ranks), ("model_ranks", model_ranks)):
        if ranks < 1:
            raise ValueError(f"{name} is {ranks}; it must be 1 or more")
    share = Fraction(parameters, model_ranks)

    def held_bytes(bytes_each: int, *, divided_from: int) -> int:
        exact = bytes_each * share / (data_ranks if stage >= divided_from else 1)
        return -(-exact.numerator // exact.denominator)

    return States(
        parameters_bytes=held_bytes(account.parameters, divided_from=3),
        gradients_bytes=held_bytes(account.gradients, divided_from=2),
        optimizer_bytes=held_bytes(account.optimizer, divided_from=1),
    )
