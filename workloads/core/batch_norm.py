"""Batch normalisation for convergence checks: a layer whose result depends on the other sequences of the batch.

The reference model has no such layer; a convergence check puts this one after the embedding, to see whether ranks share
the statistics of the batch.
Dimensions: b sequences of a rank, s sequence, d width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workloads.options import check_of, is_made
from workloads.spec import Setup

EPSILON = 1e-5


class BatchNorm(nn.Module):
    """Subtracts each channel's mean and divides by its deviation; without weights and running statistics.

    Mean and variance are those of the whole batch, of which all ranks have equal shares, or of this rank's share alone.
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


def make_batch_norm(setup: Setup) -> BatchNorm | None:
    """Make the layer that the setup's model has after its embedding, None where it has none."""
    check = check_of(setup)
    if check is None or not check.has_batch_norm:
        return None
    return BatchNorm(is_global=not is_made("batch_statistics", setup))


class _Mean(torch.autograd.Function):
    """Mean over all ranks. Strategies average gradients over ranks, so its own gradient is a mean over ranks too."""

    @staticmethod
    def forward(context: Any, own: Tensor) -> Tensor:
        return _mean(own)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _mean(gradient)


def _mean(own: Tensor) -> Tensor:
    whole = own.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole)
    return whole / dist.get_world_size()
