"""The model that every strategy trains: a Llama-like transformer, written to be read and to be compiled.

Dimensions: b batch, s sequence, d width, h query heads, k key and value heads, e elements of a head, r half of them,
v vocabulary.
Source: Touvron et al. 2023, LLaMA (RMSNorm before each part, SwiGLU, rotary embedding); Ainslie et al. 2023, GQA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import CheckpointPolicy

from workloads.cost_models.shape import Shape

Checkpoint = Literal["none", "full", "selective"]
"""What backward recomputes: nothing, whole blocks, or all of a block except its matrix products and attention."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps queries (b, h, s, e), keys and values (b, k, s, e) to outputs (b, h, s, e)."""


SAVED = frozenset(
    {
        torch.ops.aten.mm.default,
        torch.ops.aten._scaled_mm.default,  # In fp8.
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
)
"""Operators whose results selective checkpointing keeps."""


class Transformer(nn.Module):
    """Tokens to logits. The head shares the embedding's weight if the shape ties them; linear layers have no bias.

    Weights start as torch initialises them; `workloads.core.weights` sets those that training starts with.
    """

    cos_sr: Tensor
    sin_sr: Tensor

    def __init__(self, shape: Shape, *, checkpoint: Checkpoint = "none") -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, checkpoint=checkpoint) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        cos_sr, sin_sr = rotary_tables(shape)
        self.register_buffer("cos_sr", cos_sr, persistent=False)
        self.register_buffer("sin_sr", sin_sr, persistent=False)
        if shape.is_tied:
            self.tie()

    def tie(self) -> None:
        """Give the head the embedding's weight; needed again after `to_empty`, which separates them."""
        self.head.weight = self.embedding.weight

    def forward(self, tokens_bs: Tensor, targets_bs: Tensor | None = None, *, chunks: int = 1) -> Tensor:
        """Return the logits of each token's successor, (b, s, v), in the precision of autocast; with targets the loss.

        The loss is computed in chunks here, in the model, because wrappers hold the head's weight whole only between
        the model's forward and its backward.
        """
        x_bsd = self.embedding(tokens_bs)
        length = tokens_bs.shape[1]
        cos_sr, sin_sr = self.cos_sr[:length], self.sin_sr[:length]
        for block in self.blocks:
            x_bsd = block(x_bsd, cos_sr, sin_sr)
        if targets_bs is not None:
            return chunked_loss(self.head, self.norm(x_bsd), targets_bs, chunks=chunks)
        logits_bsv: Tensor = self.head(self.norm(x_bsd))
        return logits_bsv


class Block(nn.Module):
    """Attention and MLP, each after its norm and added to the residual stream.

    Checkpointing happens inside forward and wraps no module: a weight has one name in every setting, and a compiled
    block is one graph.
    """

    def __init__(self, shape: Shape, *, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        self.mlp = SwiGLU(shape)
        self.checkpoint = checkpoint

    def forward(self, x_bsd: Tensor, cos_sr: Tensor, sin_sr: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        if self.checkpoint == "none":
            return self._run(x_bsd, cos_sr, sin_sr)
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # A block draws no numbers.
        if self.checkpoint == "selective":
            options["context_fn"] = partial(checkpointing.create_selective_checkpoint_contexts, _policy)
        out_bsd: Tensor = checkpointing.checkpoint(self._run, x_bsd, cos_sr, sin_sr, **options)
        return out_bsd

    def _run(self, x_bsd: Tensor, cos_sr: Tensor, sin_sr: Tensor) -> Tensor:
        x_bsd = x_bsd + self.attention(self.attention_norm(x_bsd), cos_sr, sin_sr)
        out_bsd: Tensor = x_bsd + self.mlp(self.mlp_norm(x_bsd))
        return out_bsd


class Attention(nn.Module):
    """Causal self-attention; each key and value head serves heads / kv_heads query heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv_width = shape.kv_heads * shape.head_width
        self.head_width = shape.head_width
        self.q = nn.Linear(shape.width, shape.query_width, bias=False)
        self.k = nn.Linear(shape.width, kv_width, bias=False)
        self.v = nn.Linear(shape.width, kv_width, bias=False)
        self.o = nn.Linear(shape.query_width, shape.width, bias=False)
        self.attend: Attend = attend
        """Mixes positions; a strategy that divides the sequence replaces it."""

    def forward(self, x_bsd: Tensor, cos_sr: Tensor, sin_sr: Tensor) -> Tensor:
        """Return what attention adds to the residual stream."""
        # The number of heads (-1) follows from the product's width: this rank may hold only some of them.
        q_bhse, k_bkse, v_bkse = (
            product(x_bsd).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for product in (self.q, self.k, self.v)
        )
        out_bhse = self.attend(rotate(q_bhse, cos_sr, sin_sr), rotate(k_bkse, cos_sr, sin_sr), v_bkse)
        out_bsd: Tensor = self.o(out_bhse.transpose(1, 2).flatten(-2))
        return out_bsd


class SwiGLU(nn.Module):
    """The gated MLP. Source: Shazeer 2020, GLU Variants Improve Transformer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width, bias=False)
        self.down = nn.Linear(shape.mlp_width, shape.width, bias=False)

    def forward(self, x_bsd: Tensor) -> Tensor:
        """Return what the MLP adds to the residual stream."""
        out_bsd: Tensor = self.down(F.silu(self.gate(x_bsd)) * self.up(x_bsd))
        return out_bsd


def attend(q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
    """Compute causal attention with grouped heads, (b, h, s, e)."""
    if q_bhse.is_cuda and q_bhse.dtype is torch.float32:
        # On CUDA only flash and cuDNN take grouped heads, and neither takes fp32: without this copy, all scores would
        # be kept in memory.
        group = q_bhse.shape[1] // k_bkse.shape[1]
        k_bkse, v_bkse = k_bkse.repeat_interleave(group, dim=1), v_bkse.repeat_interleave(group, dim=1)
    return F.scaled_dot_product_attention(q_bhse, k_bkse, v_bkse, is_causal=True, enable_gqa=True)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each position's angles, (s, r) in float32.

    Source: Su et al. 2021, RoFormer, section 3.4.
    """
    angles_sr = torch.outer(torch.arange(shape.sequence, dtype=torch.float32), rotary_frequencies(shape))
    return angles_sr.cos(), angles_sr.sin()


def rotary_frequencies(shape: Shape) -> Tensor:
    """Return the angle by which each pair of elements turns from one position to the next, (r,) in float32.

    Source: see `RopeScaling`.
    """
    width, scaling = shape.head_width, shape.rope_scaling
    plain_r = shape.rope_theta ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    if scaling is None:
        return plain_r
    if scaling.kind == "linear":
        return plain_r / scaling.factor
    low, high, positions = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_positions
    assert low is not None, "llama3 has it"
    assert high is not None, "llama3 has it"
    assert positions is not None, "llama3 has it"
    turns_r = positions * plain_r / (2 * math.pi)  # Within the sequences that the model was first trained on.
    kept_r = ((turns_r - low) / (high - low)).clamp(0, 1)
    return plain_r * (kept_r + (1 - kept_r) / scaling.factor)


def rotate(x_bhse: Tensor, cos_sr: Tensor, sin_sr: Tensor) -> Tensor:
    """Rotate each head by its position, in float32; elements i and i + r pair up, as in Llama's published weights."""
    first_bhsr, second_bhsr = x_bhse.float().chunk(2, dim=-1)
    turned_bhse = torch.cat(
        (first_bhsr * cos_sr - second_bhsr * sin_sr, second_bhsr * cos_sr + first_bhsr * sin_sr), dim=-1
    )
    return turned_bhse.type_as(x_bhse)


def next_token_loss(logits_bsv: Tensor, targets_bs: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, a scalar in float32 whatever the precision of the logits."""
    return F.cross_entropy(logits_bsv.flatten(0, 1).float(), targets_bs.flatten())


def chunked_loss(head: nn.Module, x_bsd: Tensor, targets_bs: Tensor, *, chunks: int) -> Tensor:
    """Return `next_token_loss` of the head's logits, while only one chunk of positions has logits at a time.

    Backward computes the logits of each chunk again. x_bsd: the head's input. chunks: number of chunks, about equal in
    size.
    """
    sums = [
        checkpointing.checkpoint(_summed_loss, head, x_pd, targets_p, use_reentrant=False, preserve_rng_state=False)
        for x_pd, targets_p in zip(x_bsd.flatten(0, 1).chunk(chunks), targets_bs.flatten().chunk(chunks), strict=True)
    ]
    return torch.stack(sums).sum() / targets_bs.numel()


def _summed_loss(head: nn.Module, x_pd: Tensor, targets_p: Tensor) -> Tensor:
    """Return the sum of the cross-entropies of p positions, a scalar in float32."""
    return F.cross_entropy(head(x_pd).float(), targets_p, reduction="sum")


def _policy(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in SAVED else CheckpointPolicy.PREFER_RECOMPUTE
