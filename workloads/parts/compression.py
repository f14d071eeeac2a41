"""What a compression scheme is: it averages a bucket of gradients over ranks, handing less to collectives.

The schemes beside it: `rounding`, `powersgd`, `top_k`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are averaged together.

    index: of the bucket among those of a step; the same on every rank.
    flat: the gradients in fp32, laid end to end in the order of their weights.
    """

    index: int
    flat: Tensor
    weights: tuple[Tensor, ...]

    def views(self, flat: Tensor) -> list[Tensor]:
        """Parts of a tensor that is laid as the bucket is, each in its weight's shape."""
        parts = torch.split(flat, [weight.numel() for weight in self.weights])
        return [part.view(weight.shape) for weight, part in zip(self.weights, parts, strict=True)]


class Scheme(Protocol):
    """A way to average gradients over the ranks of a group.

    All ranks come to the same bits, so that their weights stay equal: what differs between ranks is either reduced by
    the library, which gives each the same sum, or gathered and then added in the order of the ranks. What a rank makes
    of that by itself, such as factors that it makes orthogonal, is equal only where all devices are of one kind.
    """

    def average(self, bucket: Bucket) -> None:
        """Replace the bucket's gradients by (nearly) their means over the group; every rank calls it in one order."""


class ErrorFeedback:
    """What compression has left out of each weight's gradients so far, on this rank.

    It is kept by weight: DistributedDataParallel lays its buckets anew after the first step, and what was left out by
    then is not lost.
    Source: Stich et al. 2018, Sparsified SGD with memory; Vogels et al. 2019, PowerSGD, algorithm 2.
    """

    def __init__(self) -> None:
        self._layouts: dict[int, list[int]] = {}
        self._flats: dict[int, Tensor] = {}
        self._by_weight: dict[int, Tensor] = {}

    def of(self, bucket: Bucket) -> Tensor:
        """The errors of this bucket's weights, laid as it is, at first zeros; the scheme writes new ones into them."""
        layout = [id(weight) for weight in bucket.weights]
        if self._layouts.get(bucket.index) != layout:
            flat = torch.zeros_like(bucket.flat)
            for weight, errors in zip(bucket.weights, bucket.views(flat), strict=True):
                if (known := self._by_weight.get(id(weight))) is not None:
                    errors.copy_(known)
                self._by_weight[id(weight)] = errors
            self._layouts[bucket.index], self._flats[bucket.index] = layout, flat
        return self._flats[bucket.index]


class Uncompressed:
    """All gradients of the bucket in one all_reduce."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        bucket.flat.div_(self._group.size())
        dist.all_reduce(bucket.flat, group=self._group)
