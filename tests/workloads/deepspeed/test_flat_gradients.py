"""Flat parts of gradients, made by hand, become whole again."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import OnRanks
from workloads.deepspeed.strategy import GradientLayout, unflatten

SHAPES = {"matrix": torch.Size((2, 3)), "vector": torch.Size((3,))}
WHOLE = {"matrix": torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]), "vector": torch.tensor([6.0, 7.0, 8.0])}
PADDING = -1.0
PARTS: dict[GradientLayout, list[list[list[float]]]] = {
    "end_to_end": [[[0, 1, 2, 3, 4]], [[5, 6, 7, 8, PADDING]]],
    "each": [[[0, 1, 2], [6, 7]], [[3, 4, 5], [8, PADDING]]],
}
"""By the rank, what it hands in: one tensor after another."""


def whole_on(layout: GradientLayout) -> dict[str, Tensor]:
    group = dist.group.WORLD
    assert group is not None
    tensors = [torch.tensor(part, dtype=torch.float32) for part in PARTS[layout][dist.get_rank()]]
    return unflatten(tensors, SHAPES, layout, group, torch.device("cpu"))


@pytest.mark.parametrize("layout", ["end_to_end", "each"])
def test_each_rank_gets_every_gradient_without_padding(layout: GradientLayout, on_ranks: OnRanks) -> None:
    for gradients in on_ranks(2, whole_on, layout):
        torch.testing.assert_close(gradients, WHOLE)
