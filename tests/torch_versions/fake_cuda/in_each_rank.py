"""What the forkserver of fake ranks loads besides the product: a look at each optimizer step, and an agreed vote.

After each step the rank prints a line for each part of the training state that lies elsewhere than on the rank's GPU,
and once a line for each operator by which torch attended, as autograd recorded it.
To be loaded by the forkserver only: importing it changes the process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def parts_elsewhere(optimizer: Optimizer) -> Iterator[str]:
    """Yield weights, gradients and states of the optimizer on another device than CUDA's, with their bytes."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            tensors = {"weight": weight, "gradient": weight.grad, **optimizer.state.get(weight, {})}
            for name, tensor in tensors.items():
                if not isinstance(tensor, torch.Tensor):
                    continue
                # A DTensor's device is that of its mesh, whichever its shard is on.
                own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                if own.device.type != "cuda":
                    yield f"{name} of {tuple(weight.shape)} on {own.device}, {own.nbytes} bytes"


def look(optimizer: Optimizer, arguments: object, more: object) -> None:
    """Print what is found after a step; `Ran.elsewhere` reads it."""
    for part in sorted(set(parts_elsewhere(optimizer))):
        print("not on the GPU:", part, file=sys.stderr, flush=True)


def vote(stage: PipelineStage, *_: object, **__: object) -> torch.Tensor:
    """Return that all stages know their shapes; torch would multiply their votes on a GPU, which computes nothing."""
    return torch.tensor([1], dtype=torch.int32, device=stage.device)


class Factors(NamedTuple):
    """What `torch.linalg.qr` returns."""

    Q: torch.Tensor
    R: torch.Tensor


attend = F.scaled_dot_product_attention
shown = set[str]()


def show_operator(*arguments: object, **more: object) -> torch.Tensor:
    """Attend as torch does, and print the operator that ran; `Ran.attention` reads it."""
    out: torch.Tensor = attend(*arguments, **more)  # type: ignore[arg-type]  # The caller's.
    if out.grad_fn is not None and out.grad_fn.name() not in shown:
        shown.add(out.grad_fn.name())
        print("attended by:", out.grad_fn.name(), file=sys.stderr, flush=True)
    return out


def factor(tall: torch.Tensor) -> Factors:
    """Return tensors in place of orthonormal columns and their coefficients, for which torch would need cuSOLVER."""
    return Factors(torch.clone(tall), tall.new_empty(tall.shape[1], tall.shape[1]))


F.scaled_dot_product_attention = show_operator
torch.linalg.qr = factor
register_optimizer_step_post_hook(look)
if hasattr(PipelineStage, "_warmup_forward_vote"):  # torch 2.11 has none.
    PipelineStage._warmup_forward_vote = vote  # type: ignore[method-assign,assignment]  # It takes more.
