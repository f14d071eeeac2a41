"""Top-k: each rank sends the largest elements of its gradients, and remembers the others.

Every rank adds up what all ranks sent, so the average has up to ranks x k elements that are not zero.
Source: Stich et al. 2018, Sparsified SGD with memory; Lin et al. 2018, Deep gradient compression, section 3.1, whose
momentum correction, warm-up and clipping before the choice are not covered.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.laws.compression import kept_elements
from workloads.parts.collective_calls import all_gather
from workloads.parts.compression import Bucket, ErrorFeedback


class TopK:
    """The share `density` of each weight's gradient, at least one element, in one all_gather for each bucket.

    Values are fp32; an index is int32 and counts from the start of its weight's gradient, for a bucket may have more
    elements than int32 can count.
    """

    def __init__(self, group: dist.ProcessGroup, *, density: float, feedback: ErrorFeedback) -> None:
        self._group = group
        self._density = density
        self._feedback = feedback

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        flat, errors = bucket.flat, self._feedback.of(bucket)
        flat += errors
        chosen = [_largest(gradient, self._density) for gradient in bucket.views(flat)]
        starts_k = _starts(bucket, chosen)
        indices_k = torch.cat(chosen)
        values_k = flat[starts_k + indices_k]
        errors.copy_(flat)
        errors[starts_k + indices_k] = 0
        flat.zero_()
        for rank_values_k, rank_indices_k in self._gathered(values_k, indices_k):
            # The indices of one rank differ, so that nothing depends on the order in which a device adds them.
            flat.index_add_(0, starts_k + rank_indices_k, rank_values_k)
        flat /= self._group.size()

    def _gathered(self, values_k: Tensor, indices_k: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Values and indices of each rank, in the order of the ranks; they travel together as one tensor."""
        sent = torch.cat([values_k.view(torch.int32), indices_k.to(torch.int32)])
        arrived = sent.new_empty(self._group.size() * len(sent))
        all_gather(arrived, sent, group=self._group)
        halves = [part.chunk(2) for part in arrived.chunk(self._group.size())]
        return [(values.view(torch.float32), indices.long()) for values, indices in halves]


def _largest(gradient: Tensor, density: float) -> Tensor:
    """Indices of the elements that are sent, int64: those largest by magnitude."""
    kept = kept_elements(gradient.numel(), density)
    if kept == gradient.numel():
        return torch.arange(kept, device=gradient.device)
    return gradient.flatten().abs().topk(kept, sorted=False).indices


def _starts(bucket: Bucket, chosen: list[Tensor]) -> Tensor:
    """For each element that is sent, where its weight's gradient begins in the bucket; equal on all ranks."""
    start, starts = 0, []
    for weight, indices in zip(bucket.weights, chosen, strict=True):
        starts.append(torch.full_like(indices, start))
        start += weight.numel()
    return torch.cat(starts)
