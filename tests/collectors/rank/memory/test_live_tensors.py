"""The live tensors of one step, against hand-made counts and against what strategies must hold."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from collectors.metrics.metric import Sample
from collectors.metrics.rank import LIVE_TENSOR_BYTES
from collectors.rank.memory import CannotTrack, live_tensor_bytes, living_tensors
from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.cost_models.peak_memory import Prediction
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision


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
    before = list(living_tensors())  # Of other tests.
    model = Scratching(100, 50, bias=False)
    optimizer = AdamW(model.parameters(), fused=True)
    x_bd = torch.randn(30, 100)

    def step() -> None:
        optimizer.zero_grad()
        model(x_bd).sum().backward()
        optimizer.step()

    step()
    weight_bytes, out_bytes, in_bytes = 4 * 100 * 50, 4 * 30 * 50, 4 * 30 * 100
    assert by_category(live_tensor_bytes(step, model, optimizer, buffers=before)) == {
        "parameters": weight_bytes,
        "buffers": 0,
        "gradients": 0,
        "activations": 1_000_000 + 2 * out_bytes,
        "temporary": 0,
        "optimizer": 2 * weight_bytes + 4,
        "other": in_bytes,
        "total": 3 * weight_bytes + 4 + 1_000_000 + 2 * out_bytes + in_bytes,
    }


def test_what_outlives_steps_counts_for_as_long_as_it_lives_and_message_buffers_from_their_first_use_on() -> None:
    before = list(living_tensors())  # Of other tests.
    model = nn.Linear(100, 50, bias=False)
    optimizer = AdamW(model.parameters(), fused=True)
    buffer = torch.zeros(10, 100)
    kept = {"leak": torch.zeros(1000), "last": torch.zeros(2000)}

    def step() -> None:
        kept.pop("last")
        optimizer.zero_grad()
        model(buffer).sum().backward()
        optimizer.step()

    live = by_category(live_tensor_bytes(step, model, optimizer, buffers=[*before, buffer]))
    assert live["other"] == 4 * 1000


def test_states_that_model_and_optimizer_do_not_lead_to_count_as_what_they_are() -> None:
    before = list(living_tensors())  # Of other tests.
    model = nn.Linear(100, 50, bias=False)
    optimizer = AdamW(model.parameters(), fused=True)
    copy = torch.zeros(50, 100)

    def step() -> None:
        copy.add_(model.weight.detach())

    live = by_category(live_tensor_bytes(step, model, optimizer, tensors_of={"optimizer": [copy]}, buffers=before))
    assert (live["parameters"], live["optimizer"], live["other"]) == (4 * 100 * 50, 4 * 100 * 50, 0)


@pytest.fixture(scope="module")
def on_ranks(on_fresh_ranks: OnRanks) -> OnRanks:
    """What an earlier call left behind would be a leak here."""
    return on_fresh_ranks


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


@pytest.mark.slow
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
        assert live["other"] == 0
        assert live["total"] == sum(value for category, value in live.items() if category != "total")


def track_leaking(setup: SmallSetup) -> tuple[dict[str, int], int]:
    """The live bytes of a tracked step of a rank that has kept a copy of all gradients, and the copy's."""
    ready = make_ready(setup)
    ready.step()
    leaked = [gradient.clone() for gradient in ready.workload.full_gradients().values()]
    live = by_category(live_tensor_bytes(ready.step, ready.workload.model, ready.workload.optimizer))
    return live, sum(gradient.nbytes for gradient in leaked)


def test_a_leaked_copy_of_all_gradients_is_told_with_its_bytes(on_ranks: OnRanks) -> None:
    setup = small_setup("ddp", ranks=2)
    for live, leaked_bytes in on_ranks(2, track_leaking, setup):
        assert live["other"] == leaked_bytes == 4 * setup.shape.parameters()


COMPRESSED: tuple[dict[str, OptionValue], ...] = (
    {"compress": "topk", "density": 0.1, "bucket_mb": 0.1},
    {"compress": "powersgd", "compress_rank": 3, "bucket_mb": 0.1},
    {"compress": "bf16"},
)


def track_each(setups: list[SmallSetup]) -> list[dict[str, int]]:
    return [peak_by_category(setup) for setup in setups]


@pytest.mark.slow
def test_what_compression_remembers_is_its_law_to_the_byte(on_ranks: OnRanks) -> None:
    precisions: tuple[Precision, ...] = ("fp32", "bf16")
    setups = [
        small_setup("ddp", ranks=2, precision=precision, options=options)
        for options, precision in product(COMPRESSED, precisions)
    ]
    for of_rank in on_ranks(2, track_each, setups):
        for setup, live in zip(setups, of_rank, strict=True):
            law = spec_of("ddp").peak(setup)
            assert isinstance(law, Prediction)
            assert live["other"] == law.other_bytes, setup
            assert live["total"] == pytest.approx(law.total_bytes, rel=0.01), setup


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
