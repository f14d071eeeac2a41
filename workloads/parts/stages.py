"""The model cut into pipeline stages: which blocks each has, and the part of the model that computes them.

The first stage also has the embedding, the last the norm, the head and the loss. Weights keep the names that they have
in the whole model.
Not covered: a model that no device can hold whole; it is made whole on each, and then cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from workloads.parts.transformer import Transformer, next_token_loss


class StageModel(nn.Module):
    """One stage's part of a model. It takes tokens (the first) or the residual stream, and gives the stream or a loss.

    Dimensions: b sequences of a microbatch, s positions, d width.
    """

    cos_sr: Tensor
    sin_sr: Tensor

    def __init__(self, model: Transformer, blocks: range) -> None:
        """Take over the weights of these blocks; whoever lets go of the model lets go of the others."""
        super().__init__()
        is_first, is_last = blocks.start == 0, blocks.stop == len(model.blocks)
        self.embedding = model.embedding if is_first else None
        self.blocks = nn.ModuleDict({str(index): model.blocks[index] for index in blocks})
        self.norm = model.norm if is_last else None
        self.head = model.head if is_last else None
        self.register_buffer("cos_sr", model.cos_sr, persistent=False)
        self.register_buffer("sin_sr", model.sin_sr, persistent=False)
        self.targets_bs: Tensor | None = None
        """What the last stage's next forward compares with."""

    def forward(self, x: Tensor) -> Tensor:
        """The residual stream behind this stage's blocks, (b, s, d); of the last stage the mean loss, a scalar.

        x: tokens (b, s) for the first stage, the stream of the stage before for the others.
        """
        x_bsd = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            # Of all positions: where the stream is divided by them, attention brings them together.
            x_bsd = block(x_bsd, self.cos_sr, self.sin_sr)
        if self.norm is None or self.head is None:
            return x_bsd
        assert self.targets_bs is not None, "the last stage is told its targets first"
        return next_token_loss(self.head(self.norm(x_bsd)), self.targets_bs)


def cut(layers: int, counts: Sequence[int]) -> list[range]:
    """The blocks of each stage, given how many each has.

    Raises:
        ValueError: they are not as many as there are.
    """
    if sum(counts) != layers:
        raise ValueError(f"stages have {sum(counts)} blocks together; the model has {layers}")
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
