"""What one forward leaves behind for its backward on a rank that has a part of each matrix product, tensor by tensor.

As `workloads.laws.activations` has it for a whole model; for the ranks of `workloads.laws.tensor_parallel`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workloads.laws.activations import FULL_BYTES, HALF_BYTES, Microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedMicrobatch(Microbatch):
    """The tensors of one microbatch on one rank, in bytes.

    shape: of the model, but with the rank's part of vocabulary and mlp_width; `divided` makes it so.
    What products read is whole on each rank, also where the stream is divided: torch keeps what it has gathered.
    """

    ranks: int
    is_stream_divided: bool
    is_loss_divided: bool

    @property
    def stream_bytes(self) -> int:
        """See `Microbatch`."""
        return FULL_BYTES * self._own_positions * self.shape.width

    @property
    def logits_bytes(self) -> int:
        """See `Microbatch`."""
        return self._product_bytes(self._own_vocabulary)

    @property
    def probabilities_bytes(self) -> int:
        """See `Microbatch`."""
        return FULL_BYTES * self._positions * self._own_vocabulary

    @property
    def block_casts_bytes(self) -> int:
        """See `Microbatch`."""
        if not self.is_autocast:
            return 0
        mlp = 3 * self.shape.width * self.shape.mlp_width
        return HALF_BYTES * ((self.shape.block_parameters() - mlp) // self.ranks + mlp)

    @property
    def block_bytes(self) -> int:
        """See `Microbatch`."""
        own_width_bytes = self.width_bytes // self.ranks
        copy_bytes = own_width_bytes if min(self.shape.heads // self.ranks, self.shape.sequence) > 1 else 0
        attention = own_width_bytes + self._own_heads_bytes + copy_bytes
        norms = self.norm_bytes(readers=3) + self.norm_bytes(readers=2)
        return 2 * self.stream_bytes + norms + attention + 4 * self.inner_bytes + self.block_casts_bytes

    @property
    def stored_block_bytes(self) -> int:
        """See `Microbatch`; of products by rows what each rank adds is stored."""
        if self.checkpoint == "none":
            return self.block_bytes
        if self.checkpoint == "full":
            return self.stream_bytes
        products = self.width_bytes // self.ranks + 2 * self.width_bytes + 2 * self.inner_bytes
        return self.stream_bytes + products + self._own_heads_bytes

    def norm_bytes(self, readers: int) -> int:
        """See `Microbatch`; all readers share one copy, which is made whole for them."""
        is_same = not self.is_autocast and not self.is_stream_divided
        read = self.stream_bytes if is_same else min(readers, 1) * self.width_bytes
        return FULL_BYTES * self._own_positions + self.stream_bytes + read

    @property
    def _own_positions(self) -> int:
        return self._positions // (self.ranks if self.is_stream_divided else 1)

    @property
    def _own_vocabulary(self) -> int:
        return self.shape.vocabulary * (1 if self.is_loss_divided else self.ranks)

    @property
    def _own_heads_bytes(self) -> int:
        """Keys, values, attention's output and log-sum-exp of the rank's heads."""
        return (2 * self._kv_bytes + self._attended_bytes) // self.ranks


def divided(microbatch: Microbatch, *, ranks: int, is_stream_divided: bool, is_loss_divided: bool) -> DividedMicrobatch:
    """One rank's part of a microbatch."""
    shape = microbatch.shape
    return DividedMicrobatch(
        shape=replace(shape, vocabulary=shape.vocabulary // ranks, mlp_width=shape.mlp_width // ranks),
        sequences=microbatch.sequences,
        precision=microbatch.precision,
        checkpoint=microbatch.checkpoint,
        ranks=ranks,
        is_stream_divided=is_stream_divided,
        is_loss_divided=is_loss_divided,
    )
