"""Weights in bf16: copies that compute in place of fp32 weights, and AdamW with an fp32 master of bf16 weights.

Knows no strategy; `workloads.core.precision_options` says what the options mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import AdamW

from workloads.core.fp8 import Fp8Linear, check_device
from workloads.core.precision_options import grad_dtype_of, is_fp8, is_master_kept, is_rounded, is_sharded_rounded
from workloads.core.transformer import Block
from workloads.spec import Setup

TYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

# bf16_compute: layers that round their weight when they use it. Autograd turns its gradient back to fp32, so that
# fp32 gradients accumulate. Under FSDP2 the weight is in bf16 already, and nothing is rounded.


class _RoundedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(torch.bfloat16))


class _RoundedEmbedding(nn.Embedding):
    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight.to(torch.bfloat16))


class _RoundedNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(torch.bfloat16), self.eps)


_ROUNDED: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Linear: _RoundedLinear,
    nn.Embedding: _RoundedEmbedding,
    nn.RMSNorm: _RoundedNorm,
}


def compute_with_rounded_weights(setup: Setup, model: nn.Module) -> None:
    """Let all layers of the model compute with bf16 copies of their weights, if the setup requires it.

    With fp8 the linear layers of blocks also multiply in fp8. Changes the class of each layer, as `fully_shard` does,
    so that no weight changes its name.

    Raises:
        RuntimeError: a layer with weights is of an unknown kind, or this GPU has no fp8.
    """
    if not is_sharded_rounded(setup):
        return
    if is_fp8(setup):
        check_device(setup)
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        for product in (part for block in blocks for part in block.modules() if type(part) is nn.Linear):
            product.__class__ = Fp8Linear
    for name, module in model.named_modules():
        if not list(module.parameters(recurse=False)):
            continue
        if type(module) is Fp8Linear:
            continue
        if type(module) not in _ROUNDED:
            raise RuntimeError(f"layer {name} is a {type(module).__name__}, for which weights=bf16_compute has no rule")
        module.__class__ = _ROUNDED[type(module)]


def stream_dtype(setup: Setup) -> torch.dtype:
    """Return the precision of the residual stream; the loss is fp32 in every precision."""
    return torch.bfloat16 if is_rounded(setup) else torch.float32


def sharding_policy(setup: Setup) -> MixedPrecisionPolicy:
    """Return FSDP2's policy: in what precision units are gathered and computed, and gradients reduced."""
    rounded = torch.bfloat16 if is_sharded_rounded(setup) else None
    reduced = grad_dtype_of(setup)
    return MixedPrecisionPolicy(
        param_dtype=rounded,
        # With a `param_dtype`, None would mean to reduce in bf16.
        reduce_dtype=None if rounded is None and reduced == "fp32" else TYPES[reduced],
        # Blocks get the rotary tables as an argument, and must not round them.
        cast_forward_inputs=False,
    )


# bf16: the model holds rounded weights, the optimizer the master.


def round_weights(setup: Setup, model: nn.Module) -> dict[nn.Parameter, Tensor]:
    """Replace the model's weights by bf16 weights, in place; return the fp32 master of each.

    The gradients of the new weights accumulate in the setup's `grad_dtype`.

    Raises:
        RuntimeError: this torch accumulates gradients only in the precision of the weights.
    """
    assert is_master_kept(setup)
    masters = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            rounded = nn.Parameter(weight.detach().to(torch.bfloat16))
            if grad_dtype_of(setup) == "fp32":
                if not hasattr(rounded, "grad_dtype"):
                    raise RuntimeError(
                        f"torch {torch.__version__} has no `Tensor.grad_dtype`, so bf16 weights cannot have fp32"
                        " gradients; use grad_dtype=bf16, or a newer torch"
                    )
                rounded.grad_dtype = torch.float32
            setattr(module, name, rounded)
            masters[rounded] = weight.detach()
    return masters


class MasterAdamW(AdamW):
    """AdamW over fp32 masters; after each update it rounds them into the model's bf16 weights.

    Its groups and its state hold the masters; gradients are read from the weights.
    """

    def __init__(
        self, weights: Iterable[nn.Parameter], *, masters: Mapping[nn.Parameter, Tensor], **settings: Any
    ) -> None:
        """Make the optimizer of some weights. masters: those of these weights, possibly among others."""
        self.weights: Sequence[nn.Parameter] = list(weights)
        self.masters: Sequence[Tensor] = [masters[weight] for weight in self.weights]
        super().__init__(self.masters, **settings)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update masters and weights; meanwhile bf16 gradients have a copy in fp32."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        loss = super().step(closure)
        torch._foreach_copy_(list(self.weights), list(self.masters))
        for master in self.masters:
            master.grad = None
        return loss


@torch.no_grad()
def clip_in_fp32(weights: Iterable[nn.Parameter], largest_norm: float) -> Tensor:
    """Scale gradients down to a norm that is added up in fp32, whatever their own precision; return the norm before."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    torch._foreach_mul_(gradients, (largest_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
