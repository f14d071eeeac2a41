"""The bytes that a spec declares are those that its ranks hold: training state, and what is there while it is made."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.building_peak import LiveBytes, building_peak
from tests.workloads.training.setups import SMALL, SmallSetup, ranks_of, small_setup
from tests.workloads.training.training_runs import make_ready
from tests.workloads.training.watched_steps import held_states
from workloads.core import weights
from workloads.cost_models.terms import States, block_weights, elements, full_model_bytes, outer_weights
from workloads.deepspeed.strategy import settings, sharded_model, start
from workloads.registry import SPECS, spec_of
from workloads.spec import OptionValue, StrategySpec

DEEP = replace(SMALL, layers=16, vocabulary=128)
UNIT_BYTES = 4 * max(elements(block_weights(DEEP)), elements(outer_weights(DEEP)))
"""The largest unit of sharding: a block, or what lies outside of the blocks."""
CHUNK = 1024
BESIDE_BYTES = 24 * CHUNK + 31_000
"""A chunk of elements that are being made, rotary tables, and buffers that torch makes beside the weights."""


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fsdp", {}),
        ("fsdp", {"offload": True}),
        ("zero2", {}),
        ("hsdp", {"wrap": "layer"}),
        ("tensor_parallel", {}),
        ("one_f_one_b", {}),
        ("one_f_one_b", {"balance": "measured"}),
        ("zero_bubble", {}),
        ("three_d", {}),
        ("three_d", {"data_axis": "fsdp", "tensor_ranks": 1}),
    ],
    ids=str,
)
def test_a_rank_never_holds_more_than_its_share_and_one_unit_while_it_is_built(
    strategy: str, options: dict[str, OptionValue], on_ranks: OnRanks
) -> None:
    spec = spec_of(strategy)
    setup = small_setup(strategy, ranks=ranks_of(spec), shape=DEEP, options=options)
    peaks = on_ranks(setup.ranks, building_peak, setup, CHUNK)
    whole_bytes, shares = (
        full_model_bytes(DEEP),
        [spec.states(setup, rank).parameters_bytes for rank in range(setup.ranks)],
    )
    for share_bytes, peak_bytes in zip(shares, peaks, strict=True):
        assert share_bytes < 0.8 * whole_bytes
        assert share_bytes <= peak_bytes <= share_bytes + UNIT_BYTES + BESIDE_BYTES


def deepspeed_peak(setup: SmallSetup) -> int:
    """The most that a rank holds while stage 3 makes the model; later it makes the optimizer's states."""
    deepspeed = start(setup.device, setup.backend)
    with patch.object(weights, "CHUNK_ELEMENTS", CHUNK), LiveBytes() as live:
        sharded_model(deepspeed, setup, settings(setup))
    peak_bytes: int = live.peak_bytes
    return peak_bytes


@pytest.mark.slow
def test_stage_3_of_deepspeed_is_never_whole_on_a_rank(on_fresh_ranks: OnRanks) -> None:
    setup = small_setup("deepspeed", ranks=2, shape=DEEP, options={"stage": 3, "param_persistence_threshold": 0})
    for rank, peak_bytes in enumerate(on_fresh_ranks(2, deepspeed_peak, setup)):
        share_bytes = spec_of("deepspeed").states(setup, rank).parameters_bytes
        assert share_bytes <= peak_bytes <= share_bytes + UNIT_BYTES + BESIDE_BYTES
