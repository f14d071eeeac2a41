"""Instrumentation of a rank: phase marks, profiler windows, and actions and memory measured in extra steps.

Instrumented steps are slower than others and do not count towards speed.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from bench.case import Case
from bench.rank.distributed import TrialLog, as_full_disk, wait_for_all
from bench.rank.messages import RankOrder
from bench.results.timelines import save_timeline
from collectors.metrics.metric import Sample
from collectors.metrics.rank import ATTENTION_PAIRS, PAYLOAD_BYTES
from collectors.rank import flight_recorder
from collectors.rank.action_clock import host_clock_name, make_action_clock
from collectors.rank.flight_recorder import OTHER_AXIS, Entered, axes_of_groups
from collectors.rank.memory import (
    CannotTrack,
    StageMemory,
    StateTensors,
    StepMemory,
    live_tensor_bytes,
    state_bytes,
    states_of,
)
from collectors.rank.memory_snapshot import CannotSave, CudaRecorder, mark_phase, record_curve, save_history
from collectors.rank.profiler import ProfiledSteps
from collectors.rank.step_clock import StepClock
from collectors.sample_log import TimedActions
from collectors.traces.breakdown import breakdowns, why_no_communication
from collectors.traces.event_names import STEP
from collectors.traces.reading import collective_args, nccl_calls
from collectors.traces.steps import steps as marked_steps
from collectors.traces.timeline import Timeline
from workloads.options import GRAPH_MODES
from workloads.protocols import CountsPairs, CountsPayload, HoldsTensors, ReceivesMessages, RunsStages, Workload

MarkPhase = Callable[[str], AbstractContextManager[object]]
"""Returns a context that marks a phase of the given name."""


class PhaseMarks:
    """Marks the phases of a workload's steps, both for the clock and for the memory account.

    Memory is read after the clock has ended the phase, so that no phase's time includes the reading.
    """

    def __init__(self, clock: StepClock, memory: StepMemory, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.clock = clock
        self.memory = memory
        self._now_ns = now_ns
        self._reading_cost_ns = 0
        self._also: MarkPhase = nullcontext

    def start(self) -> None:
        """Begin the first step for clock and memory, or the next one after a pause."""
        self._reading_cost_ns = 0
        self.memory.start()
        self.clock.start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the body of the `with` as a phase of the running step."""
        with self._also(name), self.clock.phase(name):
            yield
        begun_ns = self._now_ns()
        self.memory.end_phase(name)
        self._reading_cost_ns += self._now_ns() - begun_ns

    @contextmanager
    def marked_also(self, mark: MarkPhase) -> Iterator[None]:
        """Also mark phases with `mark` inside the `with`."""
        self._also = mark
        try:
            yield
        finally:
            self._also = nullcontext

    def take_reading_ns(self) -> int:
        """Return the host's nanoseconds spent on reading memory since the last call."""
        reading_cost_ns, self._reading_cost_ns = self._reading_cost_ns, 0
        return reading_cost_ns


@dataclass(slots=True, kw_only=True)
class Instrumentation:
    """Measures a rank in extra steps. Every rank of a run makes the same measurements in the same steps.

    marks: the marks of the workload's phases. train_step: runs a step like the measured ones.
    """

    order: RankOrder
    log: TrialLog
    device: torch.device
    mesh: DeviceMesh
    marks: PhaseMarks
    workload: Workload
    train_step: Callable[[], object]
    _stages: StageMemory | None = None

    def _run_step(self) -> None:
        self.train_step()
        self.log.step += 1

    # Profiler windows.

    def trace(self) -> None:
        """Run a profiler window; log its figures and the payload of its collectives."""
        order, case, workload = self.order, self.order.case, self.workload
        folder = Path(order.folder)
        workload_bytes = Counter[str]()

        def warm_up() -> None:
            self._run_step()
            wait_for_all(self.device)

        def run_step() -> None:
            self._run_step()
            if isinstance(workload, CountsPayload):
                workload_bytes.update(workload.payload_bytes())

        traced = trace(
            case.trace_steps,
            run_step,
            warm_up=warm_up,
            device=self.device,
            backend=case.backend,
            rank=order.rank,
            ranks=case.ranks,
            folder=folder,
        )
        if traced.has_figures:
            save_timeline(traced.timeline, folder, order.trial)
        if order.keep_trace:
            traced.window.export(folder / f"rank{order.rank}.trace.json.gz")
        for text in traced.notes:
            self.log.note(f"rank {order.rank}: {text}")
        if traced.has_figures and (reason := why_no_communication(traced.timeline)) is not None:
            self.log.note(f"communication is absent: {reason}")
        counts = self._payloads(traced, workload_bytes)
        if isinstance(workload, CountsPairs):
            counts.append(ATTENTION_PAIRS.at(workload.attention_pairs()))
        figures = [breakdown.samples() for breakdown in breakdowns(traced.timeline)] if traced.has_figures else []
        # What was counted is logged even if no step was traced completely.
        for samples in figures or [[]]:
            self.log.reading("traced", samples + counts)

    def _payloads(self, traced: TracedWindow, workload_bytes: Mapping[str, int]) -> list[Sample]:
        """Return the mean payload of a step, by collective and mesh axis.

        workload_bytes: counted by the workload itself, by collective; the spec names their axes.
        """
        case = self.order.case
        axes: dict[str, str] = {transfer.collective: transfer.axis for transfer in case.spec().transfers(case)}
        payload_bytes = Counter({(name, axes.get(name, OTHER_AXIS)): total for name, total in workload_bytes.items()})
        # The Flight Recorder has the rest, by process group.
        axes = axes_of_groups(self.mesh)
        try:
            for entered in entered_in(traced, case):
                payload_bytes[entered.name, axes.get(entered.group, OTHER_AXIS)] += entered.payload_bytes
        except flight_recorder.Forgotten as error:
            self.log.note(f"counted traffic is absent: {error}")
        return [
            PAYLOAD_BYTES.at(total / case.trace_steps, collective=name, axis=axis)
            for (name, axis), total in payload_bytes.items()
            if total
        ]

    # Actions of pipeline stages.

    def time_actions(self) -> None:
        """Log the time of each action of a pipeline's stages, in steps that all ranks begin together."""
        if not isinstance(self.workload, RunsStages):
            return
        clock, clock_name = make_action_clock(self.device), host_clock_name()
        self.workload.mark_actions(clock.mark, clock.tell_message)
        for _ in range(self.order.case.trace_steps):
            wait_for_all(self.device)
            begun_ns = clock.begin_step()
            self.train_step()
            self.log.write(
                TimedActions(
                    trial=self.order.trial,
                    time_ns=time.time_ns(),
                    step=self.log.step,
                    begun_ns=begun_ns,
                    clock=clock_name,
                    actions=clock.end_step(),
                    messages=clock.messages(),
                    core_waits_ns=clock.core_waits_ns(),
                )
            )
            self.log.step += 1
        self.workload.mark_actions(None)

    # Memory.

    def measure_memory(self) -> None:
        """Log live tensors at their peak (CPU), memory of stages, the snapshot if requested, and training state."""
        samples = self._live_tensors() if self.device.type == "cpu" else self._allocations_of_stages()
        if self.order.instrumentation.memory_snapshot:
            samples += self._by_category()
            self._save_history()
        samples += state_bytes(self._states())
        self.log.reading("memory", samples)

    def _live_tensors(self) -> list[Sample]:
        if self.order.case.options["compile"] != "none":  # All ranks agree: a server's model has no block.
            self.log.note("live tensor bytes are absent: compiled blocks allocate memory that no tensor shows")
            return []
        live = []
        try:
            live = live_tensor_bytes(
                self._run_step,
                self.workload.model,
                self.workload.optimizer,
                tensors_of=self.workload.held_tensors() if isinstance(self.workload, HoldsTensors) else {},
                buffers=self.workload.receive_buffers() if isinstance(self.workload, ReceivesMessages) else (),
                on_tracking=self._follow_stages,
            )
        except CannotTrack as error:
            self.log.note(f"live tensor bytes are absent: {error}")
        return live + self._samples_of_stages()

    def _allocations_of_stages(self) -> list[Sample]:
        """Return what stages hold by CUDA's allocator, which counts when the host queues work, without waiting."""
        if not isinstance(self.workload, RunsStages):
            return []
        self._follow_stages(partial(torch.cuda.memory_allocated, self.device))
        self._run_step()
        return self._samples_of_stages()

    def _follow_stages(self, held_bytes: Callable[[], int]) -> None:
        """Begin to follow the memory of each pipeline stage, if any. held_bytes: returns the current bytes."""
        if isinstance(self.workload, RunsStages):
            self._stages = StageMemory(held_bytes)
            self.workload.mark_actions(self._stages.mark)

    def _samples_of_stages(self) -> list[Sample]:
        """Stop following the stages; return the peak of each."""
        if self._stages is None or not isinstance(self.workload, RunsStages):
            return []
        self.workload.mark_actions(None)
        return self._stages.samples()

    def _by_category(self) -> list[Sample]:
        with self.marks.marked_also(mark_phase):
            curve = record_curve(self._run_step, self.device, self._states)
        try:
            curve.save(self._file("memory.json.gz"))
        except CannotSave as error:
            if as_full_disk(error):
                raise
            self.log.note(f"the drawing of memory by category is absent: {error}")
        return curve.samples()

    def _save_history(self) -> None:
        if self.device.type != "cuda":
            self.log.note("the history of memory blocks is absent: no allocator keeps one on a CPU")
            return
        try:
            save_history(self._run_step, self._file("memory.pickle"), CudaRecorder())
        except CannotSave as error:
            if as_full_disk(error):
                raise
            self.log.note(f"the history of memory blocks is absent: {error}")

    def _states(self) -> StateTensors:
        """Return the current tensors of parameters, gradients and optimizer."""
        if isinstance(self.workload, HoldsTensors):
            return self.workload.held_tensors()
        return states_of(self.workload.model, self.workload.optimizer)

    def _file(self, ending: str) -> Path:
        return Path(self.order.folder) / f"rank{self.order.rank}.{ending}"


# The profiler window of one rank: its Timeline, completed by the rank's Flight Recorder.

NO_KERNELS = (
    "the profiler saw no kernel, so the figures of its window are absent: another profiler (nsys, ncu) may hold CUPTI,"
    " or CUPTI's library is missing; the rank's messages show which"
)
"""Without kernels, a Timeline would count the host's operators, which only launch kernels, as computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedWindow:
    """The result of a profiler window.

    window: keeps the trace, for export. before, after: dumps of the Flight Recorder around the window.
    has_figures: whether the Timeline shows the rank's device. notes: what is unknown about the window, and why.
    """

    window: ProfiledSteps
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

    warm_up: see `ProfiledSteps`; must end with a barrier of all ranks. folder: see `ProfiledSteps`.
    """
    with ProfiledSteps(device, warm_up=warm_up, folder=folder) as window:
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
    # The host's name: ranks on one host share a clock, which is used when their windows are joined.
    about = replace(timeline.about, world_size=ranks, host=socket.gethostname(), groups=flight_recorder.group_ranks())
    has_figures = shows_device(device, timeline)
    return TracedWindow(
        window=window,
        timeline=replace(timeline, about=about),
        before=before,
        after=after,
        has_figures=has_figures,
        notes=(*notes, *(partial_steps(timeline) if has_figures else (NO_KERNELS,))),
    )


def shows_device(device: torch.device, timeline: Timeline) -> bool:
    """Return whether the Timeline shows what the device did, not only what the host launched on it."""
    return device.type == "cpu" or timeline.is_device


def partial_steps(timeline: Timeline) -> Iterator[str]:
    """Yield a line for each step that is incomplete in the window.

    kineto stops silently when its buffers are full; launches without work reveal it.
    """
    if timeline.about.clocks_differ:
        yield "traced steps are left out: the clocks of host and device differ"
    for step in marked_steps(timeline):
        if step.why is not None:
            yield f"traced step {step.name.removeprefix(STEP).strip()} is left out: {step.why}"


def entered_in(traced: TracedWindow, case: Case) -> list[Entered]:
    """Return the collectives that the rank entered in the window, with their bytes.

    Raises:
        Forgotten: the Flight Recorder does not hold them all, for example because CUDA graphs replayed some.
    """
    if case.backend == "nccl":
        works = flight_recorder.works_since(traced.before, traced.after)
        has_graphs = case.options.get("compile") in GRAPH_MODES
        if reason := nccl_calls.why_uncounted(traced.timeline, works, has_graphs=has_graphs):
            raise flight_recorder.Forgotten(reason)
    return flight_recorder.entered_since(traced.before, traced.after)
