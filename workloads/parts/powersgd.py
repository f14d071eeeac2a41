"""PowerSGD: each matrix of gradients is averaged as the product of two thin ones, by one step of power iteration.

Dimensions: n rows, m columns, r rank.
Source: Vogels et al. 2019, PowerSGD: practical low-rank gradient compression for distributed optimization.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.laws.compression import usable_rank
from workloads.parts.compression import Bucket, ErrorFeedback


class PowerSGD:
    """Two all_reduces for each bucket: the left factors beside all that is no matrix, then the right factors.

    What is no matrix travels whole. A matrix whose smaller side is below the rank is cut to that side, and nothing of
    it is lost; its factors are then larger than itself, and are sent all the same.
    """

    def __init__(self, group: dist.ProcessGroup, *, rank: int, seed: int, feedback: ErrorFeedback) -> None:
        """seed: of the first right factors, the same on all ranks."""
        self._group = group
        self._rank = rank
        self._feedback = feedback
        # The CPU's on every device, so that all ranks draw the same; and its own, so that nobody else's numbers change.
        self._random = torch.Generator().manual_seed(seed)
        self._rights: dict[int, Tensor] = {}

    def average(self, bucket: Bucket) -> None:
        """See `Scheme.average`."""
        errors = self._feedback.of(bucket)
        errors.add_(bucket.flat)
        bucket.flat.copy_(errors)
        parts = list(zip(bucket.weights, bucket.views(bucket.flat), bucket.views(errors), strict=True))
        matrices = [part for part in parts if part[0].dim() == 2]
        others = [part for part in parts if part[0].dim() != 2]

        # P <- M Q, summed over ranks, made orthonormal
        own_lefts_nr = [matrix_nm @ self._right_factor(weight) for weight, matrix_nm, _ in matrices]
        means = self._means([*own_lefts_nr, *(gradient for _, gradient, _ in others)])
        lefts_nr = [_orthonormal(left_nr) for left_nr in means[: len(matrices)]]
        for (_, gradient, error), mean in zip(others, means[len(matrices) :], strict=True):
            gradient.copy_(mean)
            error.zero_()

        # Q <- M' P, summed over ranks; the error is what this rank's own factors do not tell of its matrix
        own_rights_mr = [matrix_nm.T @ left_nr for (_, matrix_nm, _), left_nr in zip(matrices, lefts_nr, strict=True)]
        for (_, _, error_nm), left_nr, right_mr in zip(matrices, lefts_nr, own_rights_mr, strict=True):
            error_nm.addmm_(left_nr, right_mr.T, alpha=-1)
        for (weight, matrix_nm, _), left_nr, right_mr in zip(
            matrices, lefts_nr, self._means(own_rights_mr), strict=True
        ):
            torch.mm(left_nr, right_mr.T, out=matrix_nm)
            self._rights[id(weight)] = right_mr

    def _right_factor(self, weight: Tensor) -> Tensor:
        """Where power iteration goes on: the last step's right factor of this weight, or a random one at first.

        Orthonormal, which changes no product of exact numbers, but keeps all r directions alive: a gradient of lower
        rank would leave columns of zeros behind, and they could never grow again.
        """
        right_mr = self._rights.get(id(weight))
        if right_mr is None:
            rows, columns = weight.shape
            rank = usable_rank(rows, columns, self._rank)
            right_mr = torch.randn(columns, rank, generator=self._random).to(weight.device)
        return _orthonormal(right_mr)

    def _means(self, tensors: list[Tensor]) -> list[Tensor]:
        """Each tensor's mean over the group, by one all_reduce of them all; none where there is no tensor."""
        if not tensors:
            return []
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        flat /= self._group.size()
        dist.all_reduce(flat, group=self._group)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)]


def _orthonormal(tall: Tensor) -> Tensor:
    """Orthonormal columns that span at least what these span, also where these depend on each other.

    By Householder's reflections; the paper's Gram-Schmidt would divide by zero there.
    """
    orthonormal: Tensor = torch.linalg.qr(tall).Q
    return orthonormal
