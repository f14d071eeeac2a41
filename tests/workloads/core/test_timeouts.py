"""No group waits longer than the world does, whoever made it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch.distributed.distributed_c10d import _world

from tests.support.ranks import LIMIT_S, OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.core.mesh import timeout_of


def timeouts_of_groups(setup: SmallSetup) -> list[timedelta]:
    make_ready(setup)
    return [timeout_of(group, torch.device("cpu")) for group in _world.pg_map]


@pytest.mark.parametrize(
    "setup",
    [
        small_setup("hsdp", ranks=4),
        small_setup("fsdp", ranks=4, options={"reshard": 2}),
        small_setup("hsdp", ranks=8, options={"shard_ranks": 4, "reshard": 2}),
        small_setup("deepspeed", ranks=2),
    ],
    ids=lambda setup: f"{setup.strategy} on {setup.ranks}",
)
def test_all_groups_of_a_rank_have_the_timeout_of_the_world(setup: SmallSetup, on_ranks: OnRanks) -> None:
    for timeouts in on_ranks(setup.ranks, timeouts_of_groups, setup):
        assert len(timeouts) > 1
        assert set(timeouts) == {timedelta(seconds=LIMIT_S)}
