"""The option that pins attention's kernel on a GPU, and what is refused of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from workloads.cards.card import Option, Setup

KernelName = Literal["cudnn", "flash", "efficient", "math"]
"""torch's kernels of scaled_dot_product_attention. math: all scores in memory, on any device and precision."""

ATTENTION = Option(
    name="attention",
    default="auto",
    choices=("auto", "cudnn", "flash", "efficient", "math"),
    help="kernel of attention on a GPU, so that strategies can be compared by the same; auto: torch's choice",
    added_later=True,
)
HEAD_MULTIPLE = 8
WIDEST_HEAD = 256
"""Elements of a head that torch's fused kernels on a GPU take."""
FP32_HEAD_MULTIPLE = 4
"""What the efficient kernel needs of a head in fp32."""


def pinned_kernel(setup: Setup) -> KernelName | None:
    """The kernel that the setup names; None where the choice is torch's."""
    word = ATTENTION.of(setup)
    return None if word == ATTENTION.default else word  # type: ignore[return-value]  # The option allows no other word.


def attention_refusals(setup: Setup) -> Iterator[str]:
    """Why the named kernel cannot attend; what depends on the GPU itself is told when the model is made."""
    kernel, width = pinned_kernel(setup), setup.shape.head_width
    if kernel is None:
        return
    if setup.device == "cpu":
        yield f"option attention is {kernel}, which chooses among a GPU's kernels; leave it out, or take --device cuda"
        return
    if kernel in ("cudnn", "flash") and setup.precision == "fp32":
        yield (
            f"option attention is {kernel} in fp32, which it does not compute in; take --precision bf16, or"
            " attention=efficient"
        )
        return
    multiple = FP32_HEAD_MULTIPLE if setup.precision == "fp32" else HEAD_MULTIPLE
    if kernel != "math" and (width % multiple or (kernel != "efficient" and width > WIDEST_HEAD)):
        most = "" if kernel == "efficient" else f" up to {WIDEST_HEAD}"
        yield (
            f"option attention is {kernel} with width / heads {width}, and it takes multiples of {multiple}{most}; take"
            f" such a --width for {setup.shape.heads} heads, or attention=math"
        )
