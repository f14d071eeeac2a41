"""Options `weights` and `grad_dtype` of training in bf16: their meanings, refusals and notes.

Imports no torch.

autocast: weights, residual stream, norms and the loss are fp32; matrix products and attention compute in bf16.
bf16_compute: weights are kept in fp32, and every layer computes with copies in bf16, as under FSDP2's mixed precision
policy. The residual stream is bf16; rotations, attention's sums and the loss are fp32. Gradients of a microbatch are
bf16 and accumulate in fp32.
bf16: the same arithmetic, but the model holds its weights in bf16, and the optimizer a master copy in fp32, which it
updates and rounds. Megatron counts 2 bytes of weights, 4 of gradients (2 with grad_dtype=bf16) and 12 in the optimizer.
fp8: as bf16_compute, but the linear layers of blocks multiply in fp8; see `workloads.core.fp8`.
Source: torch 2.13, MixedPrecisionPolicy; Micikevicius et al. 2018, Mixed precision training, section 3.1; Megatron-LM,
distributed optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from workloads.cost_models.memory import Weights
from workloads.spec import UNSETTLED, Option, Setup

GradType = Literal["fp32", "bf16"]

WEIGHTS = Option(
    name="weights",
    default=UNSETTLED,
    choices=(UNSETTLED, "autocast", "bf16_compute", "bf16", "fp8"),
    help="in bf16: autocast (fp32 weights; only products and attention compute in bf16), bf16_compute (fp32 weights;"
    " every layer computes with bf16 copies), bf16 (bf16 weights; an fp32 master in the optimizer) or fp8 (bf16_compute"
    " with the blocks' products in fp8); auto: bf16_compute where FSDP2 shards, otherwise autocast",
    added_later=True,
    before="autocast",
)
GRAD_DTYPE = Option(
    name="grad_dtype",
    default="fp32",
    choices=("fp32", "bf16"),
    help="precision in which gradients are accumulated and reduced",
    added_later=True,
    formerly="reduce_dtype",
)
PRECISION_OPTIONS = (WEIGHTS, GRAD_DTYPE)

FP8_MULTIPLE = 16
"""A GPU multiplies in fp8 only matrices whose sizes are multiples of this."""

NO_MASTER = (
    "only the optimizers of single, ddp and zero1 keep an fp32 master; use weights=bf16_compute, which does the same"
    " arithmetic and keeps fp32 weights as the master"
)
"""Why a strategy whose optimizer is torch's own refuses weights in bf16."""
DIVIDED_ROWS = (
    "tensor ranks divide the rows that fp8 scales, so that each would scale its part by itself, unlike one rank; use"
    " weights=bf16_compute, or fsdp"
)
"""Why strategies that divide products refuse fp8."""


def weights_of(setup: Setup) -> Weights:
    """Return how the setup keeps its weights; autocast if the option is not settled."""
    word = WEIGHTS.of(setup)
    return "autocast" if word == UNSETTLED else word  # type: ignore[return-value]  # The option allows no other word.


def grad_dtype_of(setup: Setup) -> GradType:
    """Return the precision in which gradients accumulate and are reduced."""
    word: GradType = GRAD_DTYPE.of(setup)  # type: ignore[assignment]  # The option allows no other word.
    return word


def is_rounded(setup: Setup) -> bool:
    """Whether all layers compute with weights in bf16, so that the residual stream is also bf16."""
    return weights_of(setup) != "autocast"


def is_sharded_rounded(setup: Setup) -> bool:
    """Whether weights are kept in fp32 and gathered, or copied, in bf16."""
    return weights_of(setup) in ("bf16_compute", "fp8")


def is_fp8(setup: Setup) -> bool:
    """Whether the linear layers of blocks multiply in fp8."""
    return weights_of(setup) == "fp8"


def is_master_kept(setup: Setup) -> bool:
    """Whether the model's weights are bf16, and their fp32 master is in the optimizer."""
    return weights_of(setup) == "bf16"


def stream_bytes(setup: Setup) -> int:
    """Return the bytes of an element of the residual stream."""
    return 2 if is_rounded(setup) else 4


def gradient_bytes(setup: Setup) -> int:
    """Return the bytes of an element of a gradient that accumulates."""
    return 2 if grad_dtype_of(setup) == "bf16" else 4


def master_bytes_each(setup: Setup) -> tuple[int, int, int]:
    """Return Megatron's bytes of a weight, its gradient and its optimizer state; the ZeRO paper's by default."""
    return (2, gradient_bytes(setup), 12) if is_master_kept(setup) else (2, 2, 12)


def weights_refusals(setup: Setup, refused: Mapping[Weights, str]) -> Iterator[str]:
    """Yield why this `weights` is not possible. refused: values that the strategy refuses, each with the reason."""
    word = weights_of(setup)
    if word == "autocast":
        return
    if setup.precision != "bf16":
        yield (
            f"option weights is {word} with --precision {setup.precision}, which always keeps fp32 weights: leave it"
            " out, or use --precision bf16"
        )
    elif word in refused:
        yield f"option weights is {word}; {refused[word]}"
    elif word == "fp8" and setup.device == "cuda":
        yield from _fp8_sizes(setup)


def _fp8_sizes(setup: Setup) -> Iterator[str]:
    """Yield the sizes of linear layers that a GPU's product in fp8 does not accept."""
    shape = setup.shape
    widths = {
        "width": shape.width,
        "query heads": shape.query_width,
        "key heads": shape.kv_heads * shape.head_width,
        "mlp_width": shape.mlp_width,
    }
    if odd := [f"{name} {width}" for name, width in widths.items() if width % FP8_MULTIPLE]:
        yield (
            f"option weights is fp8 with {' and '.join(odd)}; a GPU multiplies in fp8 only sizes that are multiples of"
            f" {FP8_MULTIPLE}: use such sizes, or weights=bf16_compute"
        )


def gradient_refusals(setup: Setup, *, is_reduced: bool) -> Iterator[str]:
    """Yield why gradients cannot accumulate in bf16. is_reduced: the strategy rounds them for their reduction."""
    if grad_dtype_of(setup) == "fp32" or is_reduced or is_master_kept(setup):
        return
    yield (
        f"option grad_dtype is {grad_dtype_of(setup)}, but gradients of fp32 weights are fp32 in {setup.strategy}:"
        " leave it out, use weights=bf16 in ddp or zero1, or use fsdp, which rounds gradients when it reduces them"
    )


_MEANINGS: Mapping[Weights, str] = {
    "autocast": "weights, residual stream and norms are fp32; matrix products and attention compute in bf16",
    "bf16_compute": "weights are fp32, and every layer computes in bf16, as FSDP2 does by default in torchtitan",
    "bf16": "weights are bf16, and the optimizer holds an fp32 master and fp32 moments, as in Megatron",
    "fp8": "weights are fp32, the blocks' linear layers multiply in fp8 (e4m3, one scale per row, forward and"
    " backward), and all else computes in bf16",
}
FP8_ON_CPU = "fp8 on a CPU shows its values; its speed says nothing about a GPU"


def precision_notes(setup: Setup) -> list[str]:
    """Return a note on what bf16 means in this run, and one on fp8's speed on a CPU; none in another precision."""
    if setup.precision != "bf16":
        return []
    word = weights_of(setup)
    return [
        f"weights={word}: {_MEANINGS[word]}; gradients are accumulated in {grad_dtype_of(setup)}; runs with other"
        " weights compute differently",
        *([FP8_ON_CPU] if word == "fp8" and setup.device == "cpu" else []),
    ]
