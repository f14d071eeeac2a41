"""The times that a model is cut by: of all its parts, and the same on all ranks."""

from __future__ import annotations

import time

import pytest

from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from workloads.core.trainer import make_model
from workloads.pipeline_parallel.strategy import PartTimes, measure_parts
from workloads.spec import Precision


def measured(setup: SmallSetup, slow: str) -> PartTimes:
    model = make_model(setup)
    if slow:
        model.get_submodule(slow).register_forward_pre_hook(lambda *_: time.sleep(0.2))
    return measure_parts(setup, model, sequences=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_ranks_agree_on_the_times_of_all_parts(precision: Precision, on_ranks: OnRanks) -> None:
    setup = small_setup("gpipe", ranks=2, precision=precision, options={"balance": "measured"})
    first, second = on_ranks(2, measured, setup, "")
    assert first == second
    assert len(first.blocks_s) == SMALL.layers
    assert min(first.embedding_s, *first.blocks_s, first.head_s) > 0


@pytest.mark.parametrize("slow", ["embedding", "blocks.0", "head"])
def test_a_part_that_takes_longer_is_found(slow: str, on_ranks: OnRanks) -> None:
    (times,) = on_ranks(1, measured, small_setup("gpipe"), slow)
    parts = {"embedding": times.embedding_s, "blocks.0": times.blocks_s[0], "head": times.head_s}
    assert max(parts, key=parts.__getitem__) == slow
