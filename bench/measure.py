"""The loop of one rank: join the others, build the workload, warm up, measure step by step.

Every figure goes into the rank's log as soon as it is known; nothing is summarised here.
"""

from __future__ import annotations

import importlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from bench.engines.messages import RankOrder
from bench.faults import commit
from bench.joining import join, take_device, wait_for_all
from bench.position import Position
from collectors import allocator, flight_recorder
from collectors.action_clock import host_clock_name, make_action_clock
from collectors.catalogue.communication import ATTENTION_PAIRS, PAYLOAD_BYTES
from collectors.catalogue.step import LEARNING_RATE, LOSS, OBSERVER_SECONDS, PHASE_SECONDS, STEP_SECONDS, TOKENS
from collectors.group_axes import OTHER_AXIS, axes_of_groups
from collectors.metric import Sample
from collectors.profiler import Window
from collectors.sample_log import Mark, Note, Performed, Reading, SampleLog
from collectors.stage_memory import StageMemory
from collectors.state_bytes import state_bytes
from collectors.step_clock import StepClock, StepTimes, make_clock
from collectors.traces.breakdown import breakdowns, why_no_communication
from workloads.parts.data import Batches, NoBatches, make_batches, to_device
from workloads.parts.mesh import make_mesh
from workloads.workload import CountsPairs, CountsPayload, HoldsTensors, KnowsNotes, RunsStages, Workload


def measure(order: RankOrder, log: SampleLog, position: Position) -> None:
    """Run all steps of the order's case as one rank, and log what each measured.

    Raises:
        LogUnwritable: the log cannot be written.
        Exception: whatever the workload raises.
    """
    case = order.case
    device = take_device(order)
    join(order, device)
    card = case.card()
    mesh = make_mesh(card.mesh(case), case.device)
    clock = make_clock(device)
    workload: Workload = importlib.import_module(f"workloads.{case.strategy}").build(case, mesh, clock.phase)
    batches = make_batches(case, card.place_of(case, order.rank))
    rank = _Rank(order, log, position, device, mesh, clock, workload, batches)
    try:
        rank.run()
    finally:
        batches.close()


class _Rank:
    """What the loop holds from step to step."""

    def __init__(
        self,
        order: RankOrder,
        log: SampleLog,
        position: Position,
        device: torch.device,
        mesh: DeviceMesh,
        clock: StepClock,
        workload: Workload,
        batches: Batches | NoBatches,
    ) -> None:
        self._order = order
        self._log = log
        self._position = position
        self._device = device
        self._mesh = mesh
        self._clock = clock
        self._workload = workload
        self._batches = batches
        self._memory: deque[list[Sample]] = deque()  # Of steps whose times are not known yet.
        self._observer_ns = 0
        self._tokens = 0.0
        # Ranks that share their sequences share their tokens, so that those of all ranks add up to the batch's.
        card = order.case.card()
        self._token_share = card.data_ranks(order.case) / card.training_ranks(order.case)
        self._logged = 0
        self._is_loss_finite = True
        self._stages: StageMemory | None = None

    def run(self) -> None:
        """Warm up and measure; then trace, time the actions of stages and look at memory, in steps of their own."""
        case = self._order.case
        for text in self._workload.notes() if isinstance(self._workload, KnowsNotes) else ():
            self._note(text)
        self._steps(case.warm_up, "warm_up")
        wait_for_all(self._device)
        self._steps(case.steps, "measured")
        wait_for_all(self._device)
        if case.trace_steps:
            self._trace()
            if isinstance(self._workload, RunsStages):
                self._time_actions(self._workload)
        self._measure_memory()

    def _steps(self, count: int, mark: Mark) -> None:
        self._clock.start()
        for _ in range(count):
            self._strike()
            loss = self._step()
            begun_ns = time.perf_counter_ns()
            self._clock.end_step(loss)
            observer = OBSERVER_SECONDS.at(self._observer_ns / 1e9)
            self._memory.append([*allocator.step_samples(self._device), *self._learning_rate(), observer])
            self._position.step += 1
            self._write(self._clock.finished(), mark)
            self._observer_ns = time.perf_counter_ns() - begun_ns
        self._write(self._clock.drain(), mark)

    def _strike(self) -> None:
        fault = self._order.fault
        if fault is not None and (fault.rank, fault.step) == (self._order.rank, self._position.step):
            commit(fault)

    def _step(self) -> torch.Tensor | None:
        with self._clock.phase("data"):
            tokens_bs = to_device(next(self._batches), self._device)
        return self._workload.step(tokens_bs)

    def _write(self, finished: list[StepTimes], mark: Mark) -> None:
        """Log steps whose times are known by now; on a GPU that is some steps after they were queued."""
        shape = self._order.case.shape
        for times in finished:
            self._tokens += shape.sequence * self._batches.sequences * self._token_share
            samples = [
                STEP_SECONDS.at(times.step_s),
                *(PHASE_SECONDS.at(seconds, phase=phase) for phase, seconds in times.phases_s.items()),
                TOKENS.at(self._tokens),
                *self._loss(times.loss),
                *self._memory.popleft(),
            ]
            self._log.write(self._reading(mark, self._logged, samples))
            self._logged += 1

    def _learning_rate(self) -> list[Sample]:
        """That of the step just done; a rank whose optimizer updates nothing itself has none."""
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
        """A window of steps under the profiler, and what the rank handed to collectives in it."""
        order = self._order
        told: Counter[str] = Counter()
        before = flight_recorder.dump(order.case.backend)
        with Window(self._device) as window:
            for _ in range(order.case.trace_steps):
                with window.step():
                    self._step()
                if isinstance(self._workload, CountsPayload):
                    told.update(self._workload.payload_bytes())
                self._position.step += 1
        after = flight_recorder.dump(order.case.backend)
        timeline = window.timeline(order.rank)
        timeline.save(Path(order.folder) / f"rank{order.rank}.timeline.npz")
        if order.keep_trace:
            window.export(Path(order.folder) / f"rank{order.rank}.trace.json.gz")
        if (reason := why_no_communication(timeline)) is not None:
            self._note(f"communication is absent: {reason}")
        payloads = self._payloads(before, after, told)
        pairs = (
            [ATTENTION_PAIRS.at(self._workload.attention_pairs())] if isinstance(self._workload, CountsPairs) else []
        )
        for breakdown in breakdowns(timeline):
            self._log.write(self._reading("traced", self._logged, breakdown.samples() + payloads + pairs))
            self._logged += 1

    def _payloads(self, before: bytes, after: bytes, told: Mapping[str, int]) -> list[Sample]:
        """Payload of a mean step. told: what the workload counted itself, over the axis that the card names for it."""
        case = self._order.case
        told_axes: dict[str, str] = {transfer.collective: transfer.axis for transfer in case.card().transfers(case)}
        payload_bytes = Counter({(name, told_axes.get(name, OTHER_AXIS)): total for name, total in told.items()})
        axes = axes_of_groups(self._mesh)
        try:
            for entered in flight_recorder.entered_since(before, after):
                payload_bytes[entered.name, axes.get(entered.group, OTHER_AXIS)] += entered.payload_bytes
        except flight_recorder.Forgotten as error:
            self._note(f"counted traffic is absent: {error}")
        return [
            PAYLOAD_BYTES.at(total / case.trace_steps, collective=name, axis=axis)
            for (name, axis), total in payload_bytes.items()
            if total
        ]

    def _time_actions(self, workload: RunsStages) -> None:
        """What each action of a pipeline's stages took, in steps that all ranks begin together."""
        clock, clock_name = make_action_clock(self._device), host_clock_name()
        workload.mark_actions(clock.mark)
        for _ in range(self._order.case.trace_steps):
            wait_for_all(self._device)
            begun_ns = clock.begin_step()
            self._step()
            self._log.write(
                Performed(
                    trial=self._order.trial,
                    time_ns=time.time_ns(),
                    step=self._position.step,
                    begun_ns=begun_ns,
                    clock=clock_name,
                    actions=clock.end_step(),
                )
            )
            self._position.step += 1
        workload.mark_actions(None)

    def _measure_memory(self) -> None:
        """The peak of live tensors, on the CPU; then the states that the last step left behind."""
        live = self._live_tensors() if self._device.type == "cpu" else self._allocations_of_stages()
        held = self._workload.held_tensors() if isinstance(self._workload, HoldsTensors) else None
        states = state_bytes(self._workload.model, self._workload.optimizer, held)
        self._log.write(self._reading("memory", self._logged, [*live, *states]))

    def _live_tensors(self) -> list[Sample]:
        if self._order.case.options["compile"] != "none":  # All ranks or none: a server's model has no block.
            self._note("live tensor bytes are absent: compiled blocks allocate where no tensor is seen")
            return []
        try:
            samples = allocator.live_tensor_bytes(
                self._step, self._workload.model, self._workload.optimizer, on_tracking=self._follow_stages
            )
        except allocator.CannotTrack as error:
            self._note(f"live tensor bytes are absent: {error}")
            return []
        self._position.step += 1
        return samples + self._leave_stages()

    def _allocations_of_stages(self) -> list[Sample]:
        """Allocations are made while the host queues work, so that the device need not be waited for."""
        if not isinstance(self._workload, RunsStages):
            return []
        self._follow_stages(partial(torch.cuda.memory_allocated, self._device))
        self._step()
        self._position.step += 1
        return self._leave_stages()

    def _follow_stages(self, held_bytes: Callable[[], int]) -> None:
        """From here on, in a workload of stages, see what each of them holds."""
        if isinstance(self._workload, RunsStages):
            self._stages = StageMemory(held_bytes)
            self._workload.mark_actions(self._stages.mark)

    def _leave_stages(self) -> list[Sample]:
        """What was seen of them."""
        if self._stages is None or not isinstance(self._workload, RunsStages):
            return []
        self._workload.mark_actions(None)
        return self._stages.samples()

    def _reading(self, mark: Mark, step: int, samples: list[Sample]) -> Reading:
        return Reading(trial=self._order.trial, time_ns=time.time_ns(), mark=mark, step=step, samples=samples)

    def _note(self, text: str) -> None:
        self._log.write(Note(trial=self._order.trial, time_ns=time.time_ns(), text=text))
