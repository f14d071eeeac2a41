"""The live tensors of one step, against hand-made counts and against what strategies must hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from collectors.catalogue.memory import LIVE_TENSOR_BYTES
from collectors.live_tensors import CannotTrack, live_tensor_bytes
from collectors.metric import Sample
from tests.ranks import OnRanks
from tests.workloads.setups import SmallSetup, small_setup
from tests.workloads.training_runs import make_ready
from workloads.cards.card import OptionValue


def by_category(samples: list[Sample]) -> dict[str, int]:
    assert {sample.metric for sample in samples} == {LIVE_TENSOR_BYTES.name}
    return {sample.labels["category"]: int(sample.value) for sample in samples}


class Scratching(nn.Linear):
    """Holds a megabyte of its own while it runs, so that the peak is in forward."""

    def forward(self, x_bd: Tensor) -> Tensor:
        scratch = torch.zeros(1_000_000, dtype=torch.uint8)
        out_bd = super().forward(x_bd)
        return out_bd + scratch[0]


def test_live_tensors_of_a_hand_counted_step() -> None:
    model = Scratching(100, 50, bias=False)
    optimizer = AdamW(model.parameters(), fused=True)
    x_bd = torch.randn(30, 100)

    def step() -> None:
        optimizer.zero_grad()
        model(x_bd).sum().backward()
        optimizer.step()

    step()
    weight_bytes, out_bytes = 4 * 100 * 50, 4 * 30 * 50
    assert by_category(live_tensor_bytes(step, model, optimizer)) == {
        "parameters": weight_bytes,
        "buffers": 0,
        "gradients": 0,
        "activations": 1_000_000 + 2 * out_bytes,
        "temporary": 0,
        "optimizer": 2 * weight_bytes + 4,
        "other": 0,
        "total": 3 * weight_bytes + 4 + 1_000_000 + 2 * out_bytes,
    }


def track(setup: SmallSetup) -> dict[str, int]:
    """The live bytes of a tracked step; the steps around it must not notice."""
    ready = make_ready(setup)
    hooks = [*nn.modules.module._global_forward_pre_hooks, *nn.modules.module._global_forward_hooks]
    for _ in range(2):
        ready.step()
    live = by_category(live_tensor_bytes(ready.step, ready.workload.model, ready.workload.optimizer))
    assert [*nn.modules.module._global_forward_pre_hooks, *nn.modules.module._global_forward_hooks] == hooks
    assert not any(weight._backward_hooks for weight in ready.workload.model.parameters())
    ready.step()
    return live


@pytest.mark.parametrize(
    ("strategy", "ranks", "options"),
    [
        ("single", 1, {}),
        ("single", 1, {"accumulate": 2}),
        ("ddp", 2, {}),
        ("ddp", 2, {"accumulate": 2}),
        ("ddp", 2, {"accumulate": 2, "overlap": False}),
        ("ddp", 2, {"accumulate": 2, "checkpoint": "full"}),
        ("ddp", 2, {"checkpoint": "selective"}),
    ],
)
def test_live_tensors_of_real_strategies(
    strategy: str, ranks: int, options: dict[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = small_setup(strategy, ranks=ranks, options=options)
    weights_bytes = 4 * setup.shape.parameters()
    for live in on_ranks(ranks, track, setup):
        assert live["parameters"] == weights_bytes
        assert live["optimizer"] == 2 * weights_bytes + 4 * setup.shape.parameter_tensors()
        assert live["activations"] > 0
        assert live["total"] == sum(value for category, value in live.items() if category != "total")


def test_checkpointing_lowers_the_live_peak(on_ranks: OnRanks) -> None:
    totals = {}
    for choice in ("none", "selective", "full"):
        (live,) = on_ranks(1, track, small_setup(options={"checkpoint": choice}))
        totals[choice] = live["total"]
    assert totals["full"] < totals["selective"] < totals["none"]


def test_a_compiled_model_is_refused_with_the_reason() -> None:
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    model.compile(backend="eager")
    with pytest.raises(CannotTrack, match="compile=none"):
        live_tensor_bytes(lambda: None, model, optimizer)


def test_a_step_that_the_tracker_does_not_know_is_refused_and_leaves_no_hook() -> None:
    model = nn.Linear(2, 2)
    optimizer = AdamW(model.parameters())
    inner = nn.Linear(2, 2)

    def twice() -> None:
        for _ in range(2):
            inner(torch.ones(2))

    with pytest.raises(CannotTrack, match="multiple iterative calls"):
        live_tensor_bytes(twice, model, optimizer)
    assert not nn.modules.module._global_forward_pre_hooks
