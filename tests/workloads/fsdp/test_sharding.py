"""Divided strategies send and hold, to the byte, what their laws say, also where nothing divides evenly."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import StepRecord, make_ready, train
from tests.workloads.training.watched_steps import WatchedStep, held_states, watch_step
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.terms import States
from workloads.fsdp.strategy import prefetch
from workloads.registry import spec_of
from workloads.spec import LIMITS, OptionValue, Precision

UNEVEN = Shape(layers=2, width=18, heads=3, kv_heads=1, mlp_width=26, vocabulary=29, sequence=8, batch=8)
"""No dimension is divisible by 4; of the keys' 6 rows the last of 4 ranks gets none."""

CASES: list[tuple[str, int, Shape, Mapping[str, OptionValue]]] = [
    ("zero1", 2, SMALL, {"accumulate": 2}),
    ("zero1", 4, UNEVEN, {}),
    ("zero2", 2, SMALL, {"accumulate": 2}),
    ("zero2", 4, UNEVEN, {"wrap": "layer"}),
    ("fsdp", 2, SMALL, {"accumulate": 2, "clip": 0.0}),
    ("fsdp", 2, SMALL, {"accumulate": 2, "reduce": "last"}),
    ("fsdp", 2, SMALL, {"wrap": "layer", "checkpoint": "full"}),
    ("fsdp", 4, UNEVEN, {"grad_dtype": "bf16"}),
    ("fsdp", 4, UNEVEN, {"reshard": 2}),
    ("fsdp", 4, UNEVEN, {"offload": True, "wrap": "layer"}),
    ("hsdp", 4, UNEVEN, {}),
    ("hsdp", 4, SMALL, {"accumulate": 2, "wrap": "layer", "grad_dtype": "bf16"}),
    ("hsdp", 8, UNEVEN, {"shard_ranks": 4, "reshard": 2}),
]
HALF_CASES: list[tuple[str, int, Shape, Mapping[str, OptionValue]]] = [
    ("zero1", 2, SMALL, {"weights": "bf16", "accumulate": 2}),
    ("zero1", 4, UNEVEN, {"weights": "bf16", "grad_dtype": "bf16"}),
    ("ddp", 2, SMALL, {"weights": "bf16", "clip": 0.0}),
    ("zero2", 2, SMALL, {"accumulate": 2}),
    ("fsdp", 4, UNEVEN, {"wrap": "layer", "reshard": 2}),
    ("hsdp", 4, UNEVEN, {"grad_dtype": "bf16"}),
    ("fsdp", 2, SMALL, {"weights": "autocast"}),
]
"""In bf16, where FSDP2 gathers in half as many bytes unless `weights` says otherwise."""
PRECISE_CASES: list[tuple[Precision, str, int, Shape, Mapping[str, OptionValue]]] = [
    *(("fp32", *case) for case in CASES),
    *(("bf16", *case) for case in HALF_CASES),
]
EACH_CASE = pytest.mark.parametrize(
    "setup",
    [
        small_setup(name, ranks=ranks, shape=shape, precision=precision, options=options)
        for precision, name, ranks, shape, options in PRECISE_CASES
    ],
    ids=[f"{name} on {ranks} in {precision} {dict(options)}" for precision, name, ranks, _, options in PRECISE_CASES],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one rank did in its third step, and held after it."""

    step: WatchedStep
    states: States


Watch = Callable[[SmallSetup], list[Seen]]


def watch_third_step(setup: SmallSetup) -> Seen:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    return Seen(step=watch_step(ready), states=held_states(ready.workload))


@pytest.fixture(scope="module")
def watch(on_ranks: OnRanks) -> Watch:
    known: dict[str, list[Seen]] = {}

    def run(setup: SmallSetup) -> list[Seen]:
        key = repr(setup)
        if key not in known:
            known[key] = on_ranks(setup.ranks, watch_third_step, setup)
        return known[key]

    return run


@EACH_CASE
def test_ranks_send_the_bytes_that_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    expected = recorded_bytes(spec_of(setup.strategy).transfers(setup), "gloo")
    for seen in watch(setup):
        assert seen.step.payload_bytes == expected


@EACH_CASE
def test_ranks_enter_as_many_collectives_as_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    expected = sum(transfer.calls for transfer in spec_of(setup.strategy).transfers(setup))
    assert [seen.step.calls for seen in watch(setup)] == [expected] * setup.ranks


@EACH_CASE
def test_ranks_hold_the_bytes_that_the_law_expects(setup: SmallSetup, watch: Watch) -> None:
    spec = spec_of(setup.strategy)
    assert [seen.states for seen in watch(setup)] == [spec.states(setup, rank) for rank in range(setup.ranks)]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_rank_of_zero1_that_updates_most_has_the_peak_that_the_law_expects(
    accumulate: int, on_ranks: OnRanks
) -> None:
    setup = small_setup("zero1", ranks=2, shape=PRESETS["tiny"], options={"accumulate": accumulate})
    predicted = spec_of("zero1").peak(setup)
    assert isinstance(predicted, Prediction)
    scalars_bytes = 4 * accumulate  # The law leaves them out; these are the losses.
    assert max(live["total"] for live in on_ranks(2, peak_by_category, setup)) == predicted.total_bytes + scalars_bytes


def check_against_single(setup: SmallSetup, records: list[list[StepRecord]], on_ranks: OnRanks, limit: float) -> None:
    ((truth,),) = on_ranks(1, train, small_setup(shape=setup.shape, options={"clip": setup.options["clip"]}), 1)
    losses = [record.loss for (record,) in records if record.loss is not None]
    assert sum(losses) / setup.ranks == pytest.approx(truth.loss, rel=limit)
    for (record,) in records:
        assert record.gradients.keys() == truth.gradients.keys()
        for name, gradient in record.gradients.items():
            assert (gradient - truth.gradients[name]).norm() <= limit * truth.gradients[name].norm(), name


@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp", "hsdp"])
def test_what_divides_unevenly_computes_what_single_does(name: str, on_ranks: OnRanks) -> None:
    setup = small_setup(name, ranks=4, shape=UNEVEN, options={"clip": 0.01})
    check_against_single(setup, on_ranks(4, train, setup, 1), on_ranks, LIMITS["fp32"])


class RecordedUnit(FSDPModule):
    """A unit that notes what it was told to gather ahead of itself."""

    def __init__(self) -> None:
        self.forward_units: list[FSDPModule] = []
        self.backward_units: list[FSDPModule] = []

    def __new__(cls) -> Self:
        return object.__new__(cls)

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        self.forward_units = modules

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        self.backward_units = modules


def test_units_are_prefetched_in_the_order_in_which_they_compute() -> None:
    first, second, third, fourth = units = [RecordedUnit() for _ in range(4)]
    prefetch(units, 2)
    assert [unit.forward_units for unit in units] == [[second, third], [third, fourth], [fourth], []]
    assert [unit.backward_units for unit in units] == [[], [first], [second, first], [third, second]]


def test_prefetching_changes_no_result(on_ranks: OnRanks) -> None:
    # Refused on gloo because it is of no use there, and not because it would be wrong.
    setup = small_setup("fsdp", ranks=2, options={"prefetch": 2, "wrap": "layer"})
    check_against_single(setup, on_ranks(2, train, setup, 1), on_ranks, LIMITS["fp32"])


def test_gradients_reduced_in_bf16_are_nearly_those_of_single(on_ranks: OnRanks) -> None:
    setup = small_setup("fsdp", ranks=2, options={"grad_dtype": "bf16"})
    records = on_ranks(2, train, setup, 1)
    check_against_single(setup, records, on_ranks, LIMITS["bf16"])
    with pytest.raises(AssertionError):
        check_against_single(setup, records, on_ranks, LIMITS["fp32"])


@pytest.mark.parametrize(
    ("name", "ranks", "options"), [("fsdp", 4, {"reshard": 2}), ("hsdp", 8, {"shard_ranks": 4, "reshard": 2})]
)
def test_resharding_to_some_ranks_changes_no_result(
    name: str, ranks: int, options: Mapping[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = small_setup(name, ranks=ranks, shape=UNEVEN, options=options)
    check_against_single(setup, on_ranks(ranks, train, setup, 1), on_ranks, LIMITS["fp32"])


def overflow_in_one_row(model: nn.Module) -> None:
    """Make the embedding's gradient infinite in the row of one token, which one rank of those that share it holds."""

    def poison(gradient_bsd: Tensor) -> Tensor:
        poisoned_bsd = gradient_bsd.clone()
        poisoned_bsd[0, 0, 0] = torch.inf
        return poisoned_bsd

    def after_embedding(module: nn.Module, tokens: object, x_bsd: Tensor) -> None:
        x_bsd.register_hook(poison)  # type: ignore[no-untyped-call]

    model.get_submodule("embedding").register_forward_hook(after_embedding)


def own_part(tensor: Tensor | None) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor.to_local().detach()


def overflow_and_move(setup: SmallSetup) -> tuple[bool, bool]:
    """Whether this rank's part of the gradient overflowed, and whether its part of the weights moved."""
    ready = make_ready(setup)
    model = ready.workload.model
    if dist.get_rank() == 0:
        overflow_in_one_row(model)
    before = [own_part(weight).clone() for weight in model.parameters()]
    ready.step()
    overflowed = not all(bool(own_part(weight.grad).isfinite().all()) for weight in model.parameters())
    moved = not all(torch.equal(own_part(weight), old) for weight, old in zip(model.parameters(), before, strict=True))
    return overflowed, moved


@pytest.mark.parametrize(("name", "ranks"), [("fsdp", 2), ("hsdp", 4)])
def test_all_ranks_skip_a_step_in_which_one_rank_overflows(name: str, ranks: int, on_ranks: OnRanks) -> None:
    setup = replace(small_setup(name, ranks=ranks, options={"clip": 0.0}), precision="fp16")
    overflowed, moved = zip(*on_ranks(ranks, overflow_and_move, setup), strict=True)
    assert sorted(set(overflowed)) == [False, True]
    assert not any(moved)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero1", "zero2", "fsdp"])
def test_compiled_blocks_are_divided_too(name: str, on_ranks: OnRanks) -> None:
    setup = small_setup(name, ranks=2, options={"compile": "default", "checkpoint": "full"})
    check_against_single(setup, on_ranks(2, train_compiled, setup), on_ranks, LIMITS["fp32"])


def train_compiled(setup: SmallSetup) -> list[StepRecord]:
    """Compilation warns of torch's own code."""
    warnings.filterwarnings("ignore", message=".*torch.jit.script_method.* is deprecated")
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is")
    return train(setup, 1)
