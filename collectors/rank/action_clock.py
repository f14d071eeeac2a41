"""Times of the actions of a rank's pipeline stages in one step.

Knows no workload. The time of an action excludes the wait before it starts, which is the bubble.
Times count from the start of the step. Ranks meet in a barrier just before it, so they start together. Processes on one
machine read the same host clock, so their step starts compare exactly; ranks on different machines share only the
barrier, and their times differ by as much as they leave it apart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from collectors.rank.step_clock import DeviceMark
from collectors.sample_log import TimedAction, TimedMessage
from workloads.cost_models.schedules import Action, MessageEnd

# Run queue: the time that a thread was ready to run but had no core, as Linux counts it.

SCHEDSTAT = Path("/proc/thread-self/schedstat")
_WAITED = 1
"""Index of the run queue time in the file: ns on a core, ns in the run queue, number of time slices."""
_LONGEST = 128


class CoreWait:
    """Run queue time of the thread that created it; any thread may read it.

    Source: Documentation/scheduler/sched-stats.rst of Linux, `/proc/<pid>/schedstat`.
    """

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        """path: the schedstat file of this thread. The time is unknown if it cannot be read or parsed."""
        self._file: int | None = None
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._read_ns(self._file)
        except (OSError, ValueError, IndexError):
            self.close()

    def waited_ns(self) -> int | None:
        """Return nanoseconds in the run queue since the thread began; None if the kernel does not report it."""
        return None if self._file is None else self._read_ns(self._file)

    def close(self) -> None:
        """Close the file; the time is unknown from now on."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def _read_ns(file: int) -> int:
        return int(os.pread(file, _LONGEST, 0).split()[_WAITED])


BOOT = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/ns/time")


class ActionClock(Protocol):
    """Measures the actions of steps, one step at a time."""

    def begin_step(self) -> int:
        """Begin a step on an idle device; return its start by the host's monotonic clock, in nanoseconds."""

    def mark(self, action: Action) -> AbstractContextManager[None]:
        """Time the body of the `with` as this action."""

    def tell_message(self, end: MessageEnd, action: Action) -> None:
        """Record that a stage sends this action's output, or requests its input."""

    def end_step(self) -> list[TimedAction]:
        """Wait for the device; return the actions marked since the step began, in order."""

    def messages(self) -> list[TimedMessage] | None:
        """Return the messages since the step began; None if their host times are meaningless (on a GPU)."""

    def core_waits_ns(self) -> list[tuple[int, int]] | None:
        """Return how long the step's thread had waited for a core, at the start and at the end of each action.

        Counts from the step's start, in nanoseconds. None if the system does not report it, or a device computes.
        """


def make_action_clock(device: torch.device) -> ActionClock:
    """Return the clock for the device: host time on the CPU, events of the current stream on CUDA."""
    if device.type == "cuda":
        return DeviceActionClock(new_event=partial(torch.cuda.Event, enable_timing=True))
    return HostActionClock()


def host_clock_name(boot: Path = BOOT) -> str | None:
    """Return a name for the host clock, equal for all processes that read the same clock; None if unknown."""
    try:
        namespace = str(TIME_NAMESPACE.readlink()) if TIME_NAMESPACE.is_symlink() else ""
        return f"{boot.read_text().strip()} {namespace}".strip()
    except OSError:
        return None


class HostActionClock:
    """The `ActionClock` of devices that are done when the call returns: times actions with the host's clock."""

    def __init__(
        self,
        now_ns: Callable[[], int] = time.monotonic_ns,
        new_core_wait: Callable[[], CoreWait] = CoreWait,
    ) -> None:
        """new_core_wait: called in the timed thread."""
        self._now_ns = now_ns
        self._new_core_wait = new_core_wait
        self._core_wait: CoreWait | None = None
        self._begun_ns = 0
        self._waited_ns: int | None = None
        self._actions: list[TimedAction] = []
        self._messages: list[TimedMessage] = []
        self._core_waits_ns: list[tuple[int, int]] = []

    def begin_step(self) -> int:
        self._actions, self._messages, self._core_waits_ns = [], [], []
        self._core_wait = self._core_wait or self._new_core_wait()
        self._waited_ns = self._core_wait.waited_ns()
        self._begun_ns = self._now_ns()
        return self._begun_ns

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        waited_ns = self._waited_since_ns()
        start_ns = self._now_ns() - self._begun_ns
        yield
        self._actions.append(_timed(action, start_ns, self._now_ns() - self._begun_ns))
        self._core_waits_ns.append((waited_ns, self._waited_since_ns()))

    def tell_message(self, end: MessageEnd, action: Action) -> None:
        time_ns = self._now_ns() - self._begun_ns
        self._messages.append(TimedMessage(end, action.kind, action.stage, action.microbatch, time_ns))

    def end_step(self) -> list[TimedAction]:
        return self._actions

    def messages(self) -> list[TimedMessage] | None:
        return self._messages

    def core_waits_ns(self) -> list[tuple[int, int]] | None:
        return None if self._waited_ns is None else self._core_waits_ns

    def _waited_since_ns(self) -> int:
        waited_ns = None if self._core_wait is None else self._core_wait.waited_ns()
        return 0 if waited_ns is None or self._waited_ns is None else waited_ns - self._waited_ns


class DeviceActionClock:
    """The `ActionClock` of a GPU: times actions with device events.

    Each event is recorded in the current stream of the marked action. A stream that waits for a message passes no event
    meanwhile, so such waits are not part of an action.
    """

    def __init__(self, *, new_event: Callable[[], DeviceMark], now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._new_event = new_event
        self._now_ns = now_ns
        self._begun: DeviceMark | None = None
        self._marked: list[tuple[Action, DeviceMark, DeviceMark]] = []

    def begin_step(self) -> int:
        self._marked = []
        self._begun = self._record()
        return self._now_ns()

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        start = self._record()
        yield
        self._marked.append((action, start, self._record()))

    def end_step(self) -> list[TimedAction]:
        begun = self._begun
        assert begun is not None, "begin_step() comes before the first action"
        self._record().synchronize()
        for _, _, end in self._marked:  # Actions may be in other streams.
            end.synchronize()
        return [
            _timed(action, round(begun.elapsed_time(start) * 1e6), round(begun.elapsed_time(end) * 1e6))
            for action, start, end in self._marked
        ]

    def tell_message(self, end: MessageEnd, action: Action) -> None:
        """Ignore the message: the host finishes it long before the device. See `ActionClock.tell_message`."""

    def messages(self) -> list[TimedMessage] | None:
        return None

    def core_waits_ns(self) -> list[tuple[int, int]] | None:
        return None

    def _record(self) -> DeviceMark:
        event = self._new_event()
        event.record()
        return event


def _timed(action: Action, start_ns: int, end_ns: int) -> TimedAction:
    return TimedAction(action.kind, action.stage, action.microbatch, start_ns, end_ns)
