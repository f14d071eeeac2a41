"""What each part of the model takes forward and backward on this machine, so that stages can be cut by it.

The one clock of a workload: it divides work by what it reads, and measures nothing for people.
Dimensions: b sequences of a microbatch, s positions, d width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from workloads.cards.card import Setup
from workloads.parts.training import AUTOCAST_TYPES
from workloads.parts.transformer import Transformer, next_token_loss

WARM_UP_PASSES = 2
TIMED_PASSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """Seconds of forward and backward for one microbatch. head_s: of the last norm and the loss too."""

    embedding_s: float
    blocks_s: tuple[float, ...]
    head_s: float


def measure_parts(setup: Setup, model: Transformer, sequences: int) -> PartTimes:
    """The median of each part over some passes of so many sequences, and the mean of that over all ranks.

    The model lies whole on each rank, and is left without gradients.
    """
    shape, device = setup.shape, model.cos_sr.device
    tokens_bs = torch.arange(sequences * shape.sequence, device=device).reshape(sequences, -1) % shape.vocabulary
    stream_bsd = torch.ones((sequences, shape.sequence, shape.width), device=device, requires_grad=True)

    def of_embedding() -> Tensor:
        out_bsd: Tensor = model.embedding(tokens_bs)
        return out_bsd

    def of_head() -> Tensor:
        return next_token_loss(model.head(model.norm(stream_bsd)), tokens_bs)

    passes = [
        of_embedding,
        *(lambda each=block: each(stream_bsd, model.cos_sr, model.sin_sr) for block in model.blocks),
    ]
    own_s = [_median_s(setup, passing) for passing in (*passes, of_head)]
    model.zero_grad()
    all_s = torch.tensor(own_s, device=device, dtype=torch.float64)
    dist.all_reduce(all_s)
    embedding_s, *blocks_s, head_s = (all_s / dist.get_world_size()).tolist()
    return PartTimes(embedding_s=embedding_s, blocks_s=tuple(blocks_s), head_s=head_s)


def _median_s(setup: Setup, passing: Callable[[], Tensor]) -> float:
    return median(list(_passes_s(setup, passing))[WARM_UP_PASSES:])


def _passes_s(setup: Setup, passing: Callable[[], Tensor]) -> Iterator[float]:
    autocast_type = AUTOCAST_TYPES.get(setup.precision)
    for _ in range(WARM_UP_PASSES + TIMED_PASSES):
        _settle(setup)
        begun_s = time.perf_counter()
        with torch.autocast(setup.device, dtype=autocast_type, enabled=autocast_type is not None):
            out = passing()
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        _settle(setup)
        yield time.perf_counter() - begun_s


def _settle(setup: Setup) -> None:
    if setup.device == "cuda":
        torch.cuda.synchronize()
