"""What torch's own schedules do, recorded while they run on stages that compute nothing."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from workloads.cost_models.schedules import Action, ActionKind, Pipeline

ONE_STAGE: dict[str, Any] = {"naive": ScheduleGPipe, "gpipe": ScheduleGPipe, "one_f_one_b": Schedule1F1B}
STAGES: dict[str, Any] = {
    "interleaved": ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
}


class RecordedStage:
    """One stage that sends and receives nothing, and writes down what it is asked to compute."""

    submod = None

    def __init__(self, index: int, pipeline: Pipeline, rank: int, performed: list[Action]) -> None:
        self.stage_index = index
        self.num_stages = pipeline.stages
        self.group_size = pipeline.ranks
        self.group_rank = rank
        self.is_first = index == 0
        self.is_last = index == pipeline.stages - 1
        self._performed = performed

    def forward_one_chunk(self, microbatch: int, *_: Any, **__: Any) -> None:
        self._record("forward", microbatch)

    def backward_one_chunk(self, microbatch: int, *, full_backward: bool = True, **_: Any) -> None:
        self._record("backward" if full_backward else "input_backward", microbatch)

    def backward_weight_one_chunk(self, microbatch: int, **_: Any) -> None:
        self._record("weight_backward", microbatch)

    def get_fwd_recv_ops(self, _: int) -> list[Any]:
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def set_local_fwd_input(self, *_: Any) -> None:
        """Hand nothing over."""

    get_local_bwd_output = set_local_bwd_input = perform_reduce_grad = set_local_fwd_input

    def _record(self, kind: ActionKind, microbatch: int) -> None:
        self._performed.append(Action(kind=kind, stage=self.stage_index, microbatch=microbatch))


def torch_refuses(pipeline: Pipeline) -> bool:
    """Whether torch raises an error where the schedule is made."""
    try:
        _make(pipeline, rank=0, performed=[])
    except (ValueError, AssertionError):
        return True
    return False


def torch_actions(pipeline: Pipeline, rank: int) -> tuple[Action, ...]:
    """What torch asks a rank's stages to compute in one step, in order."""
    performed: list[Action] = []
    schedule = _make(pipeline, rank, performed)
    # Otherwise the first step begins with messages about shapes.
    schedule._stage_forward_initialized = schedule._stages_forward_initialized = True
    schedule._step_microbatches()
    return tuple(performed)


def _make(pipeline: Pipeline, rank: int, performed: list[Action]) -> Any:
    stages = [RecordedStage(stage, pipeline, rank, performed) for stage in pipeline.stages_of(rank)]
    if pipeline.schedule in ONE_STAGE:
        return ONE_STAGE[pipeline.schedule](stages[0], pipeline.microbatches)
    return STAGES[pipeline.schedule](stages, pipeline.microbatches)
