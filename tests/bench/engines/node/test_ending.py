"""Ranks are ended together, each as long as it takes, and nothing waits for ever."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from bench.engines.node.shutdown import ON_CPU, ON_CUDA, Patience, collect_stacks, end, wait_until_freed


class FakeClock:
    """Time that passes only when somebody waits, and a little at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.05
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class FakeRank:
    """A rank that is gone so long after it was told to be. aborted_s, terminated_s, killed_s: None: never."""

    def __init__(
        self,
        rank: int,
        clock: FakeClock,
        *,
        aborted_s: float | None = None,
        terminated_s: float | None = None,
        killed_s: float | None = None,
    ) -> None:
        self.rank, self.pid = rank, 1000 + rank
        self.asked: list[str] = []
        self._clock, self._aborted_s = clock, aborted_s
        self._terminated_s, self._killed_s = terminated_s, killed_s
        self._gone_at_s: float | None = None
        self._reads, self._writes = os.pipe()
        os.write(self._writes, b"!")  # Always readable, so that no real time passes.

    @property
    def sentinel(self) -> int:
        return self._reads

    def look(self) -> bool:
        return self._gone_at_s is None or self._clock.now_s < self._gone_at_s

    def ask_for_stacks(self) -> None:
        self.asked.append("stacks")

    def abort(self) -> None:
        self._end("abort", self._aborted_s)

    def terminate(self) -> None:
        self._end("terminate", self._terminated_s)

    def kill(self) -> None:
        self._end("kill", self._killed_s)

    def _end(self, how: str, after_s: float | None) -> None:
        self.asked.append(how)
        if after_s is not None:
            self._gone_at_s = self._clock.now_s + after_s

    def close(self) -> None:
        os.close(self._reads)
        os.close(self._writes)


class FakeGpus:
    """A driver that lists processes until a time."""

    def __init__(self, clock: FakeClock, pids: Sequence[int], *, until_s: float) -> None:
        self._clock, self._pids, self._until_s = clock, pids, until_s

    def processes(self) -> dict[int, object]:
        return dict.fromkeys(self._pids) if self._clock.now_s < self._until_s else {}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def ranks(clock: FakeClock) -> Iterator[list[FakeRank]]:
    """Two that need 12 s to be taken down once they are killed, as with a full GPU."""
    made = [FakeRank(rank, clock, killed_s=12.0) for rank in range(2)]
    yield made
    for rank in made:
        rank.close()


def test_ranks_are_asked_before_they_are_killed(ranks: list[FakeRank], clock: FakeClock) -> None:
    collect_stacks(ranks, ON_CUDA, clock=clock)
    end(ranks, ON_CUDA, clock=clock)
    assert [rank.asked for rank in ranks] == [["stacks", "abort", "terminate", "kill"]] * 2


def test_a_rank_on_a_gpu_takes_its_communicators_down_before_it_is_killed(clock: FakeClock) -> None:
    rank = FakeRank(0, clock, aborted_s=2.0)
    assert end([rank], ON_CUDA, clock=clock) == ()
    assert rank.asked == ["abort"]
    rank.close()


def test_a_rank_that_ends_when_asked_is_not_killed(clock: FakeClock) -> None:
    rank = FakeRank(0, clock, terminated_s=0.2)
    assert end([rank], ON_CPU, clock=clock) == ()
    assert rank.asked == ["terminate"]
    rank.close()


def test_a_full_gpu_is_waited_for_and_all_ranks_at_once(ranks: list[FakeRank], clock: FakeClock) -> None:
    assert end(ranks, ON_CUDA, clock=clock) == ()
    assert not any(rank.look() for rank in ranks)
    assert 12 < clock.now_s < 2 * 12


def test_on_a_cpu_nobody_waits_so_long_and_who_is_left_is_named(ranks: list[FakeRank], clock: FakeClock) -> None:
    notes = end(ranks, ON_CPU, clock=clock)
    assert clock.now_s < 7
    assert notes == tuple(
        f"rank {rank} still existed 5 s after it was killed; the next trial cannot use what it holds"
        for rank in range(2)
    )


def test_a_rank_that_never_goes_hangs_nothing(clock: FakeClock) -> None:
    rank = FakeRank(3, clock)
    (note,) = end([rank], ON_CUDA, clock=clock)
    assert note.startswith("rank 3 still existed 30 s after it was killed")
    assert clock.now_s < 40
    rank.close()


def test_the_next_trial_waits_until_the_driver_has_let_go(ranks: list[FakeRank], clock: FakeClock) -> None:
    gpus = FakeGpus(clock, [1001, 4711], until_s=4.0)
    assert wait_until_freed(ranks, gpus, ON_CUDA, is_named=True, clock=clock, sleep=clock.sleep) == ()
    assert 4 <= clock.now_s < 5


def test_a_driver_that_never_lets_go_is_named_and_waited_for_no_longer(ranks: list[FakeRank], clock: FakeClock) -> None:
    gpus = FakeGpus(clock, [1001, 4711], until_s=1e9)
    assert wait_until_freed(ranks, gpus, ON_CUDA, is_named=True, clock=clock, sleep=clock.sleep) == (
        "the driver still listed rank 1 as computing 10 s after its end; the next trial may find less memory",
    )
    assert clock.now_s < 12


def test_processes_of_others_are_not_waited_for(ranks: list[FakeRank], clock: FakeClock) -> None:
    before_s = clock.now_s
    wait_until_freed(
        ranks, FakeGpus(clock, [4711], until_s=1e9), ON_CUDA, is_named=True, clock=clock, sleep=clock.sleep
    )
    assert clock.now_s - before_s < 1


def test_where_the_driver_does_not_name_our_processes_that_is_told(ranks: list[FakeRank], clock: FakeClock) -> None:
    gpus = FakeGpus(clock, [1001], until_s=1e9)
    before_s = clock.now_s
    (note,) = wait_until_freed(ranks, gpus, ON_CUDA, is_named=False, clock=clock, sleep=clock.sleep)
    assert note.startswith("whether the GPUs' memory is free again is unknown: the driver does not name this")
    assert wait_until_freed(ranks, gpus, ON_CPU, is_named=False, clock=clock, sleep=clock.sleep) == ()
    assert clock.now_s == before_s


def test_a_cpu_is_given_no_more_time_than_before() -> None:
    assert Patience(stacks_s=0.5, aborted_s=0.0, terminated_s=0.5, killed_s=5.0, freed_s=0.0) == ON_CPU
