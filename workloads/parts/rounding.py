"""Gradients averaged in half precision: half the bytes, and the rounding is lost."""

from __future__ import annotations

import torch
import torch.distributed as dist

from workloads.parts.compression import Bucket


class Rounding:
    """All gradients of the bucket in one all_reduce of half-precision elements, which the library adds as such.

    Nothing remembers what was rounded off.
    """

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        self._group = group
        self._dtype = dtype

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        # Divided before the sum: in fp16 the sum of many ranks could pass the largest number.
        rounded = (bucket.flat / self._group.size()).to(self._dtype)
        dist.all_reduce(rounded, group=self._group)
        bucket.flat.copy_(rounded)
