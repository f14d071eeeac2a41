"""A kernel that counts what it is asked to compute."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from workloads.core.attention import CpuFlash


@dataclass
class RecordedKernel:
    """The CPU's kernel, with the pairs of query and key that it computed, by call."""

    forward_pairs: list[int] = field(default_factory=list)
    backward_pairs: list[int] = field(default_factory=list)
    kernel: CpuFlash = field(default_factory=CpuFlash)

    def forward(self, q_bhqe: Tensor, k_bkte: Tensor, v_bkte: Tensor, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        """See `Kernel.forward`."""
        self.forward_pairs.append(pairs_of(q_bhqe, k_bkte, is_causal=is_causal))
        return self.kernel.forward(q_bhqe, k_bkte, v_bkte, is_causal=is_causal)

    def backward(
        self,
        out_gradient_bhqe: Tensor,
        q_bhqe: Tensor,
        k_bkte: Tensor,
        v_bkte: Tensor,
        out_bhqe: Tensor,
        lse_bhq: Tensor,
        *,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Kernel.backward`."""
        self.backward_pairs.append(pairs_of(q_bhqe, k_bkte, is_causal=is_causal))
        return self.kernel.backward(out_gradient_bhqe, q_bhqe, k_bkte, v_bkte, out_bhqe, lse_bhq, is_causal=is_causal)


def pairs_of(q_bhqe: Tensor, k_bkte: Tensor, *, is_causal: bool) -> int:
    """Pairs of query and key of one head that the mask leaves."""
    queries, keys = q_bhqe.shape[2], k_bkte.shape[2]
    return sum(query + 1 for query in range(queries)) if is_causal else queries * keys
