"""The strategy `ring_attention`: each rank holds some positions, and keys and values visit all ranks on a ring."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from workloads.cards.card import Setup
from workloads.cards.ring_attention import chunks
from workloads.laws.ring_attention import Layout
from workloads.parts.attention_choice import ring_kernel
from workloads.parts.attention_pairs import PairCount
from workloads.parts.ring import Ring
from workloads.parts.ring_attention import RingAttention
from workloads.parts.sequence import SequenceTrainer
from workloads.workload import Phase, Workload


def build(setup: Setup, mesh: DeviceMesh, phase: Phase) -> Workload:
    """The model on the positions that the layout gives to this rank."""
    return RingTrainer(setup, mesh, phase)


class RingTrainer(SequenceTrainer):
    """Trains on its own positions, and counts what it sends on the ring and how much it attends."""

    def __init__(self, setup: Setup, mesh: DeviceMesh, phase: Phase) -> None:
        layout: Layout = setup.options["layout"]  # type: ignore[assignment]  # The card allows no other word.
        self._ring = Ring(mesh.get_group("sequence"), is_overlapped=bool(setup.options["overlap"]))
        self._pairs = PairCount()
        self._before_bytes = self._before_pairs = 0
        positions = setup.shape.sequence // self._ring.ranks
        chosen = ring_kernel(setup, positions=positions, chunk=setup.shape.sequence // chunks(setup))
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
        """See `Workload.step`."""
        self._before_bytes, self._before_pairs = self._ring.sent_bytes, self._pairs.pairs
        return super().step(tokens_bs)

    def payload_bytes(self) -> dict[str, int]:
        """What was sent on the ring in the last step."""
        return {"send": self._ring.sent_bytes - self._before_bytes}

    def attention_pairs(self) -> int:
        """See `CountsPairs`."""
        return self._pairs.pairs - self._before_pairs
