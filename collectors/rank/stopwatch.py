"""Times calls on a device, for probes: calls queued behind each other, or each by itself.

On the CPU by the host's clock, which reads `perf_counter_ns`. On CUDA by events of the current stream, twice: as a loop
in Python has it, where short calls wait for the host to launch them; and on the device alone, where they are queued
behind a kernel that spins meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from collectors.rank.step_clock import Event

ATTEMPTS = 3
"""How often the device is made to spin longer, until calls are queued before it ends."""
SPIN_GROWTH = 4.0
SHORTEST_SPIN_S = 1e-4
LONGEST_SPIN_S = 0.25
WARMED_TOGETHER = 8
"""Calls of a warm-up by time that are queued before the device is waited for, so that it is hardly ever idle."""
CALIBRATING_CYCLES = 1_000_000
"""About half a millisecond, beside which the launch of the kernel is little."""

WAITS = "the call waits for the device by itself, or the host launches it too slowly to run ahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Elapsed:
    """What one call took; it implements `workloads.protocols.Elapsed`, where its fields are told."""

    elapsed_s: float
    with_host_s: float | None = None
    why_with_host: str | None = None
    begun_ns: int | None = None


class HostStopwatch:
    """Of calls that are through when they return. ready: called before the first measured call; all ranks meet in it.

    It implements `workloads.protocols.Stopwatch`, as does `CudaStopwatch`.
    """

    def __init__(self, ready: Callable[[], object]) -> None:
        self._ready = ready

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> Elapsed:
        """One call: the time of all, divided by their number."""
        self._prepare(call, warm_up)
        begun_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return Elapsed(elapsed_s=(time.perf_counter_ns() - begun_ns) / calls / 1e9)

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> Elapsed:
        """One call: the median of all."""
        self._prepare(call, warm_up)
        begun_ns = time.perf_counter_ns()
        while time.perf_counter_ns() - begun_ns < warm_up_s * 1e9:
            call()
        elapsed_s = []
        for _ in range(calls):
            begun_ns = time.perf_counter_ns()
            call()
            elapsed_s.append((time.perf_counter_ns() - begun_ns) / 1e9)
        return Elapsed(elapsed_s=median(elapsed_s))

    def _prepare(self, call: Callable[[], object], warm_up: int) -> None:
        for _ in range(warm_up):
            call()
        self._ready()


class Queue(Protocol):
    """The current stream of a device, which works on what is put there while the host goes on."""

    def new_event(self) -> Event:
        """A mark that keeps its time."""

    def spin(self, cycles: int) -> None:
        """Put a kernel there that does nothing for so many cycles of the device's clock."""

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""


class CudaQueue:
    """A GPU's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_event(self) -> Event:
        """See `Queue.new_event`."""
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

    def spin(self, cycles: int) -> None:
        """See `Queue.spin`."""
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's own tests spin by it.

    def synchronize(self) -> None:
        """See `Queue.synchronize`."""
        torch.cuda.synchronize(self._device)


class CudaStopwatch:
    """Of calls that only queue work on the current stream. ready: as for `HostStopwatch`.

    The time on the device alone needs all calls to be queued before the device has done with spinning. Whether they
    were is seen by an event behind the spin, and where they were not it is tried again with a longer one. A call that
    waits for the device can never be: its time has the host in it, and says so.

    agree: whether all ranks say yes; each is asked as often, so that calls in which ranks meet are repeated by all.
    queue: of the device; its own unless another is given. now_ns: of the host. unix_ns: the time that is told.
    """

    def __init__(
        self,
        ready: Callable[[], object],
        device: torch.device,
        *,
        agree: Callable[[bool], bool] = bool,
        queue: Queue | None = None,
        now_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._ready = ready
        self._agree = agree
        self._queue = CudaQueue(device) if queue is None else queue
        self._now_ns = now_ns
        self._unix_ns = unix_ns
        self._cycles_per_s = 0.0

    def back_to_back(self, call: Callable[[], object], *, warm_up: int, calls: int) -> Elapsed:
        """One call: from the first one's begin to the last one's end on the device, by their number."""
        unix_ns = self._prepare(call, warm_up)
        all_s, queueing_s = self._with_host(call, calls)
        with_host_s = all_s / calls
        for spin_s in _spins_s(queueing_s):
            self._meet()
            # One more call before the begin: ranks leave their spins at different times, and a collective together.
            alone_s = self._alone(call, calls, spin_s, before=1)
            if self._agree(alone_s is not None):
                assert alone_s is not None, "all ranks said yes, this one too"
                return Elapsed(elapsed_s=alone_s / calls, with_host_s=with_host_s, begun_ns=unix_ns)
        return _of_both(with_host_s, unix_ns)

    def each(self, call: Callable[[], object], *, warm_up: int, calls: int, warm_up_s: float = 0.0) -> Elapsed:
        """One call: the median of all, each begun when the one before was through. Ranks do not meet in a call."""
        unix_ns = self._prepare(call, warm_up)
        self._warm(call, warm_up_s)
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
        return Elapsed(elapsed_s=median(all_alone_s), with_host_s=with_host_s, begun_ns=unix_ns)

    def _with_host(self, call: Callable[[], object], calls: int) -> tuple[float, float]:
        """Seconds from begin to end on the device, which the first call finds idle; and those of the host to queue."""
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
        """Seconds from begin to end on the device, behind a spin and some calls; None where the host fell behind."""
        if not self._cycles_per_s:
            self._cycles_per_s = self._calibrated()
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

    def _calibrated(self) -> float:
        """Cycles of a spin in a second. Its clock may change; what is asked for is a time of some length."""
        begun, ended = self._queue.new_event(), self._queue.new_event()
        begun.record()
        self._queue.spin(CALIBRATING_CYCLES)
        ended.record()
        self._queue.synchronize()
        return CALIBRATING_CYCLES / (begun.elapsed_time(ended) / 1e3)

    def _prepare(self, call: Callable[[], object], warm_up: int) -> int:
        """Unix time when all ranks are ready."""
        for _ in range(warm_up):
            call()
        self._meet()
        return self._unix_ns()

    def _warm(self, call: Callable[[], object], warm_up_s: float) -> None:
        begun_ns = self._now_ns()
        while self._now_ns() - begun_ns < warm_up_s * 1e9:
            for _ in range(WARMED_TOGETHER):
                call()
            self._queue.synchronize()

    def _meet(self) -> None:
        self._queue.synchronize()
        self._ready()
        self._queue.synchronize()


def _of_both(with_host_s: float, begun_ns: int) -> Elapsed:
    """The time of a call in which device and host cannot be told apart."""
    return Elapsed(elapsed_s=with_host_s, with_host_s=with_host_s, why_with_host=WAITS, begun_ns=begun_ns)


def _spins_s(queueing_s: float) -> list[float]:
    """How long to spin, attempt by attempt, for calls that took the host so long to queue."""
    first_s = max(SHORTEST_SPIN_S, 2 * queueing_s)
    return [min(LONGEST_SPIN_S, first_s * SPIN_GROWTH**attempt) for attempt in range(ATTEMPTS)]
