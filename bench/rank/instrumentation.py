"""Instrumentation of a rank: phase marks, memory measured in extra steps, and the profiler window.

Instrumented steps are slower than others and no part of speed.
"""

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

from bench.case import Case, InstrumentationOptions
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

Mark = Callable[[str], AbstractContextManager[object]]
"""Returns a context that marks a phase of the given name."""


def _unmarked(name: str) -> AbstractContextManager[object]:
    return nullcontext()


class PhaseMarks:
    """Marks the phases of a workload's steps, for the clock and for the memory account alike.

    Memory is read after the clock has ended the phase, so that no phase's time includes the reading.
    """

    def __init__(self, clock: StepClock, memory: StepMemory, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.memory = memory
        self._now_ns = now_ns
        self._asking_ns = 0
        self._also: Mark = _unmarked

    def start(self) -> None:
        """Begin the first step for clock and memory, or the next one after a pause."""
        self._asking_ns = 0
        self.memory.start()
        self.clock.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the body of the `with` as a phase of the running step."""
        with self._also(name), self.clock.phase(name):
            yield
        begun_ns = self._now_ns()
        self.memory.end_phase(name)
        self._asking_ns += self._now_ns() - begun_ns

    @contextmanager
    def marked_also(self, mark: Mark) -> Iterator[None]:
        """Mark phases with `mark` too, inside the `with`."""
        self._also = mark
        try:
            yield
        finally:
            self._also = _unmarked

    def take_asking_ns(self) -> int:
        """Return the host's nanoseconds spent on reading memory since the last call."""
        asking_ns, self._asking_ns = self._asking_ns, 0
        return asking_ns


class MemoryInstrumentation:
    """Measures one rank's memory in extra steps. Every rank of a run makes the same measurements, in the same steps.

    marks: of the workload's phases. run_step: runs a step like the measured ones. note: takes what is absent, and why.
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

    def samples(self, looks: InstrumentationOptions) -> list[Sample]:
        """Return live tensors at their peak (CPU), memory of stages, the snapshot if asked for, and training state."""
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
        """Return what stages hold by CUDA's allocator, which counts as the host queues work: no wait for the device."""
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
        """Return the tensors of parameters, gradients and optimizer as they are now."""
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
    """Follows the memory of a workload's pipeline stages, if it has any, through one step."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._memory: StageMemory | None = None

    def follow(self, held_bytes: Callable[[], int]) -> None:
        """Begin to follow what each stage holds. held_bytes: returns the bytes held now."""
        if isinstance(self._workload, RunsStages):
            self._memory = StageMemory(held_bytes)
            self._workload.mark_actions(self._memory.mark)

    def leave(self) -> list[Sample]:
        """Stop following; return what each stage held at most."""
        if self._memory is None or not isinstance(self._workload, RunsStages):
            return []
        self._workload.mark_actions(None)
        return self._memory.samples()


# The profiler window of one rank: its Timeline, completed by the rank's Flight Recorder.

NO_KERNELS = (
    "the profiler saw no kernel, so that the figures of its window are absent: another profiler (nsys, ncu) may hold"
    " CUPTI, or its library is missing; the rank's messages tell which"
)
"""Without kernels, a Timeline would take the host's operators, which only launch kernels, for computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """The result of a profiler window.

    window: keeps the trace, for export. before, after: dumps of the Flight Recorder around the window.
    has_figures: whether the Timeline shows what the rank's device did. notes: what is not known of the window, and why.
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
    """Run this many steps under the profiler; return the Timeline and the records around it.

    warm_up: see `Window`; must end with a barrier of all ranks. folder: see `Window`.
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
        else:  # Most of NCCL's kernels name their collective themselves.
            timeline, notes = nccl_calls.with_calls(timeline, flight_recorder.works_since(before, after))
    except flight_recorder.Forgotten as error:
        notes = (f"process groups and numbers of collectives are absent: {error}",)
    # The host's name: ranks of one host share a clock, which is used when their windows are joined.
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
    """Return whether the Timeline shows what the device did, and not only what the host launched on it."""
    return device.type == "cpu" or timeline.is_device


def partial_steps(timeline: Timeline) -> Iterator[str]:
    """Yield a line for each step that is incomplete in the window.

    kineto stops silently when its buffers are full; it shows in launches whose work is missing.
    """
    for step in marked_steps(timeline):
        if step.why is not None:
            yield f"traced step {step.name.removeprefix(STEP).strip()} is left out: {step.why}"


def entered_in(traced: TracedWindow, case: Case) -> list[Entered]:
    """Return the collectives that the rank entered in the window, with their bytes.

    Raises:
        Forgotten: the Flight Recorder does not hold them all, for instance because CUDA graphs replayed some.
    """
    if case.backend == "nccl":
        works = flight_recorder.works_since(traced.before, traced.after)
        has_graphs = case.options.get("compile") in GRAPH_MODES
        if reason := nccl_calls.why_uncounted(traced.timeline, works, has_graphs=has_graphs):
            raise flight_recorder.Forgotten(reason)
    return flight_recorder.entered_since(traced.before, traced.after)
