"""The expected step of every strategy: closed forms, events played through one by one, and what is absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.case import Case
from tests.bench.made.examples import make_case
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import Interconnect, NetworkLevel, one_level, traffic_times_s
from workloads.cost_models.schedules import Action, Pipeline, actions
from workloads.cost_models.shape import PRESETS, Shape
from workloads.cost_models.step_time import ComputeTime, StepTime
from workloads.options import rerun_ratio
from workloads.pipeline_parallel import expected_step
from workloads.pipeline_parallel.spec import counts
from workloads.registry import SPECS

RATE = 1e11
FREE = Link(bandwidth_bytes_per_second=1e30)
LINK = Link(bandwidth_bytes_per_second=1e9, latency_s=1e-5)
TRAINING = [spec.name for spec in SPECS if spec.kind == "training"]
PIPELINES = [spec.name for spec in SPECS if spec.name in {"gpipe", "one_f_one_b", "interleaved", "zero_bubble"}]
HEADLESS = Shape(layers=16, width=256, heads=4, kv_heads=4, mlp_width=512, vocabulary=2, sequence=512, batch=32)
"""Its head is less than a thousandth of its FLOPs, so that stages of equally many blocks are equal."""


def case_of(strategy: str, ranks: int, shape: Shape, **options: str | int | bool) -> Case:
    case = make_case(strategy, ranks=ranks)
    return replace(case, model=shape, options={**case.options, **options})


def compute_of(case: Case) -> ComputeTime:
    """The equal share of a rank at RATE: a third is forward, which checkpointing repeats."""
    whole_s = case.shape.flops_per_step() / case.spec().training_ranks(case) / RATE
    again_s = rerun_ratio(case) * whole_s / 3
    return ComputeTime(forward_s=whole_s / 3, backward_s=2 / 3 * whole_s + again_s, recomputed_s=again_s)


def step_or_absent(case: Case, interconnect: Interconnect | Absent) -> StepTime | Absent:
    return expected_step.step_of(case, case.spec(), compute=compute_of(case), interconnect=interconnect)


def step_of(case: Case, interconnect: Interconnect | Absent) -> StepTime:
    step = step_or_absent(case, interconnect)
    assert isinstance(step, StepTime)
    return step


def two_levels(inside: Link | Absent, across: Link | Absent, *, node: int, ranks: int) -> Interconnect:
    return Interconnect(
        levels=(
            NetworkLevel(name="node", ranks=node, link=inside),
            NetworkLevel(name="cluster", ranks=ranks, link=across),
        )
    )


@pytest.mark.parametrize("strategy", TRAINING)
def test_every_strategy_has_a_step_of_its_computing_and_what_it_waits_for(strategy: str) -> None:
    ranks = 1 if strategy == "single" else 4
    case = case_of(strategy, ranks, replace(PRESETS["tiny"], layers=8))
    step = step_of(case, one_level(LINK, ranks))
    assert step.compute.step_s == pytest.approx(case.shape.flops_per_step() / case.spec().training_ranks(case) / RATE)
    assert (step.bubble_s > 0) == (case.spec().pipeline(case) is not None)
    assert (step.communication_s > 0) == (ranks > 1)
    assert step.step_s == step.compute.step_s + step.bubble_s + step.exposed_s


@pytest.mark.parametrize("strategy", TRAINING)
def test_without_a_link_only_a_strategy_that_sends_nothing_has_a_step(strategy: str) -> None:
    ranks = 1 if strategy == "single" else 4
    case = case_of(strategy, ranks, replace(PRESETS["tiny"], layers=8))
    step = step_or_absent(case, Absent(reason="no sweep"))
    assert step == (step_of(case, one_level(LINK, 1)) if ranks == 1 else Absent(reason="no sweep"))


@pytest.mark.parametrize("strategy", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("microbatches", [8, 16])
def test_equal_stages_add_p_minus_1_microbatches_to_m(strategy: str, ranks: int, microbatches: int) -> None:
    step = step_of(case_of(strategy, ranks, HEADLESS, microbatches=microbatches), one_level(FREE, ranks))
    assert step.bubble_s / step.compute.step_s == pytest.approx((ranks - 1) / microbatches, rel=0.02)
    assert step.exposed_s == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("ranks", "stages", "microbatches"), [(2, 2, 8), (4, 2, 8), (4, 4, 16), (8, 2, 16)])
def test_interleaved_stages_divide_the_bubble_by_the_stages_of_a_rank(
    ranks: int, stages: int, microbatches: int
) -> None:
    case = case_of("interleaved", ranks, HEADLESS, microbatches=microbatches, stages=stages)
    step = step_of(case, one_level(FREE, ranks))
    assert step.bubble_s / step.compute.step_s == pytest.approx((ranks - 1) / microbatches / stages, rel=0.02)


def test_stages_with_a_head_wait_for_the_last() -> None:
    # One microbatch, one rank at a time: the step is all computing, however it is cut.
    case = case_of("pipeline_naive", 4, PRESETS["tiny"])
    step = step_of(case, one_level(FREE, 4))
    assert step.step_s == pytest.approx(4 * step.compute.step_s)
    # Many: the step is the last stage's work, plus the fill through the three before it and the drain back.
    case = case_of("gpipe", 4, replace(PRESETS["tiny"], batch=64), microbatches=64)
    head_s = 6 * 128 * 512 * case.shape.tokens / RATE
    block_s = (case.shape.flops_per_step() / RATE - head_s) / 4
    step = step_of(case, one_level(FREE, 4))
    assert step.step_s == pytest.approx(block_s + head_s + 3 * block_s / 64)


def test_a_stage_of_recomputed_blocks_takes_a_third_more_of_their_time() -> None:
    plain, again = (
        step_of(case_of("gpipe", 4, HEADLESS, microbatches=8, checkpoint=checkpoint), one_level(FREE, 4))
        for checkpoint in ("none", "full")
    )
    assert again.step_s / plain.step_s == pytest.approx(4 / 3, rel=1e-3)


def test_each_message_of_a_naive_pipeline_delays_the_step() -> None:
    case = case_of("pipeline_naive", 4, PRESETS["tiny"], clip=0)
    link = two_levels(LINK, Link(bandwidth_bytes_per_second=1e7, latency_s=1e-3), node=2, ranks=4)
    size_bytes = case.spec().pipeline(case).boundary_bytes  # type: ignore[union-attr]
    inside_s, across_s = 1e-5 + size_bytes / 1e9, 1e-3 + size_bytes / 1e7
    # Of the boundaries 0-1, 1-2 and 2-3 only the middle one crosses nodes; each is crossed forth and back.
    assert step_of(case, link).exposed_s == pytest.approx(2 * (2 * inside_s + across_s))


# Every schedule, played through by events


def events_s(case: Case, pipeline: Pipeline, message_s: dict[tuple[int, int], float]) -> float:
    """Return when the last action ends: each start is raised to what it waits for, until none has to be raised."""
    order = actions(pipeline)
    rank_of = {action: rank for rank, of_rank in enumerate(order) for action in of_rank}
    lasting_s = {action: action_s(case, pipeline, action) for action in rank_of}
    starts_s = dict.fromkeys(rank_of, 0.0)
    while True:
        raised = False
        for of_rank in order:
            for before, action in zip((None, *of_rank), of_rank, strict=False):
                earliest_s = 0.0 if before is None else starts_s[before] + lasting_s[before]
                for needed in needed_by(action, pipeline, rank_of):
                    delay_s = message_s[rank_of[needed], rank_of[action]] if needed.stage != action.stage else 0.0
                    earliest_s = max(earliest_s, starts_s[needed] + lasting_s[needed] + delay_s)
                if earliest_s > starts_s[action] + 1e-15:
                    starts_s[action], raised = earliest_s, True
        if not raised:
            return max(starts_s[action] + lasting_s[action] for action in rank_of)


def needed_by(action: Action, pipeline: Pipeline, planned: dict[Action, int]) -> Iterator[Action]:
    candidates = {
        "forward": [("forward", -1)],
        "backward": [("forward", 0), ("backward", 1)],
        "input_backward": [("forward", 0), ("input_backward", 1)],
        "weight_backward": [("input_backward", 0)],
    }[action.kind]
    for kind, step in candidates:
        needed = action._replace(kind=kind, stage=action.stage + step)  # type: ignore[arg-type]
        if needed in planned:
            yield needed


def action_s(case: Case, pipeline: Pipeline, action: Action) -> float:
    """Return the time of an action by the FLOPs of its products."""
    shape, blocks = case.shape, counts(case, pipeline.stages)[action.stage]
    tokens = shape.tokens / pipeline.microbatches
    block = 2 * shape.block_parameters() + 4 * shape.query_width * shape.sequence
    head = 2 * shape.width * shape.vocabulary if action.stage == pipeline.stages - 1 else 0
    forward_s = tokens * (blocks * block + head) / RATE
    ratios = {"forward": 1, "backward": 2, "input_backward": 1, "weight_backward": 1}
    if action.stage == 0:
        ratios |= {"input_backward": 0, "weight_backward": 2}
    return ratios[action.kind] * forward_s


@settings(max_examples=60, deadline=None)
@given(
    strategy=st.sampled_from(PIPELINES),
    ranks=st.sampled_from([2, 4]),
    microbatches=st.sampled_from([1, 2, 4, 8]),
    variant=st.sampled_from(["interleaved", "zbv"]),
    is_uneven=st.booleans(),
    vocabulary=st.sampled_from([2, 512, 4096]),
    inside=st.floats(1e6, 1e9),
    across=st.floats(1e6, 1e9),
    latency_s=st.floats(0, 1e-3),
)
def test_a_pipeline_takes_as_long_as_its_events(
    strategy: str,
    ranks: int,
    microbatches: int,
    variant: str,
    is_uneven: bool,
    vocabulary: int,
    inside: float,
    across: float,
    latency_s: float,
) -> None:
    options: dict[str, str | int | bool] = {"microbatches": microbatches, "clip": 0}
    if strategy == "zero_bubble":
        options["variant"] = variant
    elif is_uneven and strategy != "interleaved":
        options["balance"] = "flops"
    case = case_of(strategy, ranks, replace(PRESETS["tiny"], layers=8, vocabulary=vocabulary), **options)
    assume(not case.spec().refusals(case))
    pipeline = case.spec().pipeline(case)
    assert pipeline is not None
    links = (
        Link(bandwidth_bytes_per_second=inside),
        Link(bandwidth_bytes_per_second=across, latency_s=latency_s),
    )
    message_s = {}
    for source in range(ranks):
        for other in range(ranks):
            is_across = source // 2 != other // 2
            # A message out of a node passes its rank's link and the node's, at once; the slower decides.
            slower = min(inside, across) if is_across else inside
            late_s = latency_s if is_across else 0.0
            message_s[source, other] = 0.0 if source == other else late_s + pipeline.boundary_bytes / slower
    interconnect = two_levels(*links, node=2, ranks=ranks) if ranks > 2 else one_level(links[0], ranks)
    assert step_of(case, interconnect).step_s == pytest.approx(events_s(case, pipeline, message_s), rel=1e-9)


# Levels


def test_three_d_takes_the_level_that_each_axis_crosses() -> None:
    case = case_of("three_d", 8, replace(PRESETS["tiny"], batch=16), pipeline_ranks=2, tensor_ranks=2)
    slow = Link(bandwidth_bytes_per_second=1e7)
    axes, transfers = case.spec().mesh(case), case.spec().transfers(case)
    # Nodes of 4 hold a pipeline of 2 stages of 2 tensor ranks: only replicas communicate across.
    by_level = traffic_times_s(transfers, axes, two_levels(LINK, slow, node=4, ranks=8), "gloo")
    alone = {axis: [each for each in transfers if each.axis == axis] for axis in axes}
    for axis in ("stage", "tensor"):
        assert by_level[axis] == traffic_times_s(alone[axis], axes, one_level(LINK, 8), "gloo")[axis]
    # The four ranks of a node average with their twins at once, over one link.
    one_s = sum(2 * each.payload_bytes / 2 for each in alone["data"]) / 1e7
    assert by_level["data"] == pytest.approx(4 * one_s)


def test_three_d_of_8b_on_eight_nodes_by_hand() -> None:
    """One stage of 8 tensor ranks fills a node; 4 replicas of 2 stages."""
    case = case_of("three_d", 64, replace(PRESETS["8b"], batch=64), tensor_ranks=8, pipeline_ranks=2)
    case = replace(case, device="cuda", backend="nccl")
    inside, outside = 370e9, 45e9
    # Of a tensor's bytes, each rank of a ring of n sends 2 (n - 1) / n to all_reduce it and (n - 1) / n to gather it.
    factors = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    sent = dict.fromkeys(("data", "stage", "tensor"), 0.0)
    ranks = {"data": 4, "stage": 2, "tensor": 8}
    for each in case.spec().transfers(case):
        share = 1.0
        if each.collective != "send":
            share = factors[each.collective] * (ranks[each.axis] - 1) / ranks[each.axis]
        sent[each.axis] += share * each.payload_bytes
    links = [Link(bandwidth_bytes_per_second=rate) for rate in (inside, outside, 8 * outside)]
    found = {
        "flat": one_level(links[1], 64),
        "two": two_levels(links[0], links[1], node=8, ranks=64),
        "rails": two_levels(links[0], links[2], node=8, ranks=64),
    }
    expected_s = {
        "flat": sum(sent.values()) / outside,
        # Outside, the 8 ranks of a node share its link.
        "two": sent["tensor"] / inside + 8 * (sent["stage"] + sent["data"]) / outside,
        "rails": sent["tensor"] / inside + (sent["stage"] + sent["data"]) / outside,
    }
    for name, interconnect in found.items():
        times = traffic_times_s(case.spec().transfers(case), case.spec().mesh(case), interconnect, "nccl")
        assert sum(times.values()) == pytest.approx(expected_s[name], rel=1e-6)
    # These figures are in docs/cost_models/communication.md.
    assert [round(seconds, 2) for seconds in expected_s.values()] == [6.85, 1.74, 0.93]


def test_a_mesh_needs_only_the_levels_that_it_crosses() -> None:
    inside = Absent(reason="nothing was measured in a node")
    across = Absent(reason="nothing was measured across nodes")
    case = case_of("three_d", 8, replace(PRESETS["tiny"], batch=16), pipeline_ranks=2, tensor_ranks=2)

    def step(links: Interconnect) -> StepTime | Absent:
        return step_or_absent(case, links)

    assert isinstance(step(two_levels(LINK, LINK, node=4, ranks=8)), StepTime)
    assert step(two_levels(LINK, across, node=4, ranks=8)) == across  # The replicas.
    assert step(two_levels(inside, LINK, node=4, ranks=8)) == inside  # Stages and tensors.
    assert isinstance(step(two_levels(LINK, across, node=8, ranks=16)), StepTime)
    # Each rank of a data axis over all ranks is in a ring that leaves the node: its slowest link was measured.
    flat = case_of("ddp", 8, replace(PRESETS["tiny"], batch=16))
    assert step_of(flat, two_levels(inside, LINK, node=4, ranks=8)) == step_of(
        flat, two_levels(LINK, LINK, node=4, ranks=8)
    )


def test_the_gathers_of_a_sharded_stage_are_paid_once_a_step() -> None:
    shape = replace(PRESETS["tiny"], batch=16)
    options: dict[str, str | int | bool] = {"pipeline_ranks": 2, "tensor_ranks": 1, "data_axis": "fsdp", "clip": 0}
    slow = one_level(Link(bandwidth_bytes_per_second=1e6), 4)
    case = case_of("three_d", 4, shape, **options)
    of_data_s = traffic_times_s(case.spec().transfers(case), case.spec().mesh(case), slow, "gloo")["data"]
    exposed_s = step_of(case, slow).exposed_s
    assert of_data_s < exposed_s < 2.2 * of_data_s  # Two stages gather one after the other, as the pipeline fills.


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "interleaved", "stages": 2, "checkpoint": "full"},
        {"data_axis": "fsdp"},
        {"sequence_parallel": True, "data_axis": "fsdp"},
    ],
)
def test_what_stages_and_update_pass_is_what_the_rank_passes(options: dict[str, str | int | bool]) -> None:
    """All collectives but sends, of the busiest rank: no byte is counted twice, or forgotten."""
    case = case_of("three_d", 8, replace(PRESETS["tiny"], batch=16, layers=8), **options)
    spec, pipeline = case.spec(), case.spec().pipeline(case)
    assert pipeline is not None

    def bytes_of(transfers: list[object]) -> dict[tuple[str, str], int]:
        sums: dict[tuple[str, str], int] = {}
        for each in transfers:
            sums[each.axis, each.collective] = sums.get((each.axis, each.collective), 0) + each.payload_bytes  # type: ignore[attr-defined]
        return sums

    whole = bytes_of([each for each in spec.transfers(case) if each.collective != "send"])
    most: dict[tuple[str, str], int] = {}
    for rank in range(pipeline.ranks):
        inside = [spec.stage_transfers(case, stage) for stage in pipeline.stages_of(rank)]
        of_rank = bytes_of([each for stage in inside for each in (*stage.each, *stage.first, *stage.last)])
        for key, size in of_rank.items():
            most[key] = max(most.get(key, 0), size)
    for key, size in bytes_of(list(spec.update_transfers(case))).items():
        most[key] = most.get(key, 0) + size
    assert most.keys() == whole.keys()
    for key, size in whole.items():
        assert size <= most[key] <= size * 1.02  # Most norms and most products may be of two ranks.


def test_what_is_not_hidden_in_truth_is_exposed_and_a_pipeline_is_simulated() -> None:
    links = one_level(LINK, 2)
    for strategy, is_simulated in (("ddp", False), ("gpipe", True)):
        options: dict[str, str | int | bool] = {} if is_simulated else {"bucket_mb": 1}
        case = case_of(strategy, 2, replace(PRESETS["tiny"], layers=8, batch=64), **options)
        compute = compute_of(case)
        whole, half, none = (
            expected_step.step_of(case, case.spec(), compute=compute, interconnect=links, hiding=hiding)
            for hiding in (1.0, 0.5, 0.0)
        )
        assert isinstance(whole, StepTime)
        assert isinstance(half, StepTime)
        assert isinstance(none, StepTime)
        if is_simulated:
            assert whole == half == none
        else:
            assert whole.exposed_s < none.exposed_s == pytest.approx(none.communication_s)
            assert half.exposed_s == pytest.approx((whole.exposed_s + none.exposed_s) / 2)
