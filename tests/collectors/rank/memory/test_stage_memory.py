"""What stages hold, from bytes that are known by hand and from pipelines that run."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch.distributed as dist

from collectors.metrics.metric import Sample
from collectors.metrics.rank import STAGE_ACTIVATION_BYTES
from collectors.rank.memory import StageMemory, live_tensor_bytes
from tests.support.ranks import OnRanks
from tests.workloads.training.setups import SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready
from workloads.cost_models.schedules import Action, ActionKind, Pipeline
from workloads.options import microbatch
from workloads.pipeline_parallel.memory import activations_by_stage
from workloads.pipeline_parallel.spec import counts
from workloads.protocols import ReceivesMessages, RunsStages
from workloads.registry import spec_of
from workloads.spec import OptionValue, Precision


class FakeMemory:
    """Bytes that actions leave and free."""

    def __init__(self) -> None:
        self.held_bytes = 0

    def __call__(self) -> int:
        return self.held_bytes

    def add(self, added_bytes: int) -> None:
        self.held_bytes += added_bytes


def play(*actions: tuple[ActionKind, int, int, int]) -> list[Sample]:
    """Actions by kind, stage and microbatch, each with the bytes that it adds."""
    memory = FakeMemory()
    stages = StageMemory(memory)
    for kind, stage, number, added_bytes in actions:
        with stages.mark(Action(kind=kind, stage=stage, microbatch=number)):
            memory.add(added_bytes)
    return stages.samples()


def test_a_stage_holds_what_its_forwards_left_until_their_backwards_end() -> None:
    assert play(
        ("forward", 1, 0, 100),
        ("forward", 1, 1, 50),
        ("backward", 1, 0, 900),  # Gradients come; they are no activations.
        ("forward", 1, 2, 60),
        ("backward", 1, 1, -50),
        ("backward", 1, 2, -60),
    ) == [STAGE_ACTIVATION_BYTES.at(150, stage="1")]


def test_the_stages_of_a_rank_are_told_apart() -> None:
    assert play(("forward", 2, 0, 7), ("forward", 0, 0, 5), ("backward", 2, 0, -7), ("forward", 2, 1, 8)) == [
        STAGE_ACTIVATION_BYTES.at(5, stage="0"),
        STAGE_ACTIVATION_BYTES.at(8, stage="2"),
    ]


def test_a_parted_backward_holds_until_the_end_of_its_later_half() -> None:
    assert play(
        ("forward", 0, 0, 10), ("input_backward", 0, 0, -4), ("forward", 0, 1, 10), ("weight_backward", 0, 0, -6)
    ) == [STAGE_ACTIVATION_BYTES.at(20, stage="0")]


class Lingering:
    """What an earlier backward left in a cycle of references: it is freed when Python's collector comes by."""

    def __init__(self, memory: FakeMemory, held_bytes: int) -> None:
        self.itself = self
        memory.add(held_bytes)
        weakref.finalize(self, memory.add, -held_bytes)


def test_what_the_collector_frees_meanwhile_is_not_taken_from_a_forward() -> None:
    memory = FakeMemory()
    stages = StageMemory(memory)
    thresholds = gc.get_threshold()
    gc.collect()
    Lingering(memory, 30)
    try:
        with stages.mark(Action(kind="forward", stage=0, microbatch=0)):
            memory.add(100)
            gc.set_threshold(1, 1, 1)
            assert len([[] for _ in range(1000)]) == 1000  # Each list is a reason to collect.
    finally:
        gc.set_threshold(*thresholds)
    assert stages.samples() == [STAGE_ACTIVATION_BYTES.at(100, stage="0")]


def test_the_collector_goes_on_after_a_forward_that_fails() -> None:
    stages = StageMemory(FakeMemory())
    with pytest.raises(ZeroDivisionError), stages.mark(Action(kind="forward", stage=0, microbatch=0)):
        raise ZeroDivisionError
    assert gc.isenabled()


def held_by_stages(setup: SmallSetup) -> dict[int, float]:
    """What this rank's stages hold in one step of the product."""
    ready = make_ready(setup)
    workload = ready.workload
    assert isinstance(workload, RunsStages)
    ready.step()
    followed: list[StageMemory] = []

    def follow(stages: StageMemory) -> None:
        followed.append(stages)
        workload.mark_actions(stages.mark)

    assert isinstance(workload, ReceivesMessages)
    live_tensor_bytes(
        ready.step,
        workload.model,
        workload.optimizer,
        buffers=workload.receive_buffers(),
        on_tracking=lambda held_bytes: follow(StageMemory(held_bytes)),
    )
    dist.barrier()
    return {int(sample.labels["stage"]): sample.value for sample in followed[0].samples()}


STRATEGIES: tuple[tuple[str, dict[str, OptionValue]], ...] = (
    ("gpipe", {"microbatches": 4}),
    ("one_f_one_b", {"microbatches": 4}),
    ("interleaved", {"microbatches": 4, "stages": 2}),
    ("zero_bubble", {"microbatches": 4, "stages": 2, "variant": "zbv"}),
)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("strategy", "options"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_stages_hold_what_the_law_says(
    strategy: str, options: dict[str, OptionValue], precision: Precision, on_ranks: OnRanks
) -> None:
    setup = small_setup(strategy, ranks=2, precision=precision, options=options)
    pipeline = spec_of(strategy).pipeline(setup)
    assert isinstance(pipeline, Pipeline)
    held: dict[int, float] = {}
    for of_rank in on_ranks(2, held_by_stages, setup):
        held |= of_rank
    law = activations_by_stage(pipeline, microbatch(setup, 1), counts(setup, pipeline.stages))
    assert [held[stage] for stage in range(pipeline.stages)] == list(law)
