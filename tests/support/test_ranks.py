"""The ranks that tests run functions on."""

from __future__ import annotations

import multiprocessing
import os
import time
import warnings
from contextlib import closing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.ranks import KeptRanks, OnRanks, RankFailed, leaving, run_on_ranks


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
        os.write(2, b"my last words")
        os._exit(3)
    time.sleep(60)


def crash_on_rank(rank: int) -> None:
    if dist.get_rank() == rank:
        os.abort()
    time.sleep(60)


def sleep_forever() -> None:
    time.sleep(3600)


def test_results_come_home_by_rank(on_fresh_ranks: OnRanks) -> None:
    assert on_fresh_ranks(3, sum_of_ranks) == [(rank, torch.tensor([3])) for rank in range(3)]


def test_an_exception_of_a_rank_is_raised_with_its_traceback(on_fresh_ranks: OnRanks) -> None:
    with pytest.raises(ZeroDivisionError, match="of this rank") as caught:
        on_fresh_ranks(2, fail_on_rank, 1)
    assert "rank 1" in str(caught.value.__cause__)
    assert "fail_on_rank" in str(caught.value.__cause__)


def test_a_rank_that_leaves_is_named(on_fresh_ranks: OnRanks) -> None:
    with pytest.raises(RankFailed, match="rank 1 ended without a result: exit code 3\nmy last words"):
        on_fresh_ranks(2, leave_on_rank, 1)
    assert not multiprocessing.active_children()


def test_a_rank_that_crashes_shows_its_stack(on_fresh_ranks: OnRanks) -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 0 ended without a result: SIGABRT\n.*crash_on_rank"):
        on_fresh_ranks(2, crash_on_rank, 0)
    assert not multiprocessing.active_children()


def test_a_hang_ends_at_the_limit_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\]"):
        run_on_ranks(2, sleep_forever, store=tmp_path / "store", limit_s=2.0)
    assert not multiprocessing.active_children()


def own_process() -> int:
    return os.getpid()


def leave_traces() -> None:
    os.environ["LEFT_BY_A_TEST"] = "1"
    warnings.simplefilter("ignore")
    torch.set_num_threads(2)
    dist.new_group([0, 1])


def traces() -> tuple[str | None, int, int]:
    with pytest.raises(UserWarning, match="an error again"):
        warnings.warn("an error again", stacklevel=1)
    return os.environ.get("LEFT_BY_A_TEST"), torch.get_num_threads(), len(dist.distributed_c10d._world.pg_map)


def test_kept_ranks_are_the_same_processes_and_know_nothing_of_the_call_before(tmp_path: Path) -> None:
    with closing(KeptRanks(tmp_path)) as ranks:
        before = ranks.run(2, own_process)
        ranks.run(2, leave_traces)
        assert ranks.run(2, traces) == [(None, 1, 1)] * 2
        assert ranks.run(2, own_process) == before
    assert not multiprocessing.active_children()


def test_ranks_of_a_call_that_failed_are_not_kept(tmp_path: Path) -> None:
    with closing(KeptRanks(tmp_path)) as ranks:
        before = ranks.run(2, own_process)
        with pytest.raises(ZeroDivisionError):
            ranks.run(2, fail_on_rank, 1)
        assert not multiprocessing.active_children()
        assert not {*before} & {*ranks.run(2, own_process)}


def test_ranks_that_one_has_left_are_not_kept(tmp_path: Path) -> None:
    with closing(KeptRanks(tmp_path)) as ranks:
        assert ranks.run(2, leave_from, 1) == [0, 1]
        assert not multiprocessing.active_children()
        assert ranks.run(2, leave_from, 0) == [0, 1]


def leave_from(rank: int) -> int:
    own = dist.get_rank()
    return leaving(own) if own == rank else own
