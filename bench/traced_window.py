"""A window of steps under the profiler, in one rank: its Timeline, with what the rank's own record adds to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from collectors import flight_recorder
from collectors.profiler import Window
from collectors.traces.reading.gloo_calls import with_calls
from collectors.traces.spans import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """What came of it.

    window: as long as it lives, its trace can be exported. before, after: dumps of the Flight Recorder around it.
    notes: what its collectives do not say of themselves, and why.
    """

    window: Window
    timeline: Timeline
    before: bytes
    after: bytes
    notes: tuple[str, ...]


def trace(
    steps: int, run_step: Callable[[], None], *, device: torch.device, backend: str, rank: int, ranks: int
) -> TracedWindow:
    """Run so many steps under the profiler."""
    before = flight_recorder.dump(backend)
    with Window(device) as window:
        for _ in range(steps):
            with window.step():
                run_step()
    after = flight_recorder.dump(backend)
    timeline = window.timeline(rank)
    notes: tuple[str, ...] = ()
    if backend == "gloo":  # NCCL's kernels say it themselves.
        try:
            timeline, notes = with_calls(timeline, flight_recorder.issued_since(before, after))
        except flight_recorder.Forgotten as error:
            notes = (f"process groups and numbers of collectives are absent: {error}",)
    # Ranks of one host have one clock, which the joining of their windows goes by.
    about = replace(timeline.about, world_size=ranks, host=socket.gethostname(), groups=flight_recorder.group_ranks())
    return TracedWindow(window=window, timeline=replace(timeline, about=about), before=before, after=after, notes=notes)
