"""Ring attention: positions are divided among ranks, keys and values travel a ring, queries stay.

Dimensions: b batch, h query heads, k key and value heads, s positions of this rank, q and t the queries and keys of a
block, e elements of a head, p the pair of keys and values, which travel together.
Source: Liu et al. 2023, Ring Attention with Blockwise Transformers, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from workloads.context_parallel.cost_model import PositionLayout
from workloads.context_parallel.spec import RingAttentionSpec
from workloads.context_parallel.strategy import SequenceTrainer
from workloads.core.attention import Kernel, ring_kernel
from workloads.protocols import Phase, Workload
from workloads.spec import Setup

# Attention work of a rank: pairs of query and key in forward.


class PairCount:
    """Pairs over all heads, sequences and layers, in forward only: recomputation under checkpointing does not count."""

    def __init__(self) -> None:
        self.pairs = 0
        """Pairs since construction."""
        self._is_forward = False

    def watch(self, phase: Phase) -> Phase:
        """Wrap the phase marks so that the count knows when forward runs."""

        @contextmanager
        def mark(name: str) -> Iterator[None]:
            with phase(name):
                self._is_forward = name == "forward"
                try:
                    yield
                finally:
                    self._is_forward = False

        return mark

    def add(self, q_bhqe: Tensor, k_bkte: Tensor, *, is_causal: bool) -> None:
        """Count the attention of these queries to these keys. is_causal: query i attends to keys 0 to i."""
        if self._is_forward:
            batch, heads, queries, _ = q_bhqe.shape
            pairs = queries * (queries + 1) // 2 if is_causal else queries * k_bkte.shape[2]
            self.pairs += batch * heads * pairs


# A ring of ranks: each sends to the next while it receives from the previous, and may compute meanwhile.


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A tensor in transfer to the next rank, and another in transfer to this rank.

    sent: kept alive until it is sent.
    """

    works: Sequence[dist.Work]
    sent: Tensor
    received: Tensor

    def wait(self) -> Tensor:
        """Return the previous rank's tensor when both transfers are complete; on a GPU the current stream waits.

        Call it only once: a second call would make gloo wait for another message.
        """
        for work in self.works:
            work.wait()
        return self.received


class Ring:
    """A rank's place in the ring of its group, and a count of the bytes that it has sent.

    All ranks pass on tensors of equal sizes in the same order. On NCCL a rank must have set its current device.
    """

    def __init__(self, group: dist.ProcessGroup, *, is_overlapped: bool) -> None:
        """is_overlapped: messages travel while the rank computes; otherwise it waits for each before it continues."""
        self.rank = group.rank()
        self.ranks = group.size()
        self.sent_bytes = 0
        self._group = group
        self._is_overlapped = is_overlapped

    def circulate(self, tensor: Tensor) -> Iterator[Tensor]:
        """Yield the tensor of each rank: this rank's first, then that of the previous rank, and so on.

        Each tensor is being sent while the caller works with it, and must not be changed.
        """
        for _ in range(self.ranks - 1):
            passing = self.pass_on(tensor)
            yield tensor
            tensor = passing.wait()
        yield tensor

    def pass_on(self, tensor: Tensor) -> Passing:
        """Start to send a contiguous tensor, and to receive one of the same shape. A lone rank receives its own."""
        if self.ranks == 1:
            return Passing(works=(), sent=tensor, received=tensor)
        received = torch.empty_like(tensor)
        # Post the receive first: otherwise gloo lets ranks that send to each other do so in turn, at as little as half
        # the speed.
        messages = [
            dist.P2POp(dist.irecv, received, group=self._group, group_peer=(self.rank - 1) % self.ranks),
            dist.P2POp(dist.isend, tensor, group=self._group, group_peer=(self.rank + 1) % self.ranks),
        ]
        self.sent_bytes += tensor.nbytes
        passing = Passing(works=dist.batch_isend_irecv(messages), sent=tensor, received=received)
        if self._is_overlapped:
            return passing
        return Passing(works=(), sent=tensor, received=passing.wait())


# Blocks of queries and keys, without the pairs that the causal mask removes entirely.

ALL = slice(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock:
    """Queries of this rank with keys of the source rank, both as indices into a rank's positions.

    is_causal: query i attends to keys 0 to i; otherwise each query attends to all keys.
    """

    queries: slice
    keys: slice
    is_causal: bool


def block_with(
    source: int, layout: PositionLayout, *, is_causal: bool, positions: int, rank: int
) -> AttentionBlock | None:
    """Return the rank's block with the source's keys; None if none of its queries may attend to them.

    positions: number of positions per rank, in rising order.
    """
    everything = AttentionBlock(queries=ALL, keys=ALL, is_causal=False)
    if not is_causal:
        return everything
    if source == rank:
        return AttentionBlock(queries=ALL, keys=ALL, is_causal=True)
    if layout == "plain":
        return everything if source < rank else None
    # Zigzag: a rank holds one chunk from the front and one from the end of the sequence. The chunks of an earlier rank
    # surround this rank's: all its queries see their first chunk and none sees the second. The chunks of a later rank
    # lie between this rank's: only its second chunk sees them, both whole. 2 ranks: rank 0 holds chunks 0 and 3, rank 1
    # holds 1 and 2.
    first, second = slice(0, positions // 2), slice(positions // 2, positions)
    if source < rank:
        return AttentionBlock(queries=ALL, keys=first, is_causal=False)
    return AttentionBlock(queries=second, keys=ALL, is_causal=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingAttention:
    """An `Attend` of a rank's queries to the keys of all ranks; all ranks call it together.

    Each rank passes in its own positions, in the order of the layout. Keys and values travel in their own precision;
    outputs are merged and gradients summed, also on their way, in float32 or better.
    """

    ring: Ring
    layout: PositionLayout
    is_causal: bool
    kernel: Kernel
    count: PairCount = field(default_factory=PairCount)

    def __call__(self, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor) -> Tensor:
        """Return the output of each query, (b, h, s, e)."""
        out_bhse: Tensor = _Attend.apply(q_bhse, k_bkse, v_bkse, self)  # type: ignore[no-untyped-call]
        return out_bhse

    def block(self, hop: int, positions: int) -> AttentionBlock | None:
        """Return this rank's block with keys that have travelled this many hops."""
        rank = self.ring.rank
        source = (rank - hop) % self.ring.ranks
        return block_with(source, self.layout, is_causal=self.is_causal, positions=positions, rank=rank)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_bhse: Tensor, k_bkse: Tensor, v_bkse: Tensor, attention: RingAttention) -> Tensor:
        own_pbkse = torch.stack((k_bkse, v_bkse))
        merged = None
        for hop, (k_held_bkse, v_held_bkse) in enumerate(attention.ring.circulate(own_pbkse)):
            block = attention.block(hop, q_bhse.shape[2])
            if block is None:
                continue
            q_bhqe, k_bkte = q_bhse[:, :, block.queries], k_held_bkse[:, :, block.keys]
            attention.count.add(q_bhqe, k_bkte, is_causal=block.is_causal)
            out_bhqe, lse_bhq = attention.kernel.forward(
                q_bhqe, k_bkte, v_held_bkse[:, :, block.keys], is_causal=block.is_causal
            )
            if merged is None:  # The rank's own keys come first, and every query sees one of them.
                merged = _Merged(out_bhqe, lse_bhq)
            else:
                merged.add(block.queries, out_bhqe, lse_bhq)
        assert merged is not None
        out_bhse = merged.out_bhse.to(q_bhse.dtype)
        ctx.attention = attention
        ctx.save_for_backward(q_bhse, own_pbkse, out_bhse, merged.lse_bhs)
        return out_bhse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, out_gradient_bhse: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        attention: RingAttention = ctx.attention
        q_bhse, own_pbkse, out_bhse, lse_bhs = ctx.saved_tensors
        q_gradient_bhse = torch.zeros_like(q_bhse, dtype=_sum_dtype(q_bhse))
        gradient_pbkse = torch.zeros_like(own_pbkse, dtype=_sum_dtype(own_pbkse))
        for hop, (k_held_bkse, v_held_bkse) in enumerate(attention.ring.circulate(own_pbkse)):
            # A block's gradients follow it one hop later: those that this rank now sends belong to the previous block.
            passing = attention.ring.pass_on(gradient_pbkse) if hop else None
            block = attention.block(hop, q_bhse.shape[2])
            parts = None
            if block is not None:
                parts = attention.kernel.backward(
                    out_gradient_bhse[:, :, block.queries],
                    q_bhse[:, :, block.queries],
                    k_held_bkse[:, :, block.keys],
                    v_held_bkse[:, :, block.keys],
                    out_bhse[:, :, block.queries],
                    lse_bhs[:, :, block.queries],
                    is_causal=block.is_causal,
                )
            if passing is not None:
                gradient_pbkse = passing.wait()
            if block is not None and parts is not None:
                q_part_bhqe, k_part_bkte, v_part_bkte = parts
                q_gradient_bhse[:, :, block.queries] += q_part_bhqe
                gradient_pbkse[0, :, :, block.keys] += k_part_bkte
                gradient_pbkse[1, :, :, block.keys] += v_part_bkte
        k_gradient_bkse, v_gradient_bkse = attention.ring.pass_on(gradient_pbkse).wait().to(own_pbkse.dtype)
        return q_gradient_bhse.to(q_bhse.dtype), k_gradient_bkse, v_gradient_bkse, None


class _Merged:
    """Output and log-sum-exp of all queries, over the keys that have arrived so far.

    Source: Dao 2023, FlashAttention-2, section 2.3 (the rescaled sum, here of whole blocks).
    """

    def __init__(self, out_bhse: Tensor, lse_bhs: Tensor) -> None:
        # Copies, because selective checkpointing keeps the kernel's outputs.
        self.out_bhse = out_bhse.to(_sum_dtype(out_bhse), copy=True)
        self.lse_bhs = lse_bhs.clone()

    def add(self, queries: slice, out_bhqe: Tensor, lse_bhq: Tensor) -> None:
        """Merge the output of these queries over more keys.

        With log-sum-exp a of the old and b of the new keys, the new share is e^b / (e^a + e^b) = sigmoid(b - a).
        """
        merged_bhqe, merged_bhq = self.out_bhse[:, :, queries], self.lse_bhs[:, :, queries]
        share_bhq = torch.sigmoid(lse_bhq - merged_bhq)
        merged_bhqe.lerp_(out_bhqe.to(merged_bhqe.dtype), share_bhq.unsqueeze(-1))
        merged_bhq.copy_(torch.logaddexp(merged_bhq, lse_bhq))


def _sum_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """Build the trainer of this rank, for the positions that the layout gives it."""
    return RingTrainer(setup, mesh, phase)


class RingTrainer(SequenceTrainer):
    """Trains on the rank's own positions, and counts its bytes sent on the ring and its attention pairs."""

    def __init__(self, setup: Setup, mesh: DeviceMesh, phase: Phase) -> None:
        layout: PositionLayout = setup.options["layout"]  # type: ignore[assignment]  # The spec allows no other value.
        self._ring = Ring(mesh.get_group("sequence"), is_overlapped=bool(setup.options["overlap"]))
        self._pairs = PairCount()
        self._before_bytes = self._before_pairs = 0
        positions = setup.shape.sequence // self._ring.ranks
        chosen = ring_kernel(
            setup, positions=positions, chunk=setup.shape.sequence // RingAttentionSpec().chunks(setup)
        )
        attention = RingAttention(
            ring=self._ring,
            layout=layout,
            is_causal=bool(setup.options["causal"]),
            kernel=chosen.kernel,
            count=self._pairs,
        )
        watched = self._pairs.watch(phase)
        super().__init__(setup, mesh, watched, attend=attention, layout=layout, notes=chosen.notes)

    def step(self, tokens_bs: Tensor) -> Tensor | None:
        self._before_bytes, self._before_pairs = self._ring.sent_bytes, self._pairs.pairs
        return super().step(tokens_bs)

    def payload_bytes(self) -> dict[str, int]:
        """Return the bytes sent on the ring in the last step."""
        return {"send": self._ring.sent_bytes - self._before_bytes}

    def attention_pairs(self) -> int:
        return self._pairs.pairs - self._before_pairs
