"""The model and precision that a training gets where nobody chose: by the device, and by a GPU's memory alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.errors import Misuse
from bench.machine.device_checks import TorchBuild
from bench.machine.gpus import Gpu, Gpus
from bench.session.case_args import CaseArgs, NodeResources, case_of_args, default_lines
from bench.session.default_model import LARGE_FROM_BYTES, default_model
from workloads.cost_models.shape import PRESETS
from workloads.registry import SPECS

GIB = 2**30
TRAININGS = [spec.name for spec in SPECS if spec.kind == "training" and spec.name not in ("single", "deepspeed")]


def node_with(*memories: int | None) -> NodeResources:
    gpus = tuple(
        Gpu(index=index, name="NVIDIA H100", uuid=f"GPU-{index}", memory_bytes=memory_bytes)
        for index, memory_bytes in enumerate(memories)
    )
    build = TorchBuild(version="2.13.0", cuda="12.8")
    return NodeResources(cores=64, host_bytes=1 << 42, gpus=Gpus(gpus=gpus, on_node=len(gpus)), torch=build)


def test_a_cpu_trains_tiny_in_fp32_and_nothing_is_said() -> None:
    args = CaseArgs(strategy="ddp", ranks=(2,))
    case = case_of_args(args, 2, node_with())
    assert (case.model, case.precision, case.options["checkpoint"]) == (PRESETS["tiny"], "fp32", "none")
    assert default_lines(args, case, node_with()) == []


@pytest.mark.parametrize(
    ("memory_bytes", "shape", "checkpoint", "line"),
    [
        (80 * GIB, "1b", "full", "no --shape given: 1b with checkpoint=full in bf16, because GPU 0 has 80 GiB"),
        (LARGE_FROM_BYTES, "1b", "full", "no --shape given: 1b with checkpoint=full in bf16, because GPU 0 has 24 GiB"),
        (LARGE_FROM_BYTES - 1, "125m", "none", "no --shape given: 125m in bf16, because GPU 0 has 24 GiB"),
        (16 * GIB, "125m", "none", "no --shape given: 125m in bf16, because GPU 0 has 16 GiB"),
        (4 * GIB, "125m", "none", "no --shape given: 125m in bf16, because GPU 0 has 4 GiB"),
        (4 * GIB - 1, "tiny", "none", "no --shape given: tiny in bf16, because GPU 0 has 4 GiB"),
        (None, "125m", "none", "no --shape given: 125m in bf16, because the memory of the GPUs is not known"),
    ],
)
def test_a_gpu_trains_what_fits_its_memory(memory_bytes: int | None, shape: str, checkpoint: str, line: str) -> None:
    node, args = node_with(memory_bytes), CaseArgs(strategy="single")
    case = case_of_args(args, 1, node)
    assert (case.model, case.precision, case.options["checkpoint"]) == (PRESETS[shape], "bf16", checkpoint)
    assert default_lines(args, case, node) == [line]


@pytest.mark.parametrize("strategy", TRAININGS)
def test_every_strategy_and_number_of_ranks_gets_the_same_model(strategy: str) -> None:
    node = node_with(*[80 * GIB] * 8)
    pipelines = (
        "gpipe",
        "one_f_one_b",
        "interleaved",
        "zero_bubble",
    )  # 8 ranks need more microbatches, or other layers.
    for ranks in (4,) if strategy in pipelines else (4, 8):
        # A batch and heads that 8 ranks can share; an odd number of servers leaves 7 workers.
        options = ("servers=4",) if strategy == "parameter_server" and ranks == 8 else ()
        args = CaseArgs(strategy=strategy, dimensions={"batch": 96, "kv_heads": 8}, options=options)
        case = case_of_args(args, ranks, node)
        assert replace(case.shape, layers=22) == replace(PRESETS["1b"], batch=96, kv_heads=8)
        assert case.shape.layers == 22 or strategy in ("interleaved", "zero_bubble")
        assert case.precision == "bf16"


def test_the_gpu_with_the_least_memory_decides() -> None:
    node, args = node_with(80 * GIB, 16 * GIB), CaseArgs(strategy="ddp")
    case = case_of_args(args, 2, node)
    assert case.shape == PRESETS["125m"]
    assert default_lines(args, case, node) == ["no --shape given: 125m in bf16, because GPU 1 has 16 GiB"]


def test_a_strategy_that_recomputes_nothing_gets_the_model_without_it() -> None:
    node, args = node_with(*[80 * GIB] * 2), CaseArgs(strategy="zero_bubble")
    case = case_of_args(args, 2, node)
    assert (case.shape, case.options["checkpoint"]) == (replace(PRESETS["1b"], layers=24), "none")
    assert default_lines(args, case, node) == ["no --shape given: 1b with 24 layers in bf16, because GPU 0 has 80 GiB"]


def test_stages_that_do_not_divide_the_layers_are_cut_by_flops() -> None:
    node, args = node_with(*[80 * GIB] * 4), CaseArgs(strategy="gpipe")
    assert case_of_args(args, 2, node).options["balance"] == "layers"
    case = case_of_args(args, 4, node)
    assert (case.shape, case.options["checkpoint"], case.options["balance"]) == (PRESETS["1b"], "full", "flops")
    assert default_lines(args, case, node) == [
        "no --shape given: 1b with checkpoint=full, balance=flops in bf16, because GPU 0 has 80 GiB"
    ]


def test_several_stages_a_rank_get_layers_that_they_divide_unless_the_user_says_how_many() -> None:
    node, args = node_with(*[80 * GIB] * 2), CaseArgs(strategy="interleaved")
    case = case_of_args(args, 2, node)
    assert (case.shape, case.options["checkpoint"]) == (replace(PRESETS["1b"], layers=24), "full")
    assert default_lines(args, case, node) == [
        "no --shape given: 1b with 24 layers, checkpoint=full in bf16, because GPU 0 has 80 GiB"
    ]
    with pytest.raises(Misuse, match="layers is 22, which 4 stages do not divide"):
        case_of_args(CaseArgs(strategy="interleaved", dimensions={"layers": 22}), 2, node)


def test_what_the_user_chose_stays() -> None:
    node = node_with(80 * GIB)
    args = CaseArgs(strategy="single", precision="fp32", options=("checkpoint=none",))
    case = case_of_args(args, 1, node)
    assert (case.shape, case.precision, case.options["checkpoint"]) == (PRESETS["1b"], "fp32", "none")
    assert default_lines(args, case, node) == ["no --shape given: 1b in fp32, because GPU 0 has 80 GiB"]
    chosen = CaseArgs(strategy="single", shape_name="tiny")
    case = case_of_args(chosen, 1, node)
    assert (case.shape, case.precision, case.options["checkpoint"]) == (PRESETS["tiny"], "bf16", "none")
    assert default_lines(chosen, case, node) == []


def test_a_gpu_machine_trains_tiny_on_its_cpu() -> None:
    case = case_of_args(CaseArgs(strategy="ddp", device="cpu"), 2, node_with(80 * GIB))
    assert (case.shape, case.precision) == (PRESETS["tiny"], "fp32")


def test_a_probe_has_no_model_and_keeps_its_precision() -> None:
    node, args = node_with(80 * GIB), CaseArgs(strategy="matmul")
    case = case_of_args(args, 1, node)
    assert (case.model, case.precision) == (None, "fp32")
    assert default_lines(args, case, node) == []


def test_all_defaults_have_one_batch() -> None:
    """`shape_of` relies on it: a suite scales the batch before it knows the device."""
    gpus = node_with(80 * GIB).gpus.gpus, node_with(8 * GIB).gpus.gpus
    names = {default_model("cpu", ()).shape_name, *(default_model("cuda", each).shape_name for each in gpus)}
    assert len(names) == 3
    assert {PRESETS[name].batch for name in names} == {8}
