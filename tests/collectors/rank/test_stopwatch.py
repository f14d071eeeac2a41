"""A stopwatch gives the time of measured calls, and of nothing that comes before them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from collectors.rank.stopwatch import ATTEMPTS, CallTime, CudaStopwatch, HostStopwatch

PAUSE_S = 0.02


class FakeWork:
    """Writes down what happens; each call takes at least its share of the pauses, beginning anew after the last."""

    def __init__(self, *pauses_s: float) -> None:
        self.happened: list[str] = []
        self._pauses_s = pauses_s

    def call(self) -> None:
        time.sleep(self._pauses_s[self.happened.count("call") % len(self._pauses_s)])
        self.happened.append("call")

    def meet(self) -> None:
        time.sleep(PAUSE_S)
        self.happened.append("meet")


def elapsed_s(run: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    run()
    return time.perf_counter() - begun_s


def test_ranks_meet_between_warm_up_and_the_measured_calls() -> None:
    work = FakeWork(0.0)
    stopwatch = HostStopwatch(ready=work.meet)
    stopwatch.back_to_back(work.call, warm_up=2, calls=3)
    stopwatch.each(work.call, warm_up=0, calls=1)
    assert work.happened == ["call"] * 2 + ["meet"] + ["call"] * 3 + ["meet"] + ["call"]


def test_each_gives_the_median_of_all_calls_and_on_a_cpu_nothing_else() -> None:
    work = FakeWork(PAUSE_S, 2 * PAUSE_S, 3 * PAUSE_S)
    elapsed = HostStopwatch(ready=work.meet).each(work.call, warm_up=0, calls=3)
    assert elapsed.elapsed_s >= 2 * PAUSE_S
    assert (elapsed.with_host_s, elapsed.why_with_host) == (None, None)


def test_back_to_back_gives_the_mean_of_all_calls() -> None:
    work = FakeWork(PAUSE_S, 3 * PAUSE_S)
    assert HostStopwatch(ready=work.meet).back_to_back(work.call, warm_up=0, calls=2).elapsed_s >= 2 * PAUSE_S


def test_neither_warm_up_nor_meeting_is_measured() -> None:
    """Of all the time, they had at least their pauses, and the calls at most the rest."""
    work = FakeWork(PAUSE_S, PAUSE_S, 0.0)
    stopwatch, found = HostStopwatch(ready=work.meet), list[CallTime]()
    all_s = elapsed_s(lambda: found.append(stopwatch.back_to_back(work.call, warm_up=2, calls=1)))
    assert found[0].elapsed_s <= all_s - 3 * PAUSE_S
    all_s = elapsed_s(lambda: found.append(stopwatch.each(work.call, warm_up=2, calls=1)))
    assert found[1].elapsed_s <= all_s - 3 * PAUSE_S


CYCLES_PER_S = 1.5e9
US = 1_000
"""Nanoseconds."""


class FakeGpu:
    """A device that works on its queue while the host goes on; it is a `Queue`, and both have one time.

    launch_ns: what the host takes to put a call there. slow_ns: what it takes for one of them more, by its number.
    """

    def __init__(self, *, work_ns: int, launch_ns: int, slow_ns: dict[int, int] | None = None) -> None:
        self.now_ns = 0
        self.calls = 0
        self.spins = 0
        self._work_ns = work_ns
        self._launch_ns = launch_ns
        self._slow_ns = slow_ns or {}
        self._free_ns = 0

    def call(self) -> None:
        """What is measured."""
        self._launch(self._launch_ns + self._slow_ns.get(self.calls, 0), self._work_ns)
        self.calls += 1

    def waiting_call(self) -> None:
        """The same, which returns when the device has done it, as a copy from pageable memory does."""
        self.call()
        self.synchronize()

    def reached_ns(self) -> int:
        """When what is queued by now is done."""
        return max(self._free_ns, self.now_ns)

    def new_event(self) -> FakeEvent:
        return FakeEvent(self)

    def spin(self, cycles: int) -> None:
        self.spins += 1
        self._launch(5 * US, round(cycles / CYCLES_PER_S * 1e9))

    def synchronize(self) -> None:
        self.now_ns = self.reached_ns()

    def _launch(self, host_ns: int, work_ns: int) -> None:
        self.now_ns += host_ns
        self._free_ns = self.reached_ns() + work_ns


class FakeEvent:
    """A mark in the queue of a `FakeGpu`, as `torch.cuda.Event` is one in a stream's."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._at_ns: int | None = None

    def record(self) -> None:
        self._gpu.now_ns += US
        self._at_ns = self._gpu.reached_ns()

    def query(self) -> bool:
        assert self._at_ns is not None
        return self._gpu.now_ns >= self._at_ns

    def synchronize(self) -> None:
        self._gpu.synchronize()

    def elapsed_time(self, end_event: FakeEvent) -> float:
        assert self.query()
        assert end_event.query()
        assert self._at_ns is not None
        assert end_event._at_ns is not None
        return (end_event._at_ns - self._at_ns) / 1e6


def cuda_stopwatch(gpu: FakeGpu, agree: Callable[[bool], bool] = bool) -> CudaStopwatch:
    return CudaStopwatch(lambda: None, torch.device("cuda"), agree=agree, queue=gpu, now_ns=lambda: gpu.now_ns)


@pytest.mark.parametrize("calls", [1, 25])
def test_short_calls_back_to_back_take_the_devices_time_and_with_the_host_that_of_launching(calls: int) -> None:
    gpu = FakeGpu(work_ns=4 * US, launch_ns=30 * US)
    elapsed = cuda_stopwatch(gpu).back_to_back(gpu.call, warm_up=3, calls=calls)
    assert elapsed.elapsed_s == pytest.approx(4e-6, rel=1e-6)
    assert elapsed.with_host_s == pytest.approx(30e-6, rel=0.2)
    assert elapsed.why_with_host is None


def test_each_short_call_takes_the_devices_time_and_with_the_host_that_of_launching() -> None:
    gpu = FakeGpu(work_ns=4 * US, launch_ns=12 * US)
    elapsed = cuda_stopwatch(gpu).each(gpu.call, warm_up=3, calls=5)
    assert elapsed.elapsed_s == pytest.approx(4e-6, rel=1e-6)
    assert elapsed.with_host_s == pytest.approx(16e-6)
    assert elapsed.why_with_host is None


def test_long_calls_take_as_long_with_the_host_as_without() -> None:
    gpu = FakeGpu(work_ns=10_000 * US, launch_ns=12 * US)
    for elapsed in (
        cuda_stopwatch(gpu).each(gpu.call, warm_up=1, calls=3),
        cuda_stopwatch(gpu).back_to_back(gpu.call, warm_up=1, calls=3),
    ):
        assert elapsed.elapsed_s == pytest.approx(0.01)
        assert elapsed.with_host_s == pytest.approx(0.01, rel=0.01)


def test_a_warm_up_by_time_keeps_the_device_busy_for_so_long_before_anything_is_measured() -> None:
    gpu = FakeGpu(work_ns=10_000 * US, launch_ns=10 * US)
    stopwatch = CudaStopwatch(
        lambda: None, torch.device("cuda"), queue=gpu, now_ns=lambda: gpu.now_ns, unix_ns=lambda: 7 + gpu.now_ns
    )
    elapsed = stopwatch.each(gpu.call, warm_up=1, calls=2, warm_up_s=2.0)
    assert elapsed.elapsed_s == pytest.approx(0.01)
    assert elapsed.begun_ns is not None
    measured_s = 2 * 2 * 0.01
    assert (7 + gpu.now_ns - elapsed.begun_ns) / 1e9 >= 2.0 + measured_s
    assert 200 <= gpu.calls - 1 - 2 * 2 <= 208


def test_a_warm_up_by_time_is_made_on_a_cpu_too_where_it_is_asked_for() -> None:
    work = FakeWork(PAUSE_S)
    HostStopwatch(ready=work.meet).each(work.call, warm_up=0, calls=1, warm_up_s=2 * PAUSE_S)
    assert work.happened.count("call") in (2, 3)


def test_a_call_that_waits_for_the_device_is_timed_with_the_host_and_says_so() -> None:
    gpu = FakeGpu(work_ns=50 * US, launch_ns=10 * US)
    for elapsed in (
        cuda_stopwatch(gpu).each(gpu.waiting_call, warm_up=1, calls=3),
        cuda_stopwatch(gpu).back_to_back(gpu.waiting_call, warm_up=1, calls=3),
    ):
        assert elapsed.elapsed_s == elapsed.with_host_s
        assert elapsed.with_host_s == pytest.approx(60e-6, rel=0.05)
        assert elapsed.why_with_host is not None
        assert "waits for the device" in elapsed.why_with_host
    assert gpu.spins == 2 * (1 + ATTEMPTS)  # One of each stopwatch is for the clock's rate.


def test_a_spin_that_ended_before_all_was_queued_is_made_longer() -> None:
    # The host is held up in the first call behind the first spin, which is the 5th of all.
    gpu = FakeGpu(work_ns=4 * US, launch_ns=10 * US, slow_ns={4: 300 * US})
    elapsed = cuda_stopwatch(gpu).back_to_back(gpu.call, warm_up=1, calls=3)
    assert elapsed.elapsed_s == pytest.approx(4e-6, rel=1e-6)
    assert elapsed.why_with_host is None
    assert gpu.spins == 1 + 2


def test_ranks_repeat_together_where_one_of_them_fell_behind() -> None:
    gpu, said = FakeGpu(work_ns=4 * US, launch_ns=10 * US), list[bool]()

    def agree(yes: bool) -> bool:
        said.append(yes)
        return len(said) == 2

    elapsed = cuda_stopwatch(gpu, agree).back_to_back(gpu.call, warm_up=1, calls=3)
    assert said == [True, True]
    assert elapsed.why_with_host is None
    assert gpu.calls == 1 + 3 + 2 * (1 + 3)


def test_ranks_of_which_one_always_falls_behind_are_all_timed_with_the_host() -> None:
    gpu = FakeGpu(work_ns=4 * US, launch_ns=10 * US)
    elapsed = cuda_stopwatch(gpu, lambda yes: False).back_to_back(gpu.call, warm_up=1, calls=3)
    assert elapsed.elapsed_s == elapsed.with_host_s
    assert elapsed.why_with_host is not None
    assert gpu.calls == 1 + 3 + ATTEMPTS * (1 + 3)


@pytest.mark.gpu
def test_cuda_events_measure_queued_work() -> None:
    work, weight = FakeWork(0.0), torch.randn(4096, 4096, device="cuda")
    stopwatch = CudaStopwatch(ready=work.meet, device=torch.device("cuda"))
    multiply = partial(torch.matmul, weight, weight)
    for elapsed in (
        stopwatch.back_to_back(multiply, warm_up=2, calls=5),
        stopwatch.each(multiply, warm_up=2, calls=5),
    ):
        assert elapsed.with_host_s is not None
        assert 0 < elapsed.elapsed_s <= 1.2 * elapsed.with_host_s
        assert elapsed.why_with_host is None
    assert len(work.happened) >= 3
