"""Choice of a rank's attention kernel: torch's own, or the one that the option `attention` names.

Strategies on scaled_dot_product_attention leave the choice to torch, which looks at GPU, precision and heads; the ring
calls a kernel itself, and takes the one that torch would choose, so that an efficiency against `single` compares like
with like. Each run notes which kernel it used.
Dimensions: b batch, h query heads, k key and value heads, q queries, t keys, e elements of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workloads.core.attention_kernels import KERNELS, CpuFlash, Kernel, repeated
from workloads.core.mesh import DTYPES
from workloads.core.transformer import Attend, attend
from workloads.options import KernelName, pinned_kernel
from workloads.spec import Setup

BACKENDS: Mapping[KernelName, SDPBackend] = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Queries, keys and values of the shapes and types that a rank attends with; their values do not matter."""

    q_bhqe: Tensor
    k_bkte: Tensor
    v_bkte: Tensor
    is_causal: bool


class TorchAttention:
    """Asks torch which kernels can attend on the current GPU, by the functions that torch itself uses.

    device: on which an example's tensors lie.
    """

    device = torch.device("cuda")

    def choice(self, example: Example) -> KernelName:
        """Return the kernel that scaled_dot_product_attention would run."""
        number = torch._fused_sdp_choice(
            example.q_bhqe, example.k_bkte, example.v_bkte, is_causal=example.is_causal, enable_gqa=True
        )
        return next(name for name, backend in BACKENDS.items() if backend.value == number)

    def can_use(self, kernel: KernelName, example: Example) -> bool:
        """Whether scaled_dot_product_attention could run this kernel."""
        cuda, has_gqa = torch.backends.cuda, True
        params = cuda.SDPAParams(example.q_bhqe, example.k_bkte, example.v_bkte, None, 0.0, example.is_causal, has_gqa)
        match kernel:
            case "cudnn":
                return cuda.can_use_cudnn_attention(params)
            case "flash":
                return cuda.can_use_flash_attention(params)
            case "efficient":
                return cuda.can_use_efficient_attention(params)
            case "math":
                return True


TORCH = TorchAttention()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """An `Attend`: causal attention by one given kernel of torch."""

    kernel: KernelName

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """Return the output of each query, (b, h, s, e)."""
        if self.kernel == "efficient":  # It does not support grouped heads.
            k_bkse, v_bkse = repeated(k_bkse, q_bhse), repeated(v_bkse, q_bhse)
        with sdpa_kernel(BACKENDS[self.kernel]):
            return F.scaled_dot_product_attention(q_bhse, k_bkse, v_bkse, is_causal=True, enable_gqa=True)


def attend_of(setup: Setup, attention: TorchAttention = TORCH) -> Attend:
    """Return the attention over a whole sequence: by the kernel that the setup names, or by torch's choice.

    Raises:
        RuntimeError: this GPU cannot run the kernel that the setup names.
    """
    kernel = pinned_kernel(setup)
    if kernel is None:
        return attend
    _check(setup, kernel, _example(setup, kernel, attention.device), attention)
    return Pinned(kernel=kernel)


def attention_notes(setup: Setup, attention: TorchAttention = TORCH) -> tuple[str, ...]:
    """Say which kernel attends to whole sequences; empty on the CPU, which has only one."""
    if setup.device == "cpu":
        return ()
    kernel = pinned_kernel(setup)
    if kernel is not None:
        return (_note(kernel, "as the option attention says"),)
    kernel = attention.choice(_example(setup, None, attention.device))
    remark = "" if kernel in KERNELS else "; ring_attention has no such kernel, and is compared with another"
    return (_note(kernel, f"torch's choice on this GPU{remark}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingKernel:
    """The kernel of ring attention. notes: which it is, and why it differs from that of other strategies."""

    kernel: Kernel
    notes: tuple[str, ...] = ()


def ring_kernel(setup: Setup, *, positions: int, chunk: int, attention: TorchAttention = TORCH) -> RingKernel:
    """Choose the kernel that a rank of the ring attends with.

    positions: queries of a rank. chunk: the fewest keys that it attends to at a time.

    Raises:
        RuntimeError: this GPU cannot run the kernel that the setup names, or has none that suits the ring.
    """
    if setup.device == "cpu":
        return RingKernel(kernel=CpuFlash())
    example = partial(_example, setup, device=attention.device, positions=(positions, chunk))
    pinned = pinned_kernel(setup)
    if pinned is not None:
        _check(setup, pinned, example(pinned), attention)
        return RingKernel(kernel=KERNELS[pinned], notes=(_note(pinned, "as the option attention says"),))
    choice = attention.choice(example(None))
    if choice in KERNELS:
        return RingKernel(kernel=KERNELS[choice], notes=(_note(choice, "torch's choice on this GPU"),))
    if not attention.can_use("efficient", example("efficient")):
        raise RuntimeError(
            f"torch has no kernel on this GPU that returns a log-sum-exp in {setup.precision} for heads of"
            f" {setup.shape.head_width} elements, and the ring needs one; take another --precision"
        )
    why = f"other strategies run {choice}, which returns no log-sum-exp: efficiency against them compares kernels too"
    return RingKernel(kernel=KERNELS["efficient"], notes=(_note("efficient", why),))


def _note(kernel: KernelName, why: str) -> str:
    return f"attention runs torch's kernel {kernel}; {why}"


def _check(setup: Setup, kernel: KernelName, example: Example, attention: TorchAttention) -> None:
    if not attention.can_use(kernel, example):
        raise RuntimeError(
            f"option attention is {kernel}, which torch cannot run on this GPU in {setup.precision} with heads of"
            f" {setup.shape.head_width} elements; leave it out, or take another kernel"
        )


def _example(
    setup: Setup, kernel: KernelName | None, device: torch.device, *, positions: tuple[int, int] | None = None
) -> Example:
    """Make tensors for a kernel, all expanded from one head's elements.

    kernel: None where torch chooses it. positions: numbers of queries and of keys; None: a whole sequence, causal.
    """
    shape = setup.shape
    queries, keys = positions or (shape.sequence, shape.sequence)
    # `attend` in fp32 and the efficient kernel get keys and values repeated for each query head.
    is_grouped = kernel != "efficient" and not (kernel is None and setup.precision == "fp32")
    zeros = torch.zeros(shape.head_width, dtype=DTYPES[setup.precision], device=device)
    kv_bkte = zeros.expand(1, shape.kv_heads if is_grouped else shape.heads, keys, -1)
    # With a gradient, because some kernels have no backward on some GPUs.
    q_bhqe = zeros.expand(1, shape.heads, queries, -1).requires_grad_()
    return Example(q_bhqe=q_bhqe, k_bkte=kv_bkte, v_bkte=kv_bkte, is_causal=positions is None)
