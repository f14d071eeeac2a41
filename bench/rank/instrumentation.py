"""What a rank's memory holds, looked at in steps of its own, which are slower than others and no part of speed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.case import Case, Looks
from bench.rank.messages import RankOrder
from collectors.metrics.metric import Sample
from collectors.rank import flight_recorder
from collectors.rank.flight_recorder import Entered
from collectors.rank.memory import CannotTrack, StageMemory, StepMemory, live_tensor_bytes, state_bytes
from collectors.rank.memory_snapshot import CannotSave, CudaRecorder, States, mark_phase, record_curve, save_history
from collectors.rank.profiler import Window
from collectors.rank.step_clock import StepClock
from collectors.traces.event_names import STEP
from collectors.traces.reading import collective_args, nccl_calls
from collectors.traces.steps import steps as marked_steps
from collectors.traces.timeline import Timeline
from workloads.options import GRAPH_MODES
from workloads.protocols import HoldsTensors, ReceivesMessages, RunsStages, Workload

# Marks the phases of a rank's steps, for its clock and for the account of its memory alike.

Mark = Callable[[str], AbstractContextManager[object]]
"""Marks a phase, by its name."""


def _unmarked(name: str) -> AbstractContextManager[object]:
    return nullcontext()


class PhaseMarks:
    """What a workload is handed to mark its phases with.

    The account of memory is asked when the clock has ended the phase, so that asking is in no phase's time.
    """

    def __init__(self, clock: StepClock, memory: StepMemory, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.memory = memory
        self._now_ns = now_ns
        self._asking_ns = 0
        self._also: Mark = _unmarked

    def start(self) -> None:
        """The first step begins now, for both; again after a pause."""
        self._asking_ns = 0
        self.memory.start()
        self.clock.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark what is inside as a part of the running step."""
        with self._also(name), self.clock.phase(name):
            yield
        begun_ns = self._now_ns()
        self.memory.end_phase(name)
        self._asking_ns += self._now_ns() - begun_ns

    @contextmanager
    def marked_also(self, mark: Mark) -> Iterator[None]:
        """Meanwhile phases are marked by this, too."""
        self._also = mark
        try:
            yield
        finally:
            self._also = _unmarked

    def take_asking_ns(self) -> int:
        """Nanoseconds of the host that asking took since the last call."""
        asking_ns, self._asking_ns = self._asking_ns, 0
        return asking_ns


class MemoryLooks:
    """The looks at one rank's memory; every rank of a run takes the same ones, in steps that all take together.

    marks: of the workload's phases. run_step: a step like the measured ones. note: is told what is absent, and why.
    """

    def __init__(
        self,
        order: RankOrder,
        device: torch.device,
        workload: Workload,
        marks: PhaseMarks,
        *,
        run_step: Callable[[], object],
        note: Callable[[str], None],
    ) -> None:
        self._order = order
        self._device = device
        self._workload = workload
        self._marks = marks
        self._run_step = run_step
        self._note = note

    def samples(self, looks: Looks) -> list[Sample]:
        """What lives at its peak, and in stages; what was asked for; and the states that the last step left behind."""
        live = self._live_tensors() if self._device.type == "cpu" else self._allocations_of_stages()
        by_category = self._by_category() if looks.memory_snapshot else []
        if looks.memory_snapshot:
            self._save_history()
        return [*live, *by_category, *state_bytes(self._workload.model, self._workload.optimizer, self._states())]

    def _live_tensors(self) -> list[Sample]:
        if self._order.case.options["compile"] != "none":  # All ranks or none: a server's model has no block.
            self._note("live tensor bytes are absent: compiled blocks allocate where no tensor is seen")
            return []
        stages = _Stages(self._workload)
        try:
            live = live_tensor_bytes(
                self._run_step,
                self._workload.model,
                self._workload.optimizer,
                held=self._workload.held_tensors() if isinstance(self._workload, HoldsTensors) else {},
                buffers=self._workload.receive_buffers() if isinstance(self._workload, ReceivesMessages) else (),
                on_tracking=stages.follow,
            )
        except CannotTrack as error:
            self._note(f"live tensor bytes are absent: {error}")
            live = []
        return [*live, *stages.leave()]

    def _allocations_of_stages(self) -> list[Sample]:
        """Allocations are made while the host queues work, so that the device need not be waited for."""
        if not isinstance(self._workload, RunsStages):
            return []
        stages = _Stages(self._workload)
        stages.follow(partial(torch.cuda.memory_allocated, self._device))
        self._run_step()
        return stages.leave()

    def _by_category(self) -> list[Sample]:
        with self._marks.marked_also(mark_phase):
            curve = record_curve(self._run_step, self._device, self._states)
        try:
            curve.save(self._file("memory.json.gz"))
        except CannotSave as error:
            self._note(f"the drawing of memory by category is absent: {error}")
        return curve.samples()

    def _save_history(self) -> None:
        if self._device.type != "cuda":
            self._note("the history of memory blocks is absent: on a CPU no allocator keeps one")
            return
        try:
            save_history(self._run_step, self._file("memory.pickle"), CudaRecorder())
        except CannotSave as error:
            self._note(f"the history of memory blocks is absent: {error}")

    def _states(self) -> States:
        """The tensors behind parameters, gradients and optimizer, as they are now."""
        if isinstance(self._workload, HoldsTensors):
            return self._workload.held_tensors()
        weights = list(self._workload.model.parameters())
        states = self._workload.optimizer.state.values()
        return {
            "parameters": weights,
            "gradients": [weight.grad for weight in weights if weight.grad is not None],
            "optimizer": [value for state in states for value in state.values() if isinstance(value, Tensor)],
        }

    def _file(self, ending: str) -> Path:
        return Path(self._order.folder) / f"rank{self._order.rank}.{ending}"


class _Stages:
    """A workload's pipeline stages, if it has any, through one step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._memory: StageMemory | None = None

    def follow(self, held_bytes: Callable[[], int]) -> None:
        """See what each holds, from here on."""
        if isinstance(self._workload, RunsStages):
            self._memory = StageMemory(held_bytes)
            self._workload.mark_actions(self._memory.mark)

    def leave(self) -> list[Sample]:
        """What was seen."""
        if self._memory is None or not isinstance(self._workload, RunsStages):
            return []
        self._workload.mark_actions(None)
        return self._memory.samples()


# A window of steps under the profiler, in one rank: its Timeline, with what the rank's own record adds to it.

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
            timeline, notes = collective_args.with_calls(timeline, flight_recorder.issued_since(before, after))
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
