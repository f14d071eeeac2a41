"""What a rank's memory holds, looked at in steps of its own, which are slower than others and no part of speed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bench.engines.messages import RankOrder
from bench.looks import Looks
from bench.phase_marks import PhaseMarks
from collectors.live_tensors import CannotTrack, live_tensor_bytes
from collectors.memory_curve import CannotSave
from collectors.memory_history import CudaRecorder, save_history
from collectors.memory_timeline import States, mark_phase, record_curve
from collectors.metric import Sample
from collectors.stage_memory import StageMemory
from collectors.state_bytes import state_bytes
from workloads.workload import HoldsTensors, ReceivesMessages, RunsStages, Workload


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
