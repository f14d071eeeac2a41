"""The profiler window: a few steps of a rank under torch.profiler, which are slower and do not count for speed."""

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

from collectors.files import replace_file
from collectors.traces.event_names import STEP
from collectors.traces.reading.reader import read_events, read_trace
from collectors.traces.timeline import Timeline

EVENTS_HAVE_KINDS = hasattr(_KinetoEvent, "activity_type")
"""Whether events in memory have their kind. In torch 2.11 they do not, so we read the exported trace file instead."""


class ProfiledSteps:
    """Steps under the profiler. Use it in a `with`, and run each step in a `with step()`.

    warm_up: runs after the profiler is prepared and before it records. On CUDA the profiler allocates its buffers
    then, so the warm-up should run a step; the device must be idle when it returns.
    folder: for a temporary trace file; None for the system's temporary folder.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        warm_up: Callable[[], object] | None = None,
        folder: Path | None = None,
        events_have_kinds: bool = EVENTS_HAVE_KINDS,
    ) -> None:
        self._device = device
        self._warm_up = warm_up
        self._folder = folder
        self._events_have_kinds = events_have_kinds
        # Also profile threads that are older than the window: a strategy may communicate from its own thread.
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        self._profile = profile(activities=_activities(device), experimental_config=every_thread)
        self._saved: bytes | None = None

    def __enter__(self) -> ProfiledSteps:
        prepare(self._profile)
        if self._warm_up is not None:
            self._warm_up()
        self._profile.start_trace()
        return self

    def __exit__(self, *error: object) -> None:
        if self._device.type == "cuda":
            # Only after the last step: waiting after each would start every step with an empty queue.
            torch.cuda.synchronize(self._device)
        self._profile.stop_trace()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Mark a traced step on the host. The device may lag; the steps of a Timeline allow for that."""
        with record_function(STEP):
            yield

    def timeline(self, rank: int) -> Timeline:
        """Return the timeline of the window. Call this once, after the `with`."""
        if self._events_have_kinds:
            profiler = self._profile.profiler
            assert profiler is not None
            assert profiler.kineto_results is not None
            return read_events(profiler.kineto_results.events(), rank=rank)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="trace-") as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            timeline = read_trace(path, rank=rank)
            # kineto exports only once, and `export` may be called later.
            self._saved = gzip.compress(path.read_bytes(), compresslevel=1)
        return timeline

    def export(self, path: Path) -> None:
        """Write the trace as kineto's JSON, compressed; works once, after `timeline`. path: ends in .json.gz."""
        if self._saved is not None:
            replace_file(path, self._saved)
        else:
            self._profile.export_chrome_trace(str(path))


def prepare(profiler: profile) -> None:
    """Prepare a profiler that records once; `start_trace` then begins the recording."""
    with warnings.catch_warnings():
        # torch 2.11 warns for every profiler, even if it records only once.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events at the end of each cycle")
        profiler.prepare_trace()


@contextmanager
def recording(profiler: profile) -> Iterator[None]:
    """Record the body of the `with`."""
    prepare(profiler)
    profiler.start_trace()
    try:
        yield
    finally:
        profiler.stop_trace()


def may_start_before_fork(cuda: str | None = torch.version.cuda, hip: str | None = torch.version.hip) -> bool:
    """Return whether a process may start the profiler and then fork ranks; with a GPU build of torch it may not.

    In such a build the profiler counts the GPUs when it starts, which initialises the driver, and a forked process
    cannot use a driver that its parent has initialised.
    cuda, hip: the versions that torch is built with; None if it is built without.
    Source: torch/csrc/autograd/profiler_kineto.cpp (prepareProfiler asks at::hasCUDA); pytorch issues 55643, 190708.
    """
    return cuda is None and hip is None


def warm(device: torch.device) -> None:
    """Start and stop the profiler once, since the first start takes most of a second; forked processes inherit it.

    device: of later windows. The profiler is set up once per process, for the activities of its first use: if these do
    not include the GPU, it never records one.
    """
    with recording(profile(activities=_activities(device))):
        pass


def _activities(device: torch.device) -> list[ProfilerActivity]:
    if device.type == "cuda":
        return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    return [ProfilerActivity.CPU]
