"""Stopwatches for probes: they time calls on a device, queued back to back or each by itself.

The CPU's stopwatch uses the host's clock, `perf_counter_ns`. CUDA's uses events of the current stream and times calls
twice: in a plain Python loop, in which short calls wait for the host to launch them; and on the device alone, with all
calls queued behind a spinning kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from collectors.rank.step_clock import DeviceMark

ATTEMPTS = 3
"""Maximum number of spins, each longer than the last, to try until the calls are queued before the spin ends."""
SPIN_GROWTH = 4.0
SHORTEST_SPIN_S = 1e-4
LONGEST_SPIN_S = 0.25
WARMED_TOGETHER = 8
"""Number of calls queued before each wait for the device in a warm-up by time, so that the device is rarely idle."""
CALIBRATING_CYCLES = 1_000_000
"""About half a millisecond; the kernel's launch is short compared with it."""

WAITS = "the call waits for the device by itself, or the host launches it too slowly to run ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTime:
    """The time of a call; implements `workloads.protocols.Elapsed`, which defines the fields."""

    elapsed_s: float
    with_host_s: float | None = None
    why_with_host: str | None = None
    begun_ns: int | None = None


class HostStopwatch:
    """Times calls that are done when they return. Like `CudaStopwatch`, implements `workloads.protocols.Stopwatch`.

    ready: called before the first measured call; a barrier of all ranks.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> CallTime:
        """Return the time of one call: the time of all calls divided by their number."""
        self._prepare(call, warm_up)
        begun_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return CallTime(elapsed_s=(time.perf_counter_ns() - begun_ns) / calls / 1e9)

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> CallTime:
        """Return the time of one call: the median of all calls."""
        self._prepare(call, warm_up)
        begun_ns = time.perf_counter_ns()
        while time.perf_counter_ns() - begun_ns < warm_up_s * 1e9:
            call()
        elapsed_s = []
        for _ in range(calls):
            begun_ns = time.perf_counter_ns()
            call()
            elapsed_s.append((time.perf_counter_ns() - begun_ns) / 1e9)
        return CallTime(elapsed_s=median(elapsed_s))

    def _prepare(self, call: Callable[[], object], warm_up: int) -> None:
        for _ in range(warm_up):
            call()
        self._ready()


class DeviceStream(Protocol):
    """The current stream of a device, which executes queued work while the host continues."""

    def new_event(self) -> DeviceMark:
        """Return a mark that records its time."""

    def spin(self, cycles: int) -> None:
        """Queue a kernel that does nothing for this many cycles of the device's clock."""

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""


class CudaQueue:
    """The `DeviceStream` of a GPU: its current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_event(self) -> DeviceMark:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def spin(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's own tests use it to spin.

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


class CudaStopwatch:
    """Times calls that only queue work on the current stream.

    For the time on the device alone, all calls must be queued before the spin kernel ends:

        queue:   spin | spun | call before | begun | calls ... | ended
        valid:   the event `spun` has not happened when the host has queued `ended`

    If it has, the measurement is repeated with a longer spin. A call that waits for the device itself can never be
    queued in time: its result is the time with the host, and `why_with_host` says so.

    ready: as for `HostStopwatch`. agree: returns whether all ranks agree; all ranks call it equally often, so that they
    repeat collective calls together. queue: of the device; a `CudaQueue` by default. now_ns: the host's clock.
    unix_ns: the clock of `Elapsed.begun_ns`.
    """

    def __init__(
        self,
        ready: Callable[[], object],
        device: torch.device,
        *,
        agree: Callable[[bool], bool] = bool,
        queue: DeviceStream | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ready = ready
        self._agree = agree
        self._queue = CudaQueue(device) if queue is None else queue
        self._now_ns = now_ns
        self._unix_ns = unix_ns
        self._cycles_per_s = 0.0

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> CallTime:
        """Return the time of one call: from the start of the first to the end of the last, divided by their number."""
        unix_ns = self._prepare(call, warm_up)
        all_s, queueing_s = self._with_host(call, calls)
        with_host_s = all_s / calls
        for spin_s in _spins_s(queueing_s):
            self._meet()
            # Make one call before the start: ranks leave their spins at different times, but a collective together.
            alone_s = self._alone(call, calls, spin_s, before=1)
            if self._agree(alone_s is not None):
                assert alone_s is not None, "all ranks said yes, this one too"
                return CallTime(elapsed_s=alone_s / calls, with_host_s=with_host_s, begun_ns=unix_ns)
        return _of_both(with_host_s, unix_ns)

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> CallTime:
        """Return the median time of a call; each starts when the last is done. Calls must not be collective."""
        unix_ns = self._prepare(call, warm_up)
        begun_ns = self._now_ns()
        while self._now_ns() - begun_ns < warm_up_s * 1e9:
            for _ in range(WARMED_TOGETHER):
                call()
            self._queue.synchronize()
        timed = [self._with_host(call, 1) for _ in range(calls)]
        with_host_s = median(elapsed_s for elapsed_s, _ in timed)
        spins_s = iter(_spins_s(max(queueing_s for _, queueing_s in timed)))
        spin_s, all_alone_s = next(spins_s), list[float]()
        while len(all_alone_s) < calls:
            alone_s = self._alone(call, 1, spin_s, before=0)
            if alone_s is not None:
                all_alone_s.append(alone_s)
            elif (longer_s := next(spins_s, None)) is not None:
                spin_s = longer_s
            else:
                return _of_both(with_host_s, unix_ns)
        return CallTime(elapsed_s=median(all_alone_s), with_host_s=with_host_s, begun_ns=unix_ns)

    def _with_host(self, call: Callable[[], object], calls: int) -> tuple[float, float]:
        """Return seconds from start to end on an initially idle device, and seconds that the host took to queue."""
        begun, ended = self._queue.new_event(), self._queue.new_event()
        begun_ns = self._now_ns()
        begun.record()
        for _ in range(calls):
            call()
        ended.record()
        queueing_s = (self._now_ns() - begun_ns) / 1e9
        self._queue.synchronize()
        return begun.elapsed_time(ended) / 1e3, queueing_s

    def _alone(self, call: Callable[[], object], calls: int, spin_s: float, *, before: int) -> float | None:
        """Return device seconds from start to end, after a spin and `before` calls; None if the host was late."""
        if not self._cycles_per_s:
            # The clock may change later, but the length of a spin need not be exact.
            begun, ended = self._queue.new_event(), self._queue.new_event()
            begun.record()
            self._queue.spin(CALIBRATING_CYCLES)
            ended.record()
            self._queue.synchronize()
            self._cycles_per_s = CALIBRATING_CYCLES / (begun.elapsed_time(ended) / 1e3)
        spun, begun, ended = (self._queue.new_event() for _ in range(3))
        self._queue.spin(round(spin_s * self._cycles_per_s))
        spun.record()
        for _ in range(before):
            call()
        begun.record()
        for _ in range(calls):
            call()
        ended.record()
        was_ahead = not spun.query()
        self._queue.synchronize()
        return begun.elapsed_time(ended) / 1e3 if was_ahead else None

    def _prepare(self, call: Callable[[], object], warm_up: int) -> int:
        """Warm up and meet the other ranks; return the Unix time when all are ready, in nanoseconds."""
        for _ in range(warm_up):
            call()
        self._meet()
        return self._unix_ns()

    def _meet(self) -> None:
        self._queue.synchronize()
        self._ready()
        self._queue.synchronize()


def _of_both(with_host_s: float, begun_ns: int) -> CallTime:
    """Return the time of a call whose device time cannot be separated from the host's."""
    return CallTime(elapsed_s=with_host_s, with_host_s=with_host_s, why_with_host=WAITS, begun_ns=begun_ns)


def _spins_s(queueing_s: float) -> list[float]:
    """Return how long to spin in each attempt, for calls that took the host `queueing_s` to queue."""
    first_s = max(SHORTEST_SPIN_S, 2 * queueing_s)
    return [min(LONGEST_SPIN_S, first_s * SPIN_GROWTH**attempt) for attempt in range(ATTEMPTS)]
