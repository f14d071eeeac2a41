"""The training loop of one rank: join the others, build the workload, warm up, measure steps, then instrumented steps.

Every figure goes into the rank's log as soon as it is known; nothing is summarised here.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pkgutil import resolve_name

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from bench.case import Case
from bench.rank.distributed import Membership, TrialLog, joined, wait_for_all
from bench.rank.fault_commit import commit_at
from bench.rank.instrumentation import Instrumentation, PhaseMarks
from bench.rank.messages import RankOrder
from bench.rank.saving import Saver
from bench.results.mfu import Peak, flops_per_second_per_device, peak_of
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import (
    DATA_WAIT_SECONDS,
    GRADIENT_NORM,
    LEARNING_RATE,
    LOSS,
    MEASURED_MFU,
    MFU,
    OBSERVER_SECONDS,
    PHASE_SECONDS,
    SAVING_STEP_SECONDS,
    STEP_SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
)
from collectors.rank import profiler
from collectors.rank.memory import make_memory
from collectors.rank.step_clock import StepTimes, make_clock
from collectors.sample_log import Mark
from workloads.core.data import Batches, NoBatches, make_batches, to_device
from workloads.core.mesh import make_mesh
from workloads.cost_models.absent import Absent
from workloads.protocols import KnowsNorm, KnowsNotes, Phase, Workload
from workloads.registry import entry_of


def measure(order: RankOrder, log: TrialLog) -> None:
    """Run all steps of the order's case as one rank, and log what is measured.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the workload raises.
    """
    # The forkserver has started the profiler before the fork if that is allowed.
    starts_profiler = order.case.trace_steps and not profiler.may_start_before_fork()
    with joined(order, log, before_meeting=profiler.warm if starts_profiler else None) as membership:
        device = membership.device
        marks = PhaseMarks(make_clock(device), make_memory(device))
        mesh, workload = build_workload(order.case, log, marks.phase)
        membership.leave_store(has_communicated=False)
        with closing(make_batches(order.case, order.case.spec().data_share(order.case, order.rank))) as batches:
            TrainingLoop(
                order=order,
                log=log,
                membership=membership,
                mesh=mesh,
                marks=marks,
                workload=workload,
                batches=batches,
            ).run()


def build_workload(case: Case, log: TrialLog, phase: Phase) -> tuple[DeviceMesh, Workload]:
    """Build the mesh and the workload of a case, and log the workload's notes."""
    spec = case.spec()
    mesh = make_mesh(spec.mesh(case), case.device, high_priority=spec.high_priority_axes(case))
    workload: Workload = resolve_name(entry_of(spec.name))(case, mesh, phase)
    for text in workload.notes() if isinstance(workload, KnowsNotes) else ():
        log.note(text)
    return mesh, workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """The training loop of one rank."""

    order: RankOrder
    log: TrialLog
    membership: Membership
    mesh: DeviceMesh
    marks: PhaseMarks
    workload: Workload
    batches: Batches | NoBatches

    def run(self) -> None:
        """Warm up and measure; then run the instrumented steps, which do not count towards speed."""
        case, device = self.order.case, self.membership.device
        recorder = StepRecorder(
            self.order, self.log, self.marks, self.workload, device, sequences=self.batches.sequences
        )
        instrumentation = Instrumentation(
            order=self.order,
            log=self.log,
            device=device,
            mesh=self.mesh,
            marks=self.marks,
            workload=self.workload,
            train_step=self._train_step,
        )

        self._train(case.warm_up, "warm_up", recorder)
        wait_for_all(device)

        # The measured steps, in groups. Checkpoints and profiler windows lie between the groups.
        saver = self._make_saver(recorder)
        trace_every, save_every = self.order.instrumentation.trace_every, case.save_every
        done = 0
        while done < case.steps:
            group = min([case.steps - done, *(every - done % every for every in (trace_every, save_every) if every)])
            self._train(group, "measured", recorder)
            wait_for_all(device)
            done += group
            if saver is not None and save_every and done % save_every == 0:
                saver.save()
            if trace_every and done % trace_every == 0 and done < case.steps:
                instrumentation.trace()
                wait_for_all(device)
        if saver is not None:
            saver.end()

        if case.trace_steps:
            instrumentation.trace()
            instrumentation.time_actions()
        instrumentation.measure_memory()

    def _make_saver(self, recorder: StepRecorder) -> Saver | None:
        """Return the `Saver` of checkpoints; None if the case saves none."""
        if self.order.case.save_every is None:
            return None
        return Saver(
            order=self.order,
            log=self.log,
            device=self.membership.device,
            workload=self.workload,
            train=lambda steps, is_saving: self._train(steps, "saving", recorder, is_counted=is_saving),
        )

    def _train(
        self, steps: int, mark: Mark, recorder: StepRecorder, *, is_counted: Callable[[], bool] = lambda: True
    ) -> None:
        """Run this many consecutive steps; log those at whose beginning `is_counted` returns true."""
        recorder.start()
        for number in range(steps):
            is_logged = is_counted()
            loss = self._train_step()
            recorder.end_step(loss, is_last=number == steps - 1, is_logged=is_logged)
            self.log.step += 1
            recorder.write_finished(mark)
            self.membership.leave_store(has_communicated=True)
        recorder.drain(mark)

    def _train_step(self) -> Tensor | None:
        """Run one step of the workload; return the loss, on the device."""
        commit_at(self.order.fault, rank=self.order.rank, step=self.log.step, device=self.order.case.device)
        with self.marks.phase("data"):
            tokens_bs = to_device(next(self.batches), self.membership.device)
        return self.workload.step(tokens_bs)


# The log of the steps: one reading for each, with its times, speed, loss and memory.


class StepRecorder:
    """Logs the steps of a training loop once their times are known; on a GPU, the host is some steps ahead by then."""

    def __init__(
        self,
        order: RankOrder,
        log: TrialLog,
        marks: PhaseMarks,
        workload: Workload,
        device: torch.device,
        *,
        sequences: int,
    ) -> None:
        """sequences: how many sequences the rank has in each step."""
        self._rank = order.rank
        self._log = log
        self._marks = marks
        self._workload = workload
        # Ranks that share their sequences share their tokens, so that the tokens of all ranks add up to the batch's.
        case, spec = order.case, order.case.spec()
        share = spec.data_ranks(case) / spec.training_ranks(case)
        self._step_tokens = case.shape.sequence * sequences * share
        self._speed = StepSpeed(
            case,
            tokens=self._step_tokens,
            peak=peak_of(torch.cuda.get_device_name(device) if device.type == "cuda" else None, case.precision),
            ceiling_flops_per_second=order.ceiling_flops_per_second,
        )
        self._tokens = 0.0
        self._is_loss_finite = True
        # Samples of finished steps whose times are not known yet; None for a step that is not logged.
        self._ended: deque[list[Sample] | None] = deque()
        self._begun_ns = 0  # When the recorder began to work on the last step.
        self._observer_ns = 0  # How long it worked on the last step.

    def start(self) -> None:
        """Begin the first step, or the next one after a pause."""
        self._marks.start()
        self._observer_ns = 0

    def end_step(self, loss: Tensor | None, *, is_last: bool, is_logged: bool = True) -> None:
        """End the running step, and begin the next one unless this is the last before a pause.

        is_logged: whether the step is logged.
        """
        # What observing cost in this step: reading memory in its phases, and writing the step before it.
        observer_ns = self._observer_ns + self._marks.take_reading_ns()
        self._begun_ns = time.perf_counter_ns()
        norm = self._workload.gradient_norm() if isinstance(self._workload, KnowsNorm) else None
        self._marks.clock.end_step(loss, norm)
        memory = self._marks.memory.end_step(is_last=is_last)
        # A rank whose optimizer updates nothing itself has no learning rate.
        rates = [group["lr"] for group in self._workload.optimizer.param_groups if "lr" in group]
        learning_rate = [LEARNING_RATE.at(rates[0])] if rates else []
        samples = [*memory, *learning_rate, OBSERVER_SECONDS.at(observer_ns / 1e9)]
        self._ended.append(samples if is_logged else None)

    def write_finished(self, mark: Mark) -> None:
        """Log the steps whose times are known by now."""
        for times in self._marks.clock.finished():
            self._write(times, mark)
        self._observer_ns = time.perf_counter_ns() - self._begun_ns

    def drain(self, mark: Mark) -> None:
        """Wait for the device; log all remaining steps."""
        for times in self._marks.clock.drain():
            self._write(times, mark)

    def _write(self, times: StepTimes, mark: Mark) -> None:
        ended = self._ended.popleft()
        if mark == "saving":
            if ended is not None:
                self._log.reading(mark, [SAVING_STEP_SECONDS.at(times.step_s)])
            return
        assert ended is not None, "all other steps are logged"
        self._tokens += self._step_tokens
        loss = []
        if times.loss is not None and math.isfinite(times.loss):
            loss = [LOSS.at(times.loss)]
        elif times.loss is not None and self._is_loss_finite:
            self._is_loss_finite = False
            self._log.note(f"rank {self._rank}: the loss is {times.loss} from step {self._log.readings} on")
        norm = times.gradient_norm
        samples = [
            STEP_SECONDS.at(times.step_s),
            *(PHASE_SECONDS.at(seconds, phase=phase) for phase, seconds in times.phases_s.items()),
            *([] if times.data_wait_s is None else [DATA_WAIT_SECONDS.at(times.data_wait_s)]),
            TOKENS.at(self._tokens),
            *(self._speed.samples(times.step_s) if mark == "measured" else []),
            *loss,
            *([GRADIENT_NORM.at(norm)] if norm is not None and math.isfinite(norm) else []),
            *ended,
        ]
        self._log.reading(mark, samples)


class StepSpeed:
    """Speed of one rank's steps: tokens per second and MFU, logged while the run is active.

    The reason for an absent figure is not logged here: the run's own figures have the same limits and report it.
    """

    def __init__(
        self, case: Case, *, tokens: float, peak: Peak | Absent, ceiling_flops_per_second: float | None
    ) -> None:
        """tokens: tokens that the rank counts per step.

        ceiling_flops_per_second: see `bench.store.hardware_baselines.Ceiling`.
        """
        self._case = case
        self._tokens = tokens
        self._limits: dict[Metric, float] = {}
        if isinstance(peak, Peak):
            self._limits[MFU] = peak.flops_per_second
        if ceiling_flops_per_second is not None:
            self._limits[MEASURED_MFU] = ceiling_flops_per_second

    def samples(self, step_s: float) -> list[Sample]:
        """Return the figures of a step of this duration; unknown figures are left out.

        A rank that trains on no batch has no tokens. An MFU above 1 is impossible and also left out.
        """
        achieved = flops_per_second_per_device(self._case.shape, self._case.ranks, step_s)
        return [
            *([TOKENS_PER_SECOND.at(self._tokens / step_s)] if self._tokens else []),
            *(metric.at(achieved / limit) for metric, limit in self._limits.items() if achieved <= limit),
        ]
