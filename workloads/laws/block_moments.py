"""What the work itself holds at moments of a block that can be the peak only where weights come and go.

Beside those of `workloads.laws.live_tensors`: of its last forward, and of its backward, product by product.
"""

from __future__ import annotations

from dataclasses import dataclass

from workloads.laws.activations import FULL_BYTES, HALF_BYTES, Microbatch
from workloads.laws.live_tensors import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoments:
    """The moments of one block of a microbatch.

    held_bytes: what the step holds through forward and backward but the logits.
    """

    microbatch: Microbatch
    held_bytes: int

    def last_block_begins(self) -> Moment:
        """Forward has come to the last block; its input is there."""
        return Moment(activations_bytes=self._before_last_bytes + self.microbatch.stream_bytes)

    def last_mlp_begins(self) -> Moment:
        """Forward has come to the last MLP, and its norm is through."""
        size = self.microbatch
        half_bytes = {
            "none": self._attention_bytes,
            "full": 3 * size.stream_bytes,
            "selective": size.stored_block_bytes - 2 * size.inner_bytes - size.width_bytes + 2 * size.stream_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + half_bytes + self._attention_casts_bytes)

    def last_mlp_ends(self) -> Moment:
        """The last product of the last block, in forward."""
        size = self.microbatch
        block_bytes = {
            "none": size.block_bytes + size.width_bytes,
            "full": 3 * size.stream_bytes + size.inner_bytes + size.width_bytes + size.block_casts_bytes,
            "selective": size.stored_block_bytes + 2 * size.stream_bytes + size.inner_bytes + size.block_casts_bytes,
        }[size.checkpoint]
        return Moment(activations_bytes=self._before_last_bytes + block_bytes)

    def head_ends(self) -> Moment:
        """The head's product, in forward; the loss has not begun."""
        size = self.microbatch
        norm_bytes = size.stream_bytes + size.norm_bytes(readers=1) + size.head_cast_bytes
        if size.is_autocast:
            norm_bytes += size.stream_bytes  # The head was handed what the norm gave, and has made a copy.
        blocks_bytes = size.shape.layers * (size.stored_block_bytes + self._casts_bytes)
        return Moment(activations_bytes=self.held_bytes + size.logits_bytes + blocks_bytes + norm_bytes)

    def backward_begins(self, below: int) -> Moment:
        """Backward has come to the block. below: blocks beneath it."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + size.stored_block_bytes
        return Moment(activations_bytes=kept_bytes, temporary_bytes=size.stream_bytes)

    def up(self, below: int) -> Moment:
        """Under autocast: the gradient of a weight of the MLP, the second that is ready, is copied to fp32."""
        size, after = self.microbatch, self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes + size.inner_bytes + size.width_bytes + size.down_cast_bytes,
            temporary_bytes=after.temporary_bytes + size.inner_bytes + self._mlp_copy_bytes,
        )

    def gate(self, below: int) -> Moment:
        """Under autocast: the gradient of the MLP's last weight is copied to fp32."""
        after = self.mlp_ends(below)
        return Moment(
            activations_bytes=after.activations_bytes,
            temporary_bytes=after.temporary_bytes + self._mlp_copy_bytes,
        )

    def mlp_ends(self, below: int) -> Moment:
        """Backward is through with the MLP, and not yet with its norm."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + self._attention_bytes + self._attention_casts_bytes
        made_bytes = 2 * size.stream_bytes
        if size.checkpoint != "none":  # The stream between attention and MLP is made anew, by backward.
            kept_bytes -= size.stream_bytes
            made_bytes += size.stream_bytes
        if size.checkpoint == "selective":
            kept_bytes += size.width_bytes  # What the last product gave is stored, and never asked for.
        return Moment(activations_bytes=kept_bytes, temporary_bytes=made_bytes)

    def query(self, below: int) -> Moment:
        """The last of the block's products gets its gradients, those of its weight and input."""
        size = self.microbatch
        kept_bytes = self._below_bytes(below) + size.stream_bytes
        weights = size.shape.width**2
        made_bytes = 2 * size.stream_bytes + FULL_BYTES * weights
        if size.is_autocast:  # What it read is gone, and the gradient of its weight is copied to fp32.
            return Moment(
                activations_bytes=kept_bytes + size.norm_bytes(readers=0),
                temporary_bytes=made_bytes + HALF_BYTES * weights,
            )
        return Moment(
            activations_bytes=kept_bytes + size.norm_bytes(readers=1),
            temporary_bytes=made_bytes + 2 * size.stream_bytes,
        )

    def backward_ends(self, below: int) -> Moment:
        """The gradient of the block's input is all that it leaves."""
        return Moment(activations_bytes=self._below_bytes(below), temporary_bytes=self.microbatch.stream_bytes)

    def _below_bytes(self, below: int) -> int:
        return self.held_bytes + self.microbatch.logits_bytes + below * self.microbatch.stored_block_bytes

    @property
    def _before_last_bytes(self) -> int:
        size = self.microbatch
        return self.held_bytes + (size.shape.layers - 1) * (size.stored_block_bytes + self._casts_bytes)

    @property
    def _casts_bytes(self) -> int:
        """A block's copies of weights, where forward stores none of them: they live until its end."""
        return self.microbatch.block_casts_bytes if self.microbatch.checkpoint != "none" else 0

    @property
    def _attention_casts_bytes(self) -> int:
        return self.microbatch.block_casts_bytes - 3 * self.microbatch.down_cast_bytes

    @property
    def _attention_bytes(self) -> int:
        """Of what backward reads of a block, all but the MLP, what its products read, and copies of weights."""
        size = self.microbatch
        read_bytes = (2 if size.is_autocast else 1) * size.width_bytes
        return size.block_bytes - size.block_casts_bytes - 4 * size.inner_bytes - read_bytes

    @property
    def _mlp_copy_bytes(self) -> int:
        """A gradient of one of the MLP's weights, in both precisions."""
        return (FULL_BYTES + HALF_BYTES) * self.microbatch.shape.width * self.microbatch.shape.mlp_width
