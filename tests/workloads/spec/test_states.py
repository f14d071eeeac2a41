"""The bytes that a spec declares are those that its ranks hold: training state, and what is there while it is made."""

from __future__ import annotations

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.building_peak import building_peak
from tests.workloads.training.setups import SmallSetup, ranks_of, small_setup
from tests.workloads.training.training_runs import make_ready
from tests.workloads.training.watched_steps import held_states
from workloads.cost_models.terms import States
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue, StrategySpec

BESIDE_RATIO = 0.02
"""What tables, stage inputs and a product that is being divided may add to the weights, as a share of the model."""


def states_after_two_steps(setup: SmallSetup) -> States:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    return held_states(ready.workload)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.kind == "training"], ids=lambda spec: spec.name)
def test_ranks_hold_the_bytes_that_the_spec_declares(spec: StrategySpec, on_ranks: OnRanks) -> None:
    setup = small_setup(spec.name, ranks=ranks_of(spec))
    for rank, states in enumerate(on_ranks(setup.ranks, states_after_two_steps, setup)):
        assert states == spec.states(setup, rank)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("zero1", {}),
        ("fsdp", {}),
        ("hsdp", {"wrap": "layer"}),
        ("tensor_parallel", {}),
        ("one_f_one_b", {}),
        ("three_d", {}),
        ("ring_attention", {}),
    ],
)
def test_a_rank_holds_what_the_spec_declares_while_it_is_built(
    strategy: str, options: dict[str, OptionValue], on_ranks: OnRanks
) -> None:
    spec = spec_of(strategy)
    setup = small_setup(strategy, ranks=ranks_of(spec), options=options)
    beside_bytes = BESIDE_RATIO * 4 * setup.shape.parameters()
    for rank, peak_bytes in enumerate(on_ranks(setup.ranks, building_peak, setup)):
        states, building_bytes = spec.states(setup, rank), spec.building_bytes(setup, rank)
        states_bytes = states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes
        assert building_bytes <= peak_bytes <= max(building_bytes, states_bytes) + beside_bytes


def test_a_model_is_whole_on_each_rank_before_it_is_divided() -> None:
    for spec in SPECS:
        if spec.kind == "training":
            setup = small_setup(spec.name, ranks=ranks_of(spec))
            assert spec.building_bytes(setup, 0) >= 4 * setup.shape.parameters()
