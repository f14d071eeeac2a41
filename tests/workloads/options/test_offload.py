"""Figures of offloading on a CPU are marked, whatever the strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.workloads.training.setups import ranks_of, small_setup
from workloads.registry import SPECS
from workloads.spec import StrategySpec

OFFLOADING = [spec for spec in SPECS if "offload" in {option.name for option in spec.options}]
EACH_SPEC = pytest.mark.parametrize("spec", OFFLOADING, ids=lambda spec: spec.name)


def test_strategies_that_divide_states_can_offload_them() -> None:
    assert {"zero2", "fsdp", "hsdp", "deepspeed"} <= {spec.name for spec in OFFLOADING}


@EACH_SPEC
def test_offloading_on_a_cpu_says_that_nothing_moves(spec: StrategySpec) -> None:
    setup = small_setup(spec.name, ranks=ranks_of(spec), options={"offload": True})
    (note,) = spec.notes(setup)
    assert note.startswith("offload on a CPU is control flow only")


@EACH_SPEC
def test_there_is_nothing_to_say_of_a_gpu_or_of_states_that_stay(spec: StrategySpec) -> None:
    offloaded = small_setup(spec.name, ranks=ranks_of(spec), options={"offload": True})
    assert spec.notes(replace(offloaded, device="cuda", backend="nccl")) == []
    assert spec.notes(small_setup(spec.name, ranks=ranks_of(spec))) == []
