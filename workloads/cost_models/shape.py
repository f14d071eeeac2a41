"""Shape of a training step: dimensions of a Llama-like model and its batch, with parameter and FLOP counts.

Imports no torch and no other part of the project.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Literal

Formula = Literal["palm", "palm_causal"]
"""Formula that counts the FLOPs of a step; L layers, H heads, Q head width, T sequence.

palm: 6 N + 12 L H Q T per token; counts attention in full although it is causal (PaLM, appendix B).
palm_causal: 6 N + 6 L H Q T per token; counts only the half of attention that a causal kernel must compute.
N counts the weights that take part in matrix products: the embedding table is looked up, and norms multiply element by
element.
Rematerialisation is not counted: the figure describes the model, not the hardware.
Source: Chowdhery et al. 2022, PaLM, appendix B.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are lowered, so that a model reads more positions than it was first trained on.

    linear: all frequencies are divided by the factor.
    llama3: frequencies that turn fewer than `low_freq_factor` times within `original_positions` are divided by the
    factor, those that turn more than `high_freq_factor` times stay, and those in between mix both.
    The last three fields belong to llama3 alone.
    Source: transformers, modeling_rope_utils.py; Dubey et al. 2024, The Llama 3 Herd of Models, section 3.2.

    Raises:
        ValueError: the factor is below 1 or not finite, or a field of llama3 is missing or out of order.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_positions: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor of rope scaling is {self.factor:g}; it must be 1 or more")
        if self.kind == "linear":
            return
        low, high, positions = self.low_freq_factor, self.high_freq_factor, self.original_positions
        if low is None or high is None or positions is None:
            raise ValueError("llama3 rope scaling lacks low_freq_factor, high_freq_factor or original_positions")
        if not 0 < low < high < math.inf:
            raise ValueError(
                f"low_freq_factor {low:g} and high_freq_factor {high:g} of rope scaling must be above 0, the first"
                " smaller"
            )
        if positions < 1:
            raise ValueError(f"original_positions of rope scaling is {positions}; it must be 1 or more")

    def __str__(self) -> str:
        """Return its values in the order of the fields: "linear:2", "llama3:8:1:4:8192"."""
        values = (self.factor, self.low_freq_factor, self.high_freq_factor, self.original_positions)
        return ":".join([self.kind, *(f"{value:.12g}" for value in values if value is not None)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions of the model and of the batch of one optimizer step, and the model's other settings.

    batch: sequences of one optimizer step, over all ranks and all accumulated microbatches (the effective batch).
    kv_heads: key and value heads, each shared by heads / kv_heads query heads.
    mlp_width: inner width of the SwiGLU.
    head_dim: width of one head where it is not width / heads; see `head_width`.
    norm_epsilon: what RMSNorm adds to the mean square. rope_theta: base of the rotary frequencies.
    is_tied: the head shares the embedding's weight.
    The defaults are those of every preset, Llama 3's; runs from before these fields existed have them.

    Raises:
        ValueError: a number is too small, or one does not divide the other.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    sequence: int
    batch: int
    head_dim: int | None = None
    norm_epsilon: float = 1e-5
    rope_theta: float = 500_000.0
    rope_scaling: RopeScaling | None = None
    is_tied: bool = False

    def __post_init__(self) -> None:
        for name in (*DIMENSIONS, *(() if self.head_dim is None else ("head_dim",))):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("norm_epsilon", "rope_theta"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name):g}; it must be above 0")
        if self.vocabulary < 2:
            raise ValueError("vocabulary is 1; it must be 2 or more, or there is nothing to learn")
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.head_width % 2:
            raise ValueError(
                f"{self.head_words} is {self.head_width}, which is odd; rotary embedding turns pairs and needs it even"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")

    @property
    def head_width(self) -> int:
        """Width of one head, in elements."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def head_words(self) -> str:
        """What sets the width of one head, for messages."""
        return "width / heads" if self.head_dim is None else "head_dim"

    @property
    def query_width(self) -> int:
        """Width of all query heads together, which is `width` unless the shape has a `head_dim`."""
        return self.heads * self.head_width

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.batch * self.sequence

    def block_parameters(self) -> int:
        """Return the weights of one block that matrix products use: attention and MLP, without the norms."""
        attention = 2 * self.width * (self.query_width + self.kv_heads * self.head_width)
        return attention + 3 * self.width * self.mlp_width

    def multiplied_parameters(self) -> int:
        """Return the number of weights that take part in a matrix product: all blocks and the head."""
        return self.layers * self.block_parameters() + self.width * self.vocabulary

    def parameters(self) -> int:
        """Return the number of trained weights: blocks, norms, embedding, and a head that is not tied."""
        norms = (2 * self.layers + 1) * self.width
        tables = 1 if self.is_tied else 2
        return self.layers * self.block_parameters() + norms + tables * self.vocabulary * self.width

    def parameter_tensors(self) -> int:
        """Return the number of weight tensors: nine per block, the embedding, the last norm and an untied head."""
        return 9 * self.layers + (2 if self.is_tied else 3)

    def flops_per_token(self, formula: Formula = "palm") -> int:
        """Return the floating-point operations of forward and backward for one token; see `Formula`."""
        attention = (12 if formula == "palm" else 6) * self.layers * self.query_width * self.sequence
        return 6 * self.multiplied_parameters() + attention

    def flops_per_step(self, formula: Formula = "palm") -> int:
        """Return the floating-point operations of one optimizer step over all ranks; see `Formula`."""
        return self.tokens * self.flops_per_token(formula)

    def word(self, name: str) -> str:
        """Return the value of a field as people read it: "8192", "1e-06", "llama3:8:1:4:8192"."""
        if name == "head_dim":
            return str(self.head_width)
        value = getattr(self, name)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            return str(int(value)) if value.is_integer() else repr(value)
        return "none" if value is None else str(value)


DIMENSIONS = ("layers", "width", "heads", "kv_heads", "mlp_width", "vocabulary", "sequence", "batch")
"""Fields that each have an option."""

FIELDS = tuple(field.name for field in fields(Shape))
"""All fields; only a file can set those that are not dimensions (`bench.session.shape_file`)."""


def unlike(shape: Shape, other: Shape) -> tuple[str, ...]:
    """Return the names of the fields in which two shapes differ."""
    return tuple(name for name in FIELDS if getattr(shape, name) != getattr(other, name))


def particulars(shape: Shape) -> tuple[str, ...]:
    """Return the names of the fields other than dimensions that are not at their defaults."""
    others = (field for field in fields(Shape) if field.name not in DIMENSIONS)
    return tuple(field.name for field in others if getattr(shape, field.name) != field.default)


def shape_in_key(shape: Shape) -> dict[str, object]:
    """Return the shape's part of a case's key: dimensions and particulars.

    This keeps the keys of runs from before a field existed.
    """
    values = asdict(shape)
    return {name: values[name] for name in (*DIMENSIONS, *particulars(shape))}


PRESETS: dict[str, Shape] = {
    # One step takes about a tenth of a second on one CPU core: long enough to measure, short enough to wait for.
    "tiny": Shape(layers=4, width=128, heads=4, kv_heads=2, mlp_width=384, vocabulary=512, sequence=128, batch=8),
    "125m": Shape(layers=12, width=768, heads=12, kv_heads=4, mlp_width=2048, vocabulary=32000, sequence=2048, batch=8),
    # TinyLlama 1.1B (Zhang et al. 2024).
    "1b": Shape(layers=22, width=2048, heads=32, kv_heads=4, mlp_width=5632, vocabulary=32000, sequence=2048, batch=8),
    # Llama 3 8B, 70B and 405B (Dubey et al. 2024, table 3).
    "8b": Shape(
        layers=32, width=4096, heads=32, kv_heads=8, mlp_width=14336, vocabulary=128256, sequence=8192, batch=8
    ),
    "70b": Shape(
        layers=80, width=8192, heads=64, kv_heads=8, mlp_width=28672, vocabulary=128256, sequence=8192, batch=8
    ),
    "405b": Shape(
        layers=126, width=16384, heads=128, kv_heads=8, mlp_width=53248, vocabulary=128256, sequence=8192, batch=8
    ),
}


def nearest_preset(shape: Shape) -> tuple[str, tuple[str, ...]]:
    """Return the preset that shares most fields with the shape, and the names of the fields that differ."""
    others = {name: unlike(shape, preset) for name, preset in PRESETS.items()}
    return min(others.items(), key=lambda item: len(item[1]))
