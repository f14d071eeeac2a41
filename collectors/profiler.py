"""The profiler window: a few steps of a rank under torch.profiler, slower than others and no part of speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.traces.names import STEP
from collectors.traces.reading.in_process import read_events
from collectors.traces.spans import Timeline


class Window:
    """Steps under the profiler. Used in a `with`, inside which each step is in a `with step()`."""

    def __init__(self, device: torch.device) -> None:
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._device = device
        self._profile = profile(activities=activities, experimental_config=_every_thread())

    def __enter__(self) -> Window:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @contextmanager
    def step(self) -> Iterator[None]:
        """One traced step. It ends when the device is done, so that what it queued lies inside it."""
        with record_function(STEP):
            yield
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)

    def timeline(self, rank: int) -> Timeline:
        """What ran in the window; call it after the `with`."""
        profiler = self._profile.profiler
        assert profiler is not None
        assert profiler.kineto_results is not None
        return read_events(profiler.kineto_results.events(), rank=rank)

    def export(self, path: Path) -> None:
        """Write the trace as kineto's JSON, compressed where the name ends in .gz; works once."""
        self._profile.export_chrome_trace(str(path))


def _every_thread() -> _ExperimentalConfig:
    """Threads that were there before the window are seen too: a strategy may communicate from one of its own."""
    return _ExperimentalConfig(profile_all_threads=True)


def warm() -> None:
    """Start and stop the profiler once: the first start of a process, or of its parent, takes most of a second."""
    with profile(activities=[ProfilerActivity.CPU]):
        pass
