"""A window of steps under the profiler, in one rank: its Timeline, with what the rank's own record adds to it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench.case import Case
from collectors import flight_recorder
from collectors.flight_recorder import Entered
from collectors.profiler import Window
from collectors.traces.names import STEP
from collectors.traces.reading import gloo_calls, nccl_calls
from collectors.traces.spans import Timeline
from collectors.traces.steps.stretches import steps as marked_steps
from workloads.cards.training_options import GRAPH_MODES

NO_KERNELS = (
    "the profiler saw no kernel, so that the figures of its window are absent: another profiler (nsys, ncu) may hold"
    " CUPTI, or its library is missing; the rank's messages tell which"
)
"""Without kernels a Timeline would take the host's operators, which only launch them, for computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """What came of it.

    window: as long as it lives, its trace can be exported. before, after: dumps of the Flight Recorder around it.
    has_figures: the Timeline tells what the rank's device did. notes: what cannot be told of the window, and why.
    """

    window: Window
    timeline: Timeline
    before: bytes
    after: bytes
    has_figures: bool
    notes: tuple[str, ...]


def trace(
    steps: int,
    run_step: Callable[[], None],
    *,
    warm_up: Callable[[], object],
    device: torch.device,
    backend: str,
    rank: int,
    ranks: int,
    folder: Path | None = None,
) -> TracedWindow:
    """Run so many steps under the profiler.

    warm_up: see `Window`; all ranks leave it together. folder: see `Window`.
    """
    with Window(device, warm_up=warm_up, folder=folder) as window:
        before = flight_recorder.dump(backend)
        for _ in range(steps):
            with window.step():
                run_step()
    after = flight_recorder.dump(backend)
    timeline = window.timeline(rank)
    notes: tuple[str, ...] = ()
    try:
        if backend == "gloo":
            timeline, notes = gloo_calls.with_calls(timeline, flight_recorder.issued_since(before, after))
        else:  # Most of NCCL's kernels say it themselves.
            timeline, notes = nccl_calls.with_calls(timeline, flight_recorder.works_since(before, after))
    except flight_recorder.Forgotten as error:
        notes = (f"process groups and numbers of collectives are absent: {error}",)
    # Ranks of one host have one clock, which the joining of their windows goes by.
    about = replace(timeline.about, world_size=ranks, host=socket.gethostname(), groups=flight_recorder.group_ranks())
    has_figures = tells_of(device, timeline)
    return TracedWindow(
        window=window,
        timeline=replace(timeline, about=about),
        before=before,
        after=after,
        has_figures=has_figures,
        notes=(*notes, *(partial_steps(timeline) if has_figures else (NO_KERNELS,))),
    )


def tells_of(device: torch.device, timeline: Timeline) -> bool:
    """Whether the Timeline tells what the device did, and not only what the host launched on it."""
    return device.type == "cpu" or timeline.is_device


def partial_steps(timeline: Timeline) -> Iterator[str]:
    """A line for each step that the window does not hold whole.

    kineto stops when its buffers are full and does not say so, which shows in launches whose work is missing.
    """
    for step in marked_steps(timeline):
        if step.why is not None:
            yield f"traced step {step.name.removeprefix(STEP).strip()} is left out: {step.why}"


def entered_in(traced: TracedWindow, case: Case) -> list[Entered]:
    """The collectives that the rank entered in the window, with their bytes.

    Raises:
        Forgotten: the Flight Recorder does not hold them all, also where CUDA graphs replayed some.
    """
    if case.backend == "nccl":
        works = flight_recorder.works_since(traced.before, traced.after)
        has_graphs = case.options.get("compile") in GRAPH_MODES
        if reason := nccl_calls.why_uncounted(traced.timeline, works, has_graphs=has_graphs):
            raise flight_recorder.Forgotten(reason)
    return flight_recorder.entered_since(traced.before, traced.after)
