"""Steps in bf16 on ranks, and what they are compared with: other policies of FSDP2, and a loop in fp64 of its own.

Dimensions as in `workloads.core.transformer`: b batch, s sequence, d width, h heads, e elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy

from tests.workloads.training.setups import SmallSetup
from tests.workloads.training.training_runs import no_phase
from workloads.core.data import make_batches
from workloads.core.mesh import make_mesh
from workloads.core.trainer import Trainer, make_model
from workloads.fsdp.strategy import shard
from workloads.registry import spec_of

Gradients = dict[str, Tensor]


def largest_difference(gradients: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> float:
    """The largest relative difference of a weight's gradient: norm of the difference over norm."""
    assert gradients.keys() == truth.keys()
    pairs = [(gradient.double(), truth[name].double()) for name, gradient in gradients.items()]
    return max(float((gradient - expected).norm() / expected.norm()) for gradient, expected in pairs)


def gradients_under_policy(setup: SmallSetup, policy: MixedPrecisionPolicy) -> Gradients:
    """Gradients of one step of `fsdp` under a policy that the setup would not choose."""
    spec = spec_of(setup.strategy)
    mesh = make_mesh(spec.mesh(setup), setup.device)
    model = make_model(setup)
    shard(model, mesh, policy=policy)
    trainer = Trainer(setup, model, no_phase)
    trainer.step(next(make_batches(setup, spec.data_share(setup, dist.get_rank()))))
    return trainer.full_gradients()


def gradients_in_fp64(setup: SmallSetup) -> Gradients:
    """Gradients of the first batch by a model written again, in fp64, with its own rotary embedding and loss."""
    shape = setup.shape
    model = make_model(replace(setup, precision="fp32", options={**setup.options, "weights": "autocast"}))
    weights = {name: weight.detach().double().requires_grad_() for name, weight in model.named_parameters()}
    tokens_bs = next(make_batches(setup, spec_of("single").data_share(setup, 0)))
    x_bsd = weights["embedding.weight"][tokens_bs[:, :-1]]
    for layer in range(shape.layers):
        block = {name.split(".", 2)[2]: each for name, each in weights.items() if name.startswith(f"blocks.{layer}.")}
        x_bsd = x_bsd + _attention(_norm(x_bsd, block["attention_norm.weight"]), block, shape.heads, shape.kv_heads)
        y_bsd = _norm(x_bsd, block["mlp_norm.weight"])
        gate = y_bsd @ block["mlp.gate.weight"].T
        x_bsd = x_bsd + (gate * torch.sigmoid(gate) * (y_bsd @ block["mlp.up.weight"].T)) @ block["mlp.down.weight"].T
    logits_bsv = _norm(x_bsd, weights["norm.weight"]) @ weights["head.weight"].T
    chosen_bs = logits_bsv.gather(-1, tokens_bs[:, 1:, None]).squeeze(-1)
    (torch.logsumexp(logits_bsv, -1) - chosen_bs).mean().backward()  # type: ignore[no-untyped-call]  # By torch.
    return {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


def _norm(x_bsd: Tensor, weight_d: Tensor) -> Tensor:
    return x_bsd / (x_bsd.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight_d


def _attention(x_bsd: Tensor, block: Mapping[str, Tensor], heads: int, kv_heads: int) -> Tensor:
    batch, sequence, width = x_bsd.shape
    q_bhse, k_bhse, v_bhse = (
        (x_bsd @ block[f"attention.{name}.weight"].T).view(batch, sequence, count, -1).transpose(1, 2)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    )
    k_bhse, v_bhse = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (_turn(k_bhse), v_bhse))
    scores = _turn(q_bhse) @ k_bhse.transpose(-1, -2) / math.sqrt(q_bhse.shape[-1])
    future = torch.ones(sequence, sequence).triu(1).bool()
    out_bhse = scores.masked_fill(future, -math.inf).softmax(-1) @ v_bhse
    return out_bhse.transpose(1, 2).reshape(batch, sequence, width) @ block["attention.o.weight"].T


def _turn(x_bhse: Tensor) -> Tensor:
    """Rotate pairs of elements i and i + e/2, as complex numbers, by position / 500,000^(2 i / e)."""
    half = x_bhse.shape[-1] // 2
    rates = 500_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angles_sr = torch.arange(x_bhse.shape[-2], dtype=torch.float64)[:, None] * rates
    pairs = torch.complex(x_bhse[..., :half].contiguous(), x_bhse[..., half:].contiguous())
    turned = pairs * torch.polar(torch.ones_like(angles_sr), angles_sr)
    return torch.cat((turned.real, turned.imag), dim=-1)
