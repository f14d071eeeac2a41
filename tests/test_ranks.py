"""The helper that starts ranks for tests."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import OnRanks, RankFailed, run_on_ranks


def sum_of_ranks() -> tuple[int, Tensor]:
    total = torch.tensor([dist.get_rank()])
    dist.all_reduce(total)
    return dist.get_rank(), total


def fail_on_rank(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ZeroDivisionError("of this rank")
    dist.barrier()


def leave_on_rank(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    time.sleep(60)


def sleep_forever() -> None:
    time.sleep(3600)


def test_results_come_home_by_rank(on_ranks: OnRanks) -> None:
    assert on_ranks(3, sum_of_ranks) == [(rank, torch.tensor([3])) for rank in range(3)]


def test_an_exception_of_a_rank_is_raised_with_its_traceback(on_ranks: OnRanks) -> None:
    with pytest.raises(ZeroDivisionError, match="of this rank") as caught:
        on_ranks(2, fail_on_rank, 1)
    assert "rank 1" in str(caught.value.__cause__)
    assert "fail_on_rank" in str(caught.value.__cause__)


def test_a_rank_that_leaves_is_named(on_ranks: OnRanks) -> None:
    with pytest.raises(RankFailed, match="rank 1 ended without a result"):
        on_ranks(2, leave_on_rank, 1)
    assert not multiprocessing.active_children()


def test_a_hang_ends_at_the_limit_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\]"):
        run_on_ranks(2, sleep_forever, store=tmp_path / "store", limit_s=2.0)
    assert not multiprocessing.active_children()
