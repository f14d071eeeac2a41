"""What a convergence check changes in a training: a layer that normalises over the batch, and deliberate faults.

The reference training knows neither. The layer is inserted after the embedding of a model that is already built: it
alone makes a result depend on the other sequences of the batch. The faults are what the check must find.
Dimensions: b sequences of a rank, s sequence, d width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from bench.case import Case
from workloads.core.data import Batches, NoBatches, RankSampler, make_batches
from workloads.core.transformer import Transformer
from workloads.options import Check, Mistake
from workloads.spec import DataShare, Setup

EPSILON = 1e-5


def trained_case(case: Case, mistakes: Sequence[Mistake]) -> Case:
    """Return the case to train: the fault `learning_rate` omits the rule that scales the rate."""
    return replace(case, options={**case.options, "lr_rule": "base"}) if "learning_rate" in mistakes else case


class FirstEpochSampler(RankSampler):
    """The fault `sampler_epoch`: every epoch has the order of the first."""

    def set_epoch(self, epoch: int) -> None:
        """Do nothing, like a training that forgets to call this."""


def check_batches(setup: Setup, place: DataShare | None, check: Check) -> Batches | NoBatches:
    """Make a rank's batches: short epochs, with a faulty sampler if the check has that fault."""
    sampler_type: type[RankSampler] = FirstEpochSampler if "sampler_epoch" in check.mistakes else DistributedSampler
    return make_batches(setup, place, epoch_steps=check.epoch_steps, sampler_type=sampler_type)


def add_batch_norm(model: nn.Module, check: Check) -> None:
    """Insert the layer after the embedding of the reference model, inside any wrappers, if the check has the layer.

    With the fault `batch_statistics` each rank normalises its own share.
    """
    for module in list(model.modules()):
        if check.has_batch_norm and isinstance(module, Transformer):
            layer = BatchNorm(is_global="batch_statistics" not in check.mistakes)
            module.batch_norm = layer
            module.embedding.register_forward_hook(lambda embedding, inputs, x_bsd, layer=layer: layer(x_bsd))


class BatchNorm(nn.Module):
    """Subtracts each channel's mean and divides by its deviation; without weights and running statistics.

    Mean and variance belong to the full batch, of which all ranks have equal shares, or to this rank's share alone.
    Source: Ioffe and Szegedy 2015, Batch normalization, algorithm 1; over all ranks: Peng et al. 2018, MegDet.
    """

    statistics_2d: Tensor | None = None
    """Mean and variance of each channel in the last forward."""

    def __init__(self, *, is_global: bool) -> None:
        super().__init__()
        self.is_global = is_global

    def forward(self, x_bsd: Tensor) -> Tensor:
        """Return the normalised stream, in float32."""
        x_bsd = x_bsd.float()
        moments_2d = torch.stack((x_bsd.mean(dim=(0, 1)), x_bsd.square().mean(dim=(0, 1))))
        if self.is_global and dist.get_world_size() > 1:
            moments_2d = _Mean.apply(moments_2d)  # type: ignore[no-untyped-call]
        mean_d, square_d = moments_2d.unbind()
        variance_d = square_d - mean_d.square()
        self.statistics_2d = torch.stack((mean_d, variance_d)).detach()
        return (x_bsd - mean_d) * torch.rsqrt(variance_d + EPSILON)


class _Mean(torch.autograd.Function):
    """Mean over all ranks. Strategies average gradients over ranks, so its gradient is also a mean over ranks."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        return _mean(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _mean(gradient)


def _mean(tensor: Tensor) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()
