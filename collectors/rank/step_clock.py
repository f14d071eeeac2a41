"""Times of a rank's steps and their phases, measured without making the device wait.

Knows no workload. Steps are contiguous: each lasts from the end of the previous step to its own end, so no time is lost
between two steps.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

DATA = "data"
"""The phase in which the host waits for a batch; the device may compute meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Times of a step, its loss, and its gradient norm.

    phases_s: seconds by phase, summed if a phase is entered several times. Phases that do not overlap add up to at most
    the step, since one clock measures both.
    data_wait_s: how long the host was in the phase `DATA`; None with a host clock, which has it in phases_s.
    loss: the step's loss in nats; None if the rank computes none.
    gradient_norm: of the step's whole gradient before clipping; None if the rank computes none.
    """

    step_s: float
    phases_s: dict[str, float]
    data_wait_s: float | None
    loss: float | None
    gradient_norm: float | None = None


class StepClock(Protocol):
    """Measures consecutive steps."""

    def start(self) -> None:
        """Begin the first step, or the next one after a pause."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time the body of the `with` as a phase of the running step."""

    def end_step(self, loss: Tensor | None = None, gradient_norm: Tensor | None = None) -> None:
        """End the running step and begin the next.

        loss, gradient_norm: scalars on the device, read once they are computed.
        """

    def finished(self) -> list[StepTimes]:
        """Return the steps whose times have become known, in order; each step is returned once."""

    def drain(self) -> list[StepTimes]:
        """Wait for the device; return all remaining steps."""


def make_clock(device: torch.device) -> StepClock:
    """Return the clock for the device: host time on the CPU, events on CUDA."""
    if device.type == "cuda":
        return DeviceClock(new_event=partial(torch.cuda.Event, enable_timing=True))
    return HostClock()


class HostClock:
    """The `StepClock` of devices that are done when the call returns: times steps with the host's clock."""

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._begun_ns: int | None = None
        self._phases_ns: dict[str, int] = {}
        self._finished: list[StepTimes] = []

    def start(self) -> None:
        self._phases_ns = {}
        self._begun_ns = self._now_ns()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun_ns = self._now_ns()
        yield
        self._phases_ns[name] = self._phases_ns.get(name, 0) + self._now_ns() - begun_ns

    def end_step(self, loss: Tensor | None = None, gradient_norm: Tensor | None = None) -> None:
        assert self._begun_ns is not None, "start() comes before the first step"
        ended_ns = self._now_ns()
        self._finished.append(
            StepTimes(
                step_s=(ended_ns - self._begun_ns) / 1e9,
                phases_s={name: phase_ns / 1e9 for name, phase_ns in self._phases_ns.items()},
                data_wait_s=None,
                loss=None if loss is None else loss.item(),
                gradient_norm=None if gradient_norm is None else gradient_norm.item(),
            )
        )
        self._begun_ns, self._phases_ns = ended_ns, {}

    def finished(self) -> list[StepTimes]:
        finished, self._finished = self._finished, []
        return finished

    def drain(self) -> list[StepTimes]:
        return self.finished()


class DeviceMark(Protocol):
    """A mark in the device's queue of work; `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Put the mark at the end of the queue."""

    def query(self) -> bool:
        """Return whether the device has passed the mark."""

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the device's milliseconds from this mark to that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queued:
    """A step that the host has ended and the device may still be computing.

    data_wait_ns: of the host. loss, gradient_norm: being copied to the host.
    """

    begun: DeviceMark
    ended: DeviceMark
    phases: tuple[tuple[str, DeviceMark, DeviceMark], ...]
    data_wait_ns: int
    loss: Tensor | None
    gradient_norm: Tensor | None


class DeviceClock:
    """The `StepClock` of a GPU: times steps with events in the device's queue.

    The host may be many steps ahead; only `drain` waits. The phase `DATA` is also device time: how long the device
    waited for the batch, about 0 while work is queued. The host's wait is reported separately as `data_wait_s`, because
    the device may compute meanwhile.
    """

    def __init__(
        self, *, new_event: Callable[[], DeviceMark], now_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._new_event = new_event
        self._now_ns = now_ns
        self._begun: DeviceMark | None = None
        self._phases: list[tuple[str, DeviceMark, DeviceMark]] = []
        self._data_wait_ns = 0
        self._queued: deque[_Queued] = deque()

    def start(self) -> None:
        self._begin_at(self._mark())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun_ns, begun = self._now_ns(), self._mark()
        yield
        self._phases.append((name, begun, self._mark()))
        if name == DATA:
            self._data_wait_ns += self._now_ns() - begun_ns

    def end_step(self, loss: Tensor | None = None, gradient_norm: Tensor | None = None) -> None:
        assert self._begun is not None, "start() comes before the first step"
        loss_on_host, norm_on_host = _copy_to_host(loss), _copy_to_host(gradient_norm)
        ended = self._mark()
        self._queued.append(
            _Queued(
                begun=self._begun,
                ended=ended,
                phases=tuple(self._phases),
                data_wait_ns=self._data_wait_ns,
                loss=loss_on_host,
                gradient_norm=norm_on_host,
            )
        )
        self._begin_at(ended)

    def finished(self) -> list[StepTimes]:
        finished = []
        while self._queued and self._queued[0].ended.query():
            finished.append(_resolve(self._queued.popleft()))
        return finished

    def drain(self) -> list[StepTimes]:
        if self._queued:
            self._queued[-1].ended.synchronize()
        return self.finished()

    def _begin_at(self, event: DeviceMark) -> None:
        self._begun, self._phases, self._data_wait_ns = event, [], 0

    def _mark(self) -> DeviceMark:
        event = self._new_event()
        event.record()
        return event


def _copy_to_host(scalar: Tensor | None) -> Tensor | None:
    # A non-blocking copy from a GPU goes to pinned memory and is complete once the step's end event is passed.
    return None if scalar is None else scalar.detach().to("cpu", non_blocking=True)


def _resolve(step: _Queued) -> StepTimes:
    phases_s: dict[str, float] = {}
    for name, begun, ended in step.phases:
        phases_s[name] = phases_s.get(name, 0.0) + begun.elapsed_time(ended) / 1e3
    return StepTimes(
        step_s=step.begun.elapsed_time(step.ended) / 1e3,
        phases_s=phases_s,
        data_wait_s=step.data_wait_ns / 1e9,
        loss=None if step.loss is None else step.loss.item(),
        gradient_norm=None if step.gradient_norm is None else step.gradient_norm.item(),
    )
