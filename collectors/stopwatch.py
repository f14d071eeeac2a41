"""Times calls on a device, for probes: calls queued behind each other, or each by itself.

On the CPU by the host's clock, on CUDA by events of the current stream; the host's clock reads `perf_counter_ns`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


class HostStopwatch:
    """Of calls that are through when they return. ready: called before the first measured call; all ranks meet in it.

    It implements `workloads.probe.Stopwatch`, as does `CudaStopwatch`.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> float:
        """Seconds of one call: the time of all, divided by their number."""
        self._prepare(call, warm_up)
        begun_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - begun_ns) / calls / 1e9

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int) -> list[float]:
        """Seconds of every single call."""
        self._prepare(call, warm_up)
        elapsed_s = []
        for _ in range(calls):
            begun_ns = time.perf_counter_ns()
            call()
            elapsed_s.append((time.perf_counter_ns() - begun_ns) / 1e9)
        return elapsed_s

    def _prepare(self, call: Callable[[], object], warm_up: int) -> None:
        for _ in range(warm_up):
            call()
        self._ready()


class CudaStopwatch:
    """Of calls that only queue work on the current stream. ready: as for `HostStopwatch`."""

    def __init__(self, ready: Callable[[], object], device: torch.device) -> None:
        self._ready = ready
        self._device = device

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> float:
        """Seconds of one call: from the first one's begin to the last one's end on the device, by their number."""
        self._prepare(call, warm_up)
        begun, ended = self._events(2)
        begun.record()
        for _ in range(calls):
            call()
        ended.record()
        torch.cuda.synchronize(self._device)
        return float(begun.elapsed_time(ended)) / 1e3 / calls

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int) -> list[float]:
        """Seconds of every single call on the device, without the time in which it waited for the host."""
        self._prepare(call, warm_up)
        elapsed_s = []
        for _ in range(calls):
            begun, ended = self._events(2)
            begun.record()
            call()
            ended.record()
            torch.cuda.synchronize(self._device)
            elapsed_s.append(float(begun.elapsed_time(ended)) / 1e3)
        return elapsed_s

    def _prepare(self, call: Callable[[], object], warm_up: int) -> None:
        for _ in range(warm_up):
            call()
        torch.cuda.synchronize(self._device)
        self._ready()
        torch.cuda.synchronize(self._device)

    def _events(self, count: int) -> list[torch.cuda.Event]:
        return [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]
