"""A stopwatch gives the time of measured calls, and of nothing that comes before them."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest
import torch

from collectors.stopwatch import CudaStopwatch, HostStopwatch

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


def test_each_call_has_a_time_of_its_own() -> None:
    work = FakeWork(PAUSE_S, 2 * PAUSE_S, 3 * PAUSE_S)
    times_s = HostStopwatch(ready=work.meet).each(work.call, warm_up=0, calls=3)
    assert len(times_s) == 3
    assert all(time_s >= number * PAUSE_S for number, time_s in enumerate(times_s, start=1))


def test_back_to_back_gives_the_mean_of_all_calls() -> None:
    work = FakeWork(PAUSE_S, 3 * PAUSE_S)
    assert HostStopwatch(ready=work.meet).back_to_back(work.call, warm_up=0, calls=2) >= 2 * PAUSE_S


def test_neither_warm_up_nor_meeting_is_measured() -> None:
    """Of all the time, they had at least their pauses, and the calls at most the rest."""
    work = FakeWork(PAUSE_S, PAUSE_S, 0.0)
    stopwatch, times_s = HostStopwatch(ready=work.meet), list[float]()
    all_s = elapsed_s(lambda: times_s.append(stopwatch.back_to_back(work.call, warm_up=2, calls=1)))
    assert times_s[0] <= all_s - 3 * PAUSE_S
    all_s = elapsed_s(lambda: times_s.extend(stopwatch.each(work.call, warm_up=2, calls=1)))
    assert times_s[1] <= all_s - 3 * PAUSE_S


@pytest.mark.gpu
def test_cuda_events_measure_queued_work() -> None:
    work, weight = FakeWork(0.0), torch.randn(4096, 4096, device="cuda")
    stopwatch = CudaStopwatch(ready=work.meet, device=torch.device("cuda"))
    multiply = partial(torch.matmul, weight, weight)
    assert stopwatch.back_to_back(multiply, warm_up=2, calls=5) > 0
    times_s = stopwatch.each(multiply, warm_up=2, calls=5)
    assert len(times_s) == 5
    assert min(times_s) > 0
    assert work.happened == ["meet", "meet"]
