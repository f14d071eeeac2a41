"""Gradients averaged over replicas when backward is through, many laid end to end in each collective."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from workloads.laws.flat_buckets import fill_buckets


@torch.no_grad()
def average_gradients(weights: Iterable[nn.Parameter], group: dist.ProcessGroup, *, bucket_bytes: int) -> None:
    """Replace each gradient by its mean over the group's ranks; of a part that a rank holds, the mean of that part.

    While one bucket is on its way the next is filled.

    Raises:
        RuntimeError: a weight has no gradient.
    """
    gradients = [_own(weight) for weight in weights]
    sizes = [gradient.numel() * gradient.element_size() for gradient in gradients]
    sent = []
    for bucket in fill_buckets(sizes, bucket_bytes):
        parts = [gradients[place] for place in bucket]
        flat = torch.cat([part.flatten() for part in parts])
        work = dist.all_reduce(flat, group=group, async_op=True)
        assert work is not None, "this rank is of the group"
        sent.append((parts, flat, work))
    for parts, flat, work in sent:
        work.wait()
        flat /= group.size()
        means = torch.split(flat, [part.numel() for part in parts])
        torch._foreach_copy_(parts, [mean.view_as(part) for mean, part in zip(means, parts, strict=True)])


def _own(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        raise RuntimeError(f"a weight of {tuple(weight.shape)} has no gradient; the last backward did not reach it")
    return weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
