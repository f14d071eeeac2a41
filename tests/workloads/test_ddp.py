"""How often `ddp` calls all_reduce: by bucket, once after backward, or once for all accumulated parts."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from torch._C import _distributed_c10d

from tests.ranks import OnRanks
from tests.workloads.setups import SmallSetup, small_setup
from tests.workloads.training_runs import make_ready
from workloads.cards.card import OptionValue

WHOLE_MODEL_MB = 25.0


def all_reduces() -> int:
    """How many all_reduces this rank has entered, by torch's Flight Recorder."""
    record = _distributed_c10d._dump_fr_trace_json(includeCollectives=True, onlyActive=False)  # type: ignore[attr-defined]
    return sum("all_reduce" in entry["profiling_name"] for entry in json.loads(record)["entries"])


def all_reduces_in_a_step(setup: SmallSetup) -> int:
    ready = make_ready(setup)
    for _ in range(2):  # DistributedDataParallel lays its buckets anew after the first.
        ready.step()
    before = all_reduces()
    ready.step()
    return all_reduces() - before


def count(on_ranks: OnRanks, options: Mapping[str, OptionValue]) -> int:
    first, second = on_ranks(2, all_reduces_in_a_step, small_setup("ddp", ranks=2, options=options))
    assert first == second
    return first


@pytest.mark.parametrize("accumulate", [1, 2])
def test_without_overlap_there_is_one_all_reduce(accumulate: int, on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"overlap": False, "accumulate": accumulate}) == 1


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_bucket_that_holds_the_model_makes_one_all_reduce(accumulate: int, on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"bucket_mb": WHOLE_MODEL_MB, "accumulate": accumulate}) == 1


def test_small_buckets_make_several_all_reduces(on_ranks: OnRanks) -> None:
    assert count(on_ranks, {"bucket_mb": 0.1}) >= 4
