"""The profiler window: a few steps of a rank under torch.profiler, slower than others and no part of speed."""

from __future__ import annotations

import gzip
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._C._autograd import _KinetoEvent
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.traces.event_names import STEP
from collectors.traces.reading.profiler_events import read_events
from collectors.traces.reading.reader import read_trace
from collectors.traces.timeline import Timeline

EVENTS_TELL_ALL = hasattr(_KinetoEvent, "activity_type")
"""Whether the events in memory tell of what kind they are; those of torch 2.11 do not, so that its file is read."""


def _do_nothing() -> None:
    """The warm-up of a window that needs none."""


class Window:
    """Steps under the profiler. Used in a `with`, inside which each step is in a `with step()`.

    warm_up: is run when the profiler is prepared and before it records. On CUDA the profiler asks for its buffers
    meanwhile, so a step belongs in it; the device must be done when it returns.
    folder: where a file may lie for the moment in which it is read; None for the system's temporary folder.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        warm_up: Callable[[], object] = _do_nothing,
        folder: Path | None = None,
        events_tell_all: bool = EVENTS_TELL_ALL,
    ) -> None:
        self._device = device
        self._warm_up = warm_up
        self._folder = folder
        self._events_tell_all = events_tell_all
        self._profile = profile(activities=_activities(device), experimental_config=_every_thread())
        self._saved: bytes | None = None

    def __enter__(self) -> Window:
        prepare(self._profile)
        self._warm_up()
        self._profile.start_trace()
        return self

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            # Once, after the last step: a wait after each would begin every step on an empty queue.
            torch.cuda.synchronize(self._device)
        self._profile.stop_trace()

    @contextmanager
    def step(self) -> Iterator[None]:
        """One traced step, marked on the host; the device may be behind, and steps of a Timeline allow for that."""
        with record_function(STEP):
            yield

    def timeline(self, rank: int) -> Timeline:
        """What ran in the window; call it after the `with`, once."""
        if self._events_tell_all:
            profiler = self._profile.profiler
            assert profiler is not None
            assert profiler.kineto_results is not None
            return read_events(profiler.kineto_results.events(), rank=rank)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="trace-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            timeline = read_trace(path, rank=rank)
            # kineto saves once, and this may yet be exported.
            self._saved = gzip.compress(path.read_bytes(), compresslevel=1)
        return timeline

    def export(self, path: Path) -> None:
        """Write the trace as kineto's JSON, packed; works once, after `timeline`. path: ends in .json.gz."""
        if self._saved is not None:
            path.write_bytes(self._saved)
        else:
            self._profile.export_chrome_trace(str(path))


def prepare(profiler: profile) -> None:
    """Make a profiler ready that will record one stretch of time; `start_trace` begins it."""
    with warnings.catch_warnings():
        # torch 2.11 says so of every profiler, also of one that records once.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle")
        profiler.prepare_trace()


@contextmanager
def recording(profiler: profile) -> Iterator[None]:
    """Record what runs inside."""
    prepare(profiler)
    profiler.start_trace()
    try:
        yield
    finally:
        profiler.stop_trace()


def may_start_before_fork(cuda: str | None = torch.version.cuda, hip: str | None = torch.version.hip) -> bool:
    """Whether a process may start the profiler and fork ranks afterwards; with a build for GPUs it may not.

    There the profiler's start asks how many GPUs there are, which starts the driver, and no forked process can use a
    driver that its parent has started.
    cuda, hip: the versions that torch is built with, None where it is built without.
    Source: torch/csrc/autograd/profiler_kineto.cpp (prepareProfiler asks at::hasCUDA); pytorch issues 55643, 190708.
    """
    return cuda is None and hip is None


def warm(device: torch.device) -> None:
    """Start and stop the profiler once: the first start of a process, or of its parent, takes most of a second.

    device: the one that windows will be of. The profiler is set up once in a process and for what it was asked first,
    so that one that was told of no GPU will never see any.
    """
    with recording(profile(activities=_activities(device))):
        pass


def _activities(device: torch.device) -> list[ProfilerActivity]:
    if device.type == "cuda":
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    return [ProfilerActivity.CPU]


def _every_thread() -> _ExperimentalConfig:
    """Threads that were there before the window are seen too: a strategy may communicate from one of its own."""
    return _ExperimentalConfig(profile_all_threads=True)
