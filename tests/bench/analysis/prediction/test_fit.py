"""What a case would hold and take on a machine that is not here, and the nearest setup that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.analysis.prediction.calibration import LINK_EFFICIENCY, PRODUCTS_SHARE
from bench.analysis.prediction.fit import fit
from bench.analysis.prediction.memory import OFFLOADED, MemoryFit, memory_fit
from bench.analysis.prediction.nearest import nearest_fit
from bench.analysis.prediction.presets import largest_preset
from bench.analysis.prediction.report import verdict_line, without_checkpointing
from bench.case import Case, check
from bench.machine.machines.machine_file import read_machine
from bench.session.case_args import CaseArgs, case_of_args, node_on
from workloads.cost_models.absent import Absent
from workloads.cost_models.step_time import StepTime
from workloads.registry import SPECS, spec_of

ONE, EIGHT = read_machine("h100x8"), read_machine("h100x8x8")


def made(strategy: str, on: str = "h100x8", *options: str, **changes: Any) -> Case:
    """A case in bf16, on all GPUs of the machine or on so many ranks."""
    dimensions: dict[str, int | None] = {
        name: changes.pop(name) for name in ("batch", "layers", "kv_heads", "sequence") if name in changes
    }
    args = CaseArgs(strategy=strategy, dimensions=dimensions, options=options, **changes)
    return case_of_args(args, None if args.ranks is None else args.ranks[0], node_on(read_machine(on)))


def levels(case: Case, on: str) -> set[tuple[str, str | None]]:
    return {(row.axis, row.level) for row in fit(case, read_machine(on)).traffic}


def test_a_case_takes_all_gpus_by_default_and_nccl() -> None:
    case = made("fsdp", "h100x8x8", batch=64)
    assert (case.ranks, case.nodes, case.device, case.backend, case.precision) == (64, 8, "cuda", "nccl", "bf16")


# Bytes by level.


def test_an_axis_crosses_the_level_that_its_ranks_cross() -> None:
    case = made("hsdp", "h100x8x8", "shard_ranks=8", batch=64)
    assert {("shard", "NVLink"), ("replicate", "InfiniBand")} <= levels(case, "h100x8x8")


def test_within_a_node_nothing_crosses_nodes() -> None:
    assert levels(made("fsdp"), "h100x8") == {("shard", "NVLink")}


def test_a_tensor_axis_within_nodes_stays_there_while_stages_are_apart() -> None:
    options = ("tensor_ranks=8", "pipeline_ranks=4", "microbatches=8")
    case = made("three_d", "h100x8x8", *options, shape_name="8b", batch=64)
    found = levels(case, "h100x8x8")
    assert {axis: level for axis, level in found if axis in ("tensor", "stage")} == {
        "tensor": "NVLink",
        "stage": "InfiniBand",
    }


def test_payload_is_what_the_spec_says() -> None:
    case = made("ddp", "h100x8x8", shape_name="1b", batch=64)
    rows = fit(case, EIGHT).traffic
    assert sum(row.payload_bytes for row in rows) == sum(each.payload_bytes for each in case.spec().transfers(case))
    assert sum(row.calls for row in rows) == sum(each.calls for each in case.spec().transfers(case))


# The step.


def test_one_rank_takes_its_products_at_the_stated_share_of_the_peak() -> None:
    """Wide layers and short sequences: nearly all of the step is products."""
    case = made("single", "h100x8", "checkpoint=none", shape_name="70b", layers=1, sequence=128, batch=512)
    predicted = fit(case, ONE)
    assert isinstance(predicted.step, StepTime)
    products_s = case.shape.flops_per_step() / (PRODUCTS_SHARE * 989.4e12)
    assert products_s < predicted.step.step_s < 1.25 * products_s
    assert isinstance(predicted.mfu, float)
    assert PRODUCTS_SHARE / 1.25 < predicted.mfu < PRODUCTS_SHARE


def test_a_collective_takes_its_ring_on_the_stated_share_of_the_link() -> None:
    case = made("ddp", "h100x8", shape_name="1b")
    (row,) = [row for row in fit(case, ONE).traffic if row.payload_bytes > 1000]
    hops_s = row.calls * 14 * 1.9e-6
    assert row.elapsed_s == pytest.approx(hops_s + row.payload_bytes * 14 / 8 / (LINK_EFFICIENCY * 450e9), rel=1e-6)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.kind == "training"], ids=lambda spec: spec.name)
def test_every_strategy_has_a_step_and_says_what_it_rests_on(spec: Any) -> None:
    found = largest_preset(spec, ONE)
    assert found is not None
    predicted = fit(found.case, ONE)
    assert isinstance(predicted.step, StepTime)
    assert isinstance(predicted.mfu, float)
    assert 0 < predicted.mfu < PRODUCTS_SHARE
    assert predicted.rests_on[0].startswith("products at 78 % [57, 83] and attention at 18 % [17, 19] of 989.4 TFLOP/s")


def test_a_step_of_measured_stages_says_that_it_takes_those_of_equal_flops() -> None:
    measured, flops, layers = (
        fit(made("gpipe", "h100x8", f"balance={word}", shape_name="1b", layers=16), ONE)
        for word in ("measured", "flops", "layers")
    )
    assert measured.step == flops.step != layers.step
    (line,) = set(measured.rests_on) - set(flops.rests_on)
    assert line == "stages that balance=flops cuts: only a run measures the times that balance=measured cuts by"


def test_a_probe_has_no_step_and_fits() -> None:
    predicted = fit(made("collectives"), ONE)
    assert predicted.memory.fits
    assert not predicted.traffic


# Memory.


def held(states_bytes: int = 60, **sizes: int) -> MemoryFit:
    return MemoryFit(parts=sizes, room_bytes=100, states_bytes=states_bytes, basis="made")


@pytest.mark.parametrize(
    ("memory", "part"),
    [
        (held(parameters=60, activations=40), None),
        (held(110, parameters=60), "parameters, gradients and optimizer state alone"),
        (held(parameters=60, activations=41), "activations"),
        (held(parameters=60, activations=20, gathered=30), "gathered"),
    ],
)
def test_the_part_that_is_too_much_is_named(memory: MemoryFit, part: str | None) -> None:
    assert (None if memory.too_much is None else memory.too_much[0]) == part


def test_states_that_do_not_fit_are_those_of_the_spec_and_come_first() -> None:
    case = made("fsdp", "h100x8", "checkpoint=full", shape_name="70b")
    memory, states = memory_fit(case, ONE), case.spec().states(case, 0)
    assert memory.states_bytes == 2 * states.parameters_bytes + states.optimizer_bytes
    assert memory.too_much == ("parameters, gradients and optimizer state alone", memory.states_bytes)


def test_offloaded_states_are_held_against_the_host() -> None:
    case = made("fsdp", "h100x8", "checkpoint=full", "offload=true", shape_name="70b")
    memory = memory_fit(case, ONE)
    assert (memory.fits, memory.is_least, list(memory.parts)) == (True, True, ["gathered"])
    assert memory.host_bytes == pytest.approx(16 * case.shape.parameters(), rel=1e-3)
    assert memory.host_room_bytes == ONE.table.host_memory_bytes
    assert replace(memory, host_room_bytes=memory.host_bytes - 1).too_much == (OFFLOADED, memory.host_bytes)


def test_fp8_has_no_step_and_a_step_rests_on_each_level_that_it_crosses() -> None:
    rounded = fit(made("fsdp", "h100x8", "weights=fp8", shape_name="1b"), ONE)
    assert isinstance(rounded.step, Absent)
    assert "fp8" in rounded.step.reason
    across = fit(made("fsdp", "h100x8x2", shape_name="1b", batch=16), read_machine("h100x8x2"))
    assert [line.partition(" at ")[0] for line in across.rests_on[2:4]] == ["NVLink", "InfiniBand"]


def test_states_are_those_of_the_spec() -> None:
    case = made("ddp", "h100x8", shape_name="1b")
    memory, states = memory_fit(case, ONE), case.spec().states(case, 0)
    assert memory.parts["optimizer"] == states.optimizer_bytes
    assert memory.parts["parameters"] == states.parameters_bytes


def test_what_checkpointing_saves_is_said_only_where_it_is_on() -> None:
    plain = made("ddp", "h100x8", shape_name="1b")
    whole = made("ddp", "h100x8", "checkpoint=full", shape_name="1b")
    assert without_checkpointing(fit(plain, ONE)) is None
    assert without_checkpointing(fit(whole, ONE)) == memory_fit(plain, ONE).total_bytes


# The nearest setup that fits.

UNFIT: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "activations": ("gpipe", ("microbatches=32",), {"shape_name": "1b", "layers": 32, "batch": 64}),
    "states": ("ddp", (), {"shape_name": "8b"}),
    "of many nodes": ("fsdp", (), {"shape_name": "70b"}),
    "of one rank": ("single", (), {"shape_name": "8b"}),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_comes_with_a_setup_that_does(name: str) -> None:
    strategy, options, changes = UNFIT[name]
    case = made(strategy, "h100x8", *options, **changes)
    assert not memory_fit(case, ONE).fits
    nearest = nearest_fit(case, ONE)
    assert nearest is not None
    assert check(nearest.case) == nearest.case
    assert memory_fit(nearest.case, nearest.machine) == nearest.memory
    assert nearest.memory.fits
    assert nearest.words in verdict_line(fit(case, ONE))


def test_checkpointing_is_tried_before_anything_else() -> None:
    strategy, options, changes = UNFIT["activations"]
    nearest = nearest_fit(made(strategy, "h100x8", *options, **changes), ONE)
    assert nearest is not None
    assert nearest.words == "--option checkpoint=full"


def test_nothing_near_fits_a_single_rank_of_a_huge_model_on_a_small_gpu() -> None:
    case = replace(made("single", "a100-40x8", shape_name="405b"), ranks=1)
    assert "use a smaller --shape, --batch or --sequence" in verdict_line(fit(case, read_machine("a100-40x8")))


def _nearest_words(case: Case, on: str) -> str:
    nearest = nearest_fit(case, read_machine(on))
    assert nearest is not None
    return nearest.words


def test_a_sequence_a_rank_is_tried_where_a_single_rank_has_too_many_or_too_few() -> None:
    """A batch of 8 is too small to share among hundreds of ranks, and 8 sequences a rank are too much."""
    case = replace(made("single", "h100x8x64", shape_name="405b"), ranks=1, nodes=1)
    nearest = nearest_fit(case, read_machine("h100x8x64"))
    assert nearest is not None
    assert nearest.case.shape.batch == nearest.case.ranks > 8


def test_a_model_whose_layers_are_too_large_for_a_gpu_gets_a_pipeline_of_sharded_products() -> None:
    case = made("fsdp", "h100x8x64", shape_name="405b", batch=512)
    nearest = nearest_fit(case, read_machine("h100x8x64"))
    assert nearest is not None
    assert nearest.words.startswith("three_d --option tensor_ranks=8 --option pipeline_ranks=")
    assert (nearest.case.ranks, nearest.case.shape.batch, nearest.memory.is_least) == (512, 512, False)


def test_a_strategy_of_sequences_is_told_to_shard_its_states() -> None:
    """The default size of DistributedDataParallel's buckets, which it then does not have, is no obstacle."""
    case = made("ring_attention", "h100x8x2", shape_name="8b")
    assert _nearest_words(case, "h100x8x2") == "--option sharded=true"


def test_a_schedule_that_cannot_checkpoint_still_has_stages_of_equal_flops() -> None:
    """1b has 22 layers: equally many in 8 stages are impossible, and zero bubble refuses checkpointing."""
    found = largest_preset(spec_of("zero_bubble"), ONE)
    assert found is not None
    assert (found.preset, found.case.ranks) == ("1b", 8)


def test_a_larger_machine_has_a_larger_preset() -> None:
    spec = spec_of("fsdp")
    small, large = (largest_preset(spec, read_machine(name)) for name in ("h100x8", "h100x8x64"))
    assert small is not None
    assert large is not None
    assert small.case.shape.parameters() < large.case.shape.parameters()
