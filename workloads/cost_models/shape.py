"""Shape of a training step: dimensions of a Llama-like model and its batch, with parameter and FLOP counts.

Imports no torch and no other part of the project.
"""

from __future__ import annotations

from dataclasses import dataclass
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
class Shape:
    """Dimensions of the model and of the batch of one optimizer step.

    batch: sequences of one optimizer step, over all ranks and all accumulated microbatches (the effective batch).
    kv_heads: key and value heads, each shared by heads / kv_heads query heads.
    mlp_width: inner width of the SwiGLU.

    Raises:
        ValueError: a dimension is below 1, or one does not divide the other.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    vocabulary: int
    sequence: int
    batch: int

    def __post_init__(self) -> None:
        for name in DIMENSIONS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.vocabulary < 2:
            raise ValueError("vocabulary is 1; it must be 2 or more, or there is nothing to learn")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        if self.head_width % 2:
            raise ValueError(
                f"width / heads is {self.head_width}, which is odd; rotary embedding turns pairs and needs it even"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")

    @property
    def head_width(self) -> int:
        """Width of one head, in elements."""
        return self.width // self.heads

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.batch * self.sequence

    def block_parameters(self) -> int:
        """Return the weights of one block that matrix products use: attention and MLP, without the norms."""
        attention = self.width * (2 * self.width + 2 * self.kv_heads * self.head_width)
        return attention + 3 * self.width * self.mlp_width

    def multiplied_parameters(self) -> int:
        """Return the number of weights that take part in a matrix product: all blocks and the head."""
        return self.layers * self.block_parameters() + self.width * self.vocabulary

    def parameters(self) -> int:
        """Return the number of trained weights: blocks, norms, embedding and head (not tied)."""
        norms = (2 * self.layers + 1) * self.width
        return self.multiplied_parameters() + norms + self.vocabulary * self.width

    def parameter_tensors(self) -> int:
        """Return the number of weight tensors: nine per block, the embedding, the last norm and the head."""
        return 9 * self.layers + 3

    def flops_per_token(self, formula: Formula = "palm") -> int:
        """Return the floating-point operations of forward and backward for one token; see `Formula`."""
        attention = (12 if formula == "palm" else 6) * self.layers * self.width * self.sequence
        return 6 * self.multiplied_parameters() + attention

    def flops_per_step(self, formula: Formula = "palm") -> int:
        """Return the floating-point operations of one optimizer step over all ranks; see `Formula`."""
        return self.tokens * self.flops_per_token(formula)


DIMENSIONS = ("layers", "width", "heads", "kv_heads", "mlp_width", "vocabulary", "sequence", "batch")

PRESETS: dict[str, Shape] = {
    # One step takes about a tenth of a second on one CPU core: long enough to measure, short enough to wait for.
    "tiny": Shape(layers=4, width=128, heads=4, kv_heads=2, mlp_width=384, vocabulary=512, sequence=128, batch=8),
    "125m": Shape(layers=12, width=768, heads=12, kv_heads=4, mlp_width=2048, vocabulary=32000, sequence=2048, batch=8),
    # TinyLlama 1.1B (Zhang et al. 2024).
    "1b": Shape(layers=22, width=2048, heads=32, kv_heads=4, mlp_width=5632, vocabulary=32000, sequence=2048, batch=8),
    # Llama 3 8B and 70B (Dubey et al. 2024, table 3).
    "8b": Shape(
        layers=32, width=4096, heads=32, kv_heads=8, mlp_width=14336, vocabulary=128256, sequence=8192, batch=8
    ),
    "70b": Shape(
        layers=80, width=8192, heads=64, kv_heads=8, mlp_width=28672, vocabulary=128256, sequence=8192, batch=8
    ),
}


def nearest_preset(shape: Shape) -> tuple[str, tuple[str, ...]]:
    """Return the preset that most dimensions are of, and the names of the others."""
    unlike = {
        name: tuple(dimension for dimension in DIMENSIONS if getattr(preset, dimension) != getattr(shape, dimension))
        for name, preset in PRESETS.items()
    }
    return min(unlike.items(), key=lambda item: len(item[1]))
