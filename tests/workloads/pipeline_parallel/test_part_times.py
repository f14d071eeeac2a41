"""The times that a model is cut by: of all its parts, and the same on all ranks."""

from __future__ import annotations

import time

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.core.trainer import make_model
from workloads.pipeline_parallel.strategy import PartTimes, measure_parts
from workloads.spec import Precision


def measured(setup: SmallSetup, slow_block: int) -> tuple[PartTimes, int]:
    """The times, and how many weights were left with a gradient."""
    model = make_model(setup)
    model.blocks[slow_block].register_forward_pre_hook(lambda *_: time.sleep(0.2))
    times = measure_parts(setup, model, sequences=2)
    return times, sum(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_agree_on_the_times_of_all_parts(precision: Precision, on_ranks: OnRanks) -> None:
    setup = small_setup("gpipe", ranks=2, precision=precision, options={"balance": "measured"})
    (first, left), (second, _) = on_ranks(2, measured, setup, 2)
    assert first == second
    assert len(first.blocks_s) == SMALL.layers
    assert min(first.embedding_s, *first.blocks_s, first.head_s) > 0
    assert left == 0


def test_a_block_that_takes_longer_is_found(on_ranks: OnRanks) -> None:
    ((times, _),) = on_ranks(1, measured, small_setup("gpipe"), 2)
    assert times.blocks_s.index(max(times.blocks_s)) == 2
