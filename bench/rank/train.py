"""The training loop of one rank: join the others, build the workload, warm up, measure steps, then instrumented steps.

Every figure goes into the rank's log as soon as it is known; nothing is summarised here.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from pkgutil import resolve_name

import torch
from torch.distributed.device_mesh import DeviceMesh

from bench.analysis.mfu import Absent, Peak, flops_per_second_per_device, peak_of
from bench.analysis.timelines import save_timeline
from bench.case import Case, InstrumentationOptions
from bench.rank.distributed import Position, joined, wait_for_all
from bench.rank.fault_injection import commit
from bench.rank.instrumentation import MemoryInstrumentation, PhaseMarks, TracedWindow, entered_in, trace
from bench.rank.messages import RankOrder
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import (
    ATTENTION_PAIRS,
    DATA_WAIT_SECONDS,
    LEARNING_RATE,
    LOSS,
    MEASURED_MFU,
    MFU,
    OBSERVER_SECONDS,
    PAYLOAD_BYTES,
    PHASE_SECONDS,
    STEP_SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
)
from collectors.rank import flight_recorder, profiler
from collectors.rank.action_clock import host_clock_name, make_action_clock
from collectors.rank.flight_recorder import OTHER_AXIS, axes_of_groups
from collectors.rank.memory import make_memory
from collectors.rank.step_clock import StepTimes, make_clock
from collectors.sample_log import Mark, Note, Reading, SampleLog, TimedActions
from collectors.traces.analyzers.summary import breakdowns, why_no_communication
from workloads.core.data import Batches, NoBatches, make_batches, to_device
from workloads.core.mesh import make_mesh
from workloads.protocols import CountsPairs, CountsPayload, KnowsNotes, RunsStages, Workload


class StepSpeed:
    """Speed of one rank's steps: tokens per second and MFU, logged while the run still goes on.

    The reason for an absent figure is not logged here: the run's own figures have the same limits and give it.
    """

    def __init__(
        self, case: Case, *, tokens: float, peak: Peak | Absent, ceiling_flops_per_second: float | None
    ) -> None:
        """tokens: tokens that the rank counts per step.

        ceiling_flops_per_second: see `bench.runs.hardware_baselines.Ceiling`.
        """
        self._case = case
        self._tokens = tokens
        limits = {
            MFU: peak.flops_per_second if isinstance(peak, Peak) else None,
            MEASURED_MFU: ceiling_flops_per_second,
        }
        self._limits: dict[Metric, float] = {metric: limit for metric, limit in limits.items() if limit is not None}

    def samples(self, step_s: float) -> list[Sample]:
        """Return the figures of a step of this duration; those that cannot be known are left out.

        A rank that trains on no batch has no tokens. An MFU above 1 is impossible and left out too.
        """
        achieved = flops_per_second_per_device(self._case.shape, self._case.ranks, step_s)
        return [
            *([TOKENS_PER_SECOND.at(self._tokens / step_s)] if self._tokens else []),
            *(metric.at(achieved / limit) for metric, limit in self._limits.items() if achieved <= limit),
        ]


def measure(order: RankOrder, log: SampleLog, position: Position) -> None:
    """Run all steps of the order's case as one rank, and log what is measured.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the workload raises.
    """
    case, spec = order.case, order.case.spec()
    with joined(order, log, before_meeting=_warm_profiler if case.trace_steps else _do_nothing) as device:
        mesh = make_mesh(spec.mesh(case), case.device, high_priority=spec.high_priority_axes(case))
        marks = PhaseMarks(make_clock(device), make_memory(device))
        workload: Workload = resolve_name(spec.entry)(case, mesh, marks.phase)
        with closing(make_batches(case, spec.place_of(case, order.rank))) as batches:
            _Rank(order, log, position, device, mesh, marks, workload, batches).run(order.looks)


def _warm_profiler(device: torch.device) -> None:
    """Start the profiler once if the forkserver could not (a torch for GPUs)."""
    if not profiler.may_start_before_fork():
        profiler.warm(device)


def _do_nothing(device: torch.device) -> None:
    """Stand in for `_warm_profiler` where there is no profiler window."""


class _Rank:
    """The training loop of one rank, and its state from step to step."""

    def __init__(
        self,
        order: RankOrder,
        log: SampleLog,
        position: Position,
        device: torch.device,
        mesh: DeviceMesh,
        marks: PhaseMarks,
        workload: Workload,
        batches: Batches | NoBatches,
    ) -> None:
        self._order = order
        self._log = log
        self._position = position
        self._device = device
        self._mesh = mesh
        self._marks = marks
        self._clock = marks.clock
        self._memory = marks.memory
        self._workload = workload
        self._batches = batches
        self._ends: deque[list[Sample]] = deque()  # Samples of ended steps whose times are not known yet.
        self._observer_ns = 0
        self._tokens = 0.0
        case, spec = order.case, order.case.spec()
        # Ranks that share their sequences share their tokens, so that the tokens of all ranks add up to the batch's.
        share = spec.data_ranks(case) / spec.training_ranks(case)
        self._step_tokens = case.shape.sequence * batches.sequences * share
        self._speed = StepSpeed(
            case,
            tokens=self._step_tokens,
            peak=peak_of(torch.cuda.get_device_name(device) if device.type == "cuda" else None, case.precision),
            ceiling_flops_per_second=order.ceiling_flops_per_second,
        )
        self._logged = 0
        self._is_loss_finite = True

    def run(self, looks: InstrumentationOptions) -> None:
        """Warm up and measure; then trace, time pipeline actions and measure memory in steps of their own."""
        case = self._order.case
        for text in self._workload.notes() if isinstance(self._workload, KnowsNotes) else ():
            self._note(text)
        self._steps(case.warm_up, "warm_up")
        wait_for_all(self._device)
        self._measured(looks.trace_every or case.steps)
        if case.trace_steps:
            self._trace()
            if isinstance(self._workload, RunsStages):
                self._time_actions(self._workload)
        self._look_at_memory(looks)

    def _measured(self, every: int) -> None:
        """Run all measured steps, with a profiler window after each group of `every` steps but the last.

        The caller runs the window after the last group.
        """
        steps = self._order.case.steps
        for done in range(0, steps, every):
            if done:
                self._trace()
                wait_for_all(self._device)
            self._steps(min(every, steps - done), "measured")
            wait_for_all(self._device)

    def _steps(self, count: int, mark: Mark) -> None:
        self._marks.start()
        self._observer_ns = 0
        for number in range(count):
            loss = self._step()
            observer_ns = self._observer_ns + self._marks.take_asking_ns()
            begun_ns = time.perf_counter_ns()
            self._clock.end_step(loss)
            observer = OBSERVER_SECONDS.at(observer_ns / 1e9)
            memory = self._memory.end_step(is_last=number == count - 1)
            self._ends.append([*memory, *self._learning_rate(), observer])
            self._position.step += 1
            self._write(self._clock.finished(), mark)
            self._observer_ns = time.perf_counter_ns() - begun_ns
        self._write(self._clock.drain(), mark)

    def _strike(self) -> None:
        fault = self._order.fault
        if fault is not None and (fault.rank, fault.step) == (self._order.rank, self._position.step):
            commit(fault)

    def _step(self) -> torch.Tensor | None:
        self._strike()
        with self._marks.phase("data"):
            tokens_bs = to_device(next(self._batches), self._device)
        return self._workload.step(tokens_bs)

    def _write(self, finished: list[StepTimes], mark: Mark) -> None:
        """Log the steps whose times are known by now; on a GPU, some steps after they were queued."""
        for times in finished:
            self._tokens += self._step_tokens
            samples = [
                STEP_SECONDS.at(times.step_s),
                *(PHASE_SECONDS.at(seconds, phase=phase) for phase, seconds in times.phases_s.items()),
                *([] if times.data_wait_s is None else [DATA_WAIT_SECONDS.at(times.data_wait_s)]),
                TOKENS.at(self._tokens),
                *(self._speed.samples(times.step_s) if mark == "measured" else []),
                *self._loss(times.loss),
                *self._ends.popleft(),
            ]
            self._log.write(self._reading(mark, self._logged, samples))
            self._logged += 1

    def _learning_rate(self) -> list[Sample]:
        """Return the learning rate of the last step; empty for a rank whose optimizer updates nothing itself."""
        rates = [group["lr"] for group in self._workload.optimizer.param_groups if "lr" in group]
        return [LEARNING_RATE.at(rates[0])] if rates else []

    def _loss(self, loss: float | None) -> list[Sample]:
        if loss is None:
            return []
        if math.isfinite(loss):
            return [LOSS.at(loss)]
        if self._is_loss_finite:
            self._is_loss_finite = False
            self._note(f"rank {self._order.rank}: the loss is {loss} from step {self._logged} on")
        return []

    def _trace(self) -> None:
        """Run a profiler window; log its figures and what the rank handed to collectives in it."""
        order, told = self._order, Counter[str]()

        def warm_up() -> None:
            self._step()
            self._position.step += 1
            wait_for_all(self._device)

        def run_step() -> None:
            self._step()
            if isinstance(self._workload, CountsPayload):
                told.update(self._workload.payload_bytes())
            self._position.step += 1

        case = order.case
        traced = trace(
            case.trace_steps,
            run_step,
            warm_up=warm_up,
            device=self._device,
            backend=case.backend,
            rank=order.rank,
            ranks=case.ranks,
            folder=Path(order.folder),
        )
        if traced.has_figures:
            save_timeline(traced.timeline, Path(order.folder), order.trial)
        if order.keep_trace:
            traced.window.export(Path(order.folder) / f"rank{order.rank}.trace.json.gz")
        for text in traced.notes:
            self._note(f"rank {order.rank}: {text}")
        if traced.has_figures and (reason := why_no_communication(traced.timeline)) is not None:
            self._note(f"communication is absent: {reason}")
        payloads = self._payloads(traced, told)
        pairs = (
            [ATTENTION_PAIRS.at(self._workload.attention_pairs())] if isinstance(self._workload, CountsPairs) else []
        )
        figures = [breakdown.samples() for breakdown in breakdowns(traced.timeline)] if traced.has_figures else []
        # Counted figures are logged even if no step was traced completely.
        for samples in figures or [[]]:
            self._log.write(self._reading("traced", self._logged, samples + payloads + pairs))
            self._logged += 1

    def _payloads(self, traced: TracedWindow, told: Mapping[str, int]) -> list[Sample]:
        """Return the mean payload of a step. told: bytes that the workload counted; the spec names their mesh axis."""
        case = self._order.case
        # By collective and axis: what the workload counted, then what the Flight Recorder has of the same steps.
        told_axes: dict[str, str] = {transfer.collective: transfer.axis for transfer in case.spec().transfers(case)}
        payload_bytes = Counter({(name, told_axes.get(name, OTHER_AXIS)): total for name, total in told.items()})
        axes = axes_of_groups(self._mesh)
        try:
            for entered in entered_in(traced, case):
                payload_bytes[entered.name, axes.get(entered.group, OTHER_AXIS)] += entered.payload_bytes
        except flight_recorder.Forgotten as error:
            self._note(f"counted traffic is absent: {error}")
        return [
            PAYLOAD_BYTES.at(total / case.trace_steps, collective=name, axis=axis)
            for (name, axis), total in payload_bytes.items()
            if total
        ]

    def _time_actions(self, workload: RunsStages) -> None:
        """Log what each action of a pipeline's stages took, in steps that all ranks begin together."""
        clock, clock_name = make_action_clock(self._device), host_clock_name()
        workload.mark_actions(clock.mark, clock.tell_message)
        for _ in range(self._order.case.trace_steps):
            wait_for_all(self._device)
            begun_ns = clock.begin_step()
            self._step()
            self._log.write(
                TimedActions(
                    trial=self._order.trial,
                    time_ns=time.time_ns(),
                    step=self._position.step,
                    begun_ns=begun_ns,
                    clock=clock_name,
                    actions=clock.end_step(),
                    messages=clock.messages(),
                    core_waits_ns=clock.core_waits_ns(),
                )
            )
            self._position.step += 1
        workload.mark_actions(None)

    def _look_at_memory(self, looks: InstrumentationOptions) -> None:
        def run_step() -> None:
            self._step()
            self._position.step += 1

        memory = MemoryInstrumentation(
            self._order, self._device, self._workload, self._marks, run_step=run_step, note=self._note
        )
        self._log.write(self._reading("memory", self._logged, memory.samples(looks)))

    def _reading(self, mark: Mark, step: int, samples: list[Sample]) -> Reading:
        return Reading(trial=self._order.trial, time_ns=time.time_ns(), mark=mark, step=step, samples=samples)

    def _note(self, text: str) -> None:
        self._log.write(Note(trial=self._order.trial, time_ns=time.time_ns(), text=text))
