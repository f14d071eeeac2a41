"""What ranks of a pipeline send, hold and perform in a step is what its spec and the laws of schedules say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from tests.support.ranks import OnRanks
from tests.workloads.training.live_peaks import peak_by_category
from tests.workloads.training.setups import SMALL, SmallSetup, small_setup
from tests.workloads.training.training_runs import make_ready, train
from tests.workloads.training.watched_steps import held_states, watch_step
from workloads.cost_models.schedules import Action, Pipeline, ScheduleName, actions
from workloads.cost_models.shape import Shape
from workloads.cost_models.terms import States
from workloads.options import CAN_DEFER, FIRST_TO_DEFER, torch_release
from workloads.pipeline_parallel.stages import OF_SEVERAL_STAGES, PipelineTrainer
from workloads.registry import spec_of
from workloads.spec import LIMITS, OptionValue

WORDY = replace(SMALL, layers=5, vocabulary=600)
"""Five blocks, and a head that is worth more than one."""

CASES: list[tuple[str, int, Shape, Mapping[str, OptionValue]]] = [
    ("pipeline_naive", 2, SMALL, {}),
    ("gpipe", 4, SMALL, {"microbatches": 8}),
    ("gpipe", 3, WORDY, {"balance": "flops", "clip": 0.0}),
    ("one_f_one_b", 4, SMALL, {"microbatches": 8}),
    ("interleaved", 2, SMALL, {}),
    ("zero_bubble", 2, SMALL, {}),
    ("zero_bubble", 2, WORDY, {"variant": "zbv", "balance": "flops"}),
]
EACH_CASE = pytest.mark.parametrize(
    "setup",
    [small_setup(name, ranks=ranks, shape=shape, options=options) for name, ranks, shape, options in CASES],
    ids=[f"{name} on {ranks} {dict(options)}" for name, ranks, _, options in CASES],
)


class RecordedActions:
    """Writes down what is marked, where it begins and where it ends."""

    def __init__(self) -> None:
        self.begun: list[Action] = []
        self.ended: list[Action] = []

    @contextmanager
    def mark(self, action: Action) -> Iterator[None]:
        """Two marks are never inside of each other."""
        assert self.begun == self.ended
        self.begun.append(action)
        yield
        self.ended.append(action)


def sent_and_held(setup: SmallSetup) -> tuple[dict[str, int], int, States, list[Action]]:
    """Bytes by collective, calls that the Flight Recorder saw, states, and actions, of a third step."""
    ready = make_ready(setup)
    trainer = ready.workload
    assert isinstance(trainer, PipelineTrainer)
    for _ in range(2):
        ready.step()
    recorded = RecordedActions()
    trainer.mark_actions(recorded.mark)
    step = watch_step(ready)
    trainer.mark_actions(None)
    ready.step()
    return {**step.payload_bytes, **trainer.payload_bytes()}, step.calls, held_states(trainer), recorded.ended


@EACH_CASE
def test_ranks_send_hold_and_perform_what_the_laws_say(setup: SmallSetup, on_ranks: OnRanks) -> None:
    spec = spec_of(setup.strategy)
    pipeline = spec.pipeline(setup)
    assert pipeline is not None
    ranks = on_ranks(setup.ranks, sent_and_held, setup)
    expected = {transfer.collective: transfer for transfer in spec.transfers(setup)}
    assert max(sent["send"] for sent, *_ in ranks) == expected["send"].payload_bytes
    agreed = expected.get("all_reduce")
    for rank, (sent, calls, states, performed) in enumerate(ranks):
        assert sent.get("all_reduce", 0) == (agreed.payload_bytes if agreed else 0)
        assert calls == (agreed.calls if agreed else 0)
        assert states == spec.states(setup, rank)
        assert tuple(performed) == actions(pipeline)[rank]


@pytest.mark.parametrize("name", ["gpipe", "interleaved"])
def test_a_cut_of_unequal_stages_trains_as_one_rank_does(name: str, on_ranks: OnRanks) -> None:
    goals: dict[str, OptionValue] = {"clip": 0.01}
    setup = small_setup(name, ranks=2, shape=WORDY, options={**goals, "balance": "flops"})
    ((expected,),) = on_ranks(1, train, small_setup(shape=WORDY, options=goals), 1)
    for (record,) in on_ranks(2, train, setup, 1):
        assert record.gradients.keys() == expected.gradients.keys()
        for name_of, gradient in record.gradients.items():
            truth = expected.gradients[name_of]
            assert ((gradient - truth).norm() / truth.norm()).item() <= LIMITS["fp32"], name_of


def layouts(setup: SmallSetup) -> list[bool]:
    """Of each microbatch that a step hands to this rank's stages: whether it lies in one piece."""
    found: list[bool] = []
    ready = make_ready(setup)
    for stage in ready.workload.model.children():
        stage.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0].is_contiguous()))
    ready.step()
    return found


@pytest.mark.parametrize("name", ["gpipe", "interleaved"])
def test_microbatches_lie_in_one_piece_as_stages_are_told(name: str, on_ranks: OnRanks) -> None:
    setup = small_setup(name, ranks=2)
    stages = 2 if name == "interleaved" else 1
    assert on_ranks(2, layouts, setup) == [[True] * int(setup.options["microbatches"]) * stages] * 2


def losses(setup: SmallSetup) -> list[float | None]:
    return [record.loss for record in train(setup, 1)]


@pytest.mark.parametrize(("options", "place"), [({"variant": "interleaved"}, 1), ({"variant": "zbv"}, 0)])
def test_the_rank_of_the_last_stage_alone_has_the_loss(
    options: Mapping[str, OptionValue], place: int, on_ranks: OnRanks
) -> None:
    found = on_ranks(2, losses, small_setup("zero_bubble", ranks=2, options=options))
    assert [rank for rank, (loss,) in enumerate(found) if loss is not None] == [place]


def notes(setup: SmallSetup) -> list[str]:
    trainer = make_ready(setup).workload
    assert isinstance(trainer, PipelineTrainer)
    return list(trainer.notes())


def test_a_cut_that_is_not_of_equal_layers_is_told(on_ranks: OnRanks) -> None:
    setup = small_setup("gpipe", ranks=2, shape=WORDY, options={"balance": "flops"})
    told = ["balance=flops gave the stages, in the order of the model, 3 and 2 blocks"]
    assert on_ranks(2, notes, setup) == [told, told]


def test_a_measured_cut_is_told_alike_on_all_ranks(on_ranks: OnRanks) -> None:
    setup = small_setup("one_f_one_b", ranks=2, options={"balance": "measured"})
    first, second = on_ranks(2, notes, setup)
    assert first == second
    assert first[0].startswith("balance=measured gave the stages, in the order of the model, ")


def overflow(module: nn.Module, tokens: object, x_bsd: Tensor) -> None:
    """Make the gradient of what the module gave infinite."""
    x_bsd.register_hook(lambda gradient_bsd: torch.full_like(gradient_bsd, torch.inf))  # type: ignore[no-untyped-call]


def overflow_and_move(setup: SmallSetup) -> tuple[bool, bool]:
    """Whether this rank's gradients overflowed, and whether its weights moved."""
    ready = make_ready(setup)
    model = ready.workload.model
    if dist.get_rank() == 0:
        model.get_submodule("0.embedding").register_forward_hook(overflow)
    before = [weight.detach().clone() for weight in model.parameters()]
    ready.step()
    overflowed = not all(
        weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in model.parameters()
    )
    moved = not all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))
    return overflowed, moved


def test_all_ranks_skip_a_step_in_which_one_stage_overflows(on_ranks: OnRanks) -> None:
    setup = small_setup("gpipe", ranks=2, precision="fp16", options={"clip": 0.0})
    assert on_ranks(2, overflow_and_move, setup) == [(True, False), (False, False)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("interleaved", {}), ("zero_bubble", {"stages": 1}), ("zero_bubble", {"variant": "zbv"})]
)
def test_live_tensors_can_be_followed_where_stages_take_turns(
    name: str, options: Mapping[str, OptionValue], on_ranks: OnRanks
) -> None:
    setup = small_setup(name, ranks=2, options=options)
    for rank, live in enumerate(on_ranks(2, peak_by_category, setup)):
        states = spec_of(name).states(setup, rank)
        assert (live["parameters"], live["optimizer"]) == (states.parameters_bytes, states.optimizer_bytes)
        assert live["activations"] > 0


def deferred_and_not(setup: SmallSetup) -> tuple[list[str], list[float | None]]:
    """The actions of this rank's step with those of its messages, and the losses of two steps."""
    ready = make_ready(setup)
    schedule = ready.workload._schedule  # type: ignore[attr-defined]  # torch's, where its own order is.
    order = [str(action) for action in schedule.pipeline_order_with_comms[dist.get_rank()]]
    losses = [ready.step() for _ in range(2)]
    return order, [None if loss is None else loss.item() for loss in losses]


needs_deferring = pytest.mark.skipif(torch_release() < FIRST_TO_DEFER, reason="this torch defers no receive")


@needs_deferring
def test_receives_that_are_deferred_change_the_order_and_no_loss(on_ranks: OnRanks) -> None:
    early, late = (
        on_ranks(2, deferred_and_not, small_setup("interleaved", ranks=2, options={"defer_receives": deferred}))
        for deferred in (False, True)
    )
    assert [losses for _, losses in early] == [losses for _, losses in late]
    assert any(order != later for (order, _), (later, _) in zip(early, late, strict=True))
    assert all(sorted(order) == sorted(later) for (order, _), (later, _) in zip(early, late, strict=True))


@needs_deferring
@pytest.mark.parametrize("schedule", CAN_DEFER)
@pytest.mark.parametrize("stages_per_rank", [2, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_deferred_receives_of_a_rank_are_in_the_order_of_its_sends(
    ranks: int, stages_per_rank: int, schedule: ScheduleName
) -> None:
    """Else a rank would take one tensor for another: messages of two ranks arrive in the order in which they left."""
    pipeline = Pipeline(
        schedule=schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=2 * ranks, boundary_bytes=0
    )
    orders: Any = get_schedule_ops(
        OF_SEVERAL_STAGES[schedule],
        ranks,
        pipeline.microbatches,
        num_stages_per_rank=stages_per_rank,
        with_comms=True,
        defer_pp_recv=True,
    )
    sent: dict[tuple[int, int], list[str]] = defaultdict(list)
    received: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, order in enumerate(orders):
        for action in order:
            # Such as SEND_F of stage 1, which is RECV_F of stage 2; B goes the other way.
            way, _, kind = action.computation_type.name.partition("_")
            step = 1 if kind == "F" else -1
            if way == "SEND":
                to = pipeline.rank_of(action.stage_index + step)
                sent[rank, to].append(f"{kind} of {action.microbatch_index} to {action.stage_index + step}")
            elif way == "RECV":
                source = pipeline.rank_of(action.stage_index - step)
                received[source, rank].append(f"{kind} of {action.microbatch_index} to {action.stage_index}")
    assert sent
    assert sent == received
