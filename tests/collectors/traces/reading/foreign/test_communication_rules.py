"""A kernel communicates because torch's operator around its launch says so, else by its name; the answer says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.traces.analyzers.summary import summary
from collectors.traces.event_names import RECORD
from collectors.traces.timeline import KINDS, Timeline
from tests.collectors.traces.made.foreign_traces import UNIX_US, Event, event, good_steps, kernel, read

AT = UNIX_US + 700


def _launched(name: str, *around: str, correlation: int = 100, dur: int = 80) -> list[Event]:
    """A kernel, its launch, and the operators around that, the outermost first."""
    operators = [event("cpu_op", operator, AT + depth, 60 - 2 * depth) for depth, operator in enumerate(around)]
    launch = event("cuda_runtime", "cudaLaunchKernel", AT + 20, 5, correlation=correlation)
    return [*operators, launch, kernel(name, AT + 50, dur, correlation, stream=33)]


def _kind(timeline: Timeline, name: str) -> str:
    return KINDS[int(timeline.kind[timeline.name == timeline.names.index(name)][0])]


@pytest.mark.parametrize("around", [(RECORD,), ("c10d::allreduce_", RECORD)])
def test_the_operator_around_the_launch_decides_first(tmp_path: Path, around: tuple[str, ...]) -> None:
    timeline = read(tmp_path, [*good_steps(), *_launched("some_vendors_kernel", *around)])
    assert _kind(timeline, "some_vendors_kernel") == "communication"
    assert timeline.about.decided_by["some_vendors_kernel"] == RECORD
    (table,) = (table for table in summary([timeline]).tables() if table.name == "rules")
    assert (0, "some_vendors_kernel", RECORD) in table.rows


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("some_kernel", ("aten::mm",)),
        ("some_kernel", (RECORD, "aten::copy_")),
        ("void at::native::vectorized_elementwise_kernel<4>()", (RECORD,)),
        ("void c10d::checkForNaN<float>(float*, unsigned long)", (RECORD,)),
    ],
)
def test_what_torch_computes_inside_of_a_collective_computes(
    tmp_path: Path, name: str, around: tuple[str, ...]
) -> None:
    timeline = read(tmp_path, [*good_steps(), *_launched(name, *around)])
    assert _kind(timeline, name) == "compute"
    assert name not in timeline.about.decided_by


def test_a_name_decides_where_no_operator_is_around_the_launch(tmp_path: Path) -> None:
    name = "void aiter::allreduce_fusion_kernel_2stage<__hip_bfloat16, 8>()"
    timeline = read(tmp_path, [*good_steps(), *_launched(name, "aten::mm")])
    assert _kind(timeline, name) == "communication"
    assert timeline.about.decided_by[name] == "its name (TensorRT-LLM, FlashInfer and aiter, fused all-reduce)"


def test_a_large_kernel_that_looks_like_communication_and_is_not_counted_is_pointed_out(tmp_path: Path) -> None:
    name = "void acme::fast_allreduce_v7<8>()"
    (line,) = read(tmp_path, [*good_steps(), *_launched(name)]).about.left_out
    assert line.startswith(f"what communicates in {name}: it looks like communication")
    assert line.endswith("it counts as computation, and is 4 % of the kernels' time")


@pytest.mark.parametrize(
    "name",
    [
        "hybrid_ep::dispatch_kernel",
        "void deepep_hybrid::dispatch_kernel<8>()",
        "void flux::all2all_kernel<8>()",
        "flashinfer::trtllm::ar_fusion::kernel",
        "_ZN7deep_ep9internode8dispatchILb0EEEvPv",
        "_ZN6flux_a10ag_gemm_rsE",
        "symm_mem_put",
        "acme_symmetric_memory_get",
        "getmem_block",
        "acme::nvls_multicast",
    ],
)
def test_a_name_that_looks_like_communication_is_noted(tmp_path: Path, name: str) -> None:
    timeline = read(tmp_path, [*good_steps(), *_launched(name)])
    assert any(line.startswith(f"what communicates in {name}: ") for line in timeline.about.left_out)


@pytest.mark.parametrize(
    "name",
    [
        "void sweep::dispatch_kernel<8>()",
        "void prep::combine()",
        "_ZN3abc8dispatchILb0E",
        "clear_fusion_kernel",
        "image_gemm",
        "void acme::bag_gemm()",
        "cub::DeviceReduceKernel",
    ],
)
def test_a_name_that_only_holds_such_letters_is_not(tmp_path: Path, name: str) -> None:
    assert read(tmp_path, [*good_steps(), *_launched(name)]).about.left_out == ()


@pytest.mark.parametrize(
    ("name", "dur"), [("void acme::fast_allreduce_v7<8>()", 5), ("void flash_fwd_splitkv_combine_kernel<8>()", 80)]
)
def test_small_kernels_and_those_of_attention_are_not(tmp_path: Path, name: str, dur: int) -> None:
    assert read(tmp_path, [*good_steps(), *_launched(name, dur=dur)]).about.left_out == ()


@pytest.mark.parametrize("name", ["__amd_rocclr_copyBuffer", "__amd_rocclr_fillBufferAligned"])
def test_the_kernels_by_which_rocm_copies_are_copies(tmp_path: Path, name: str) -> None:
    timeline = read(tmp_path, [*good_steps(), *_launched(name)])
    assert _kind(timeline, name) == "copy"
    assert summary([timeline]).shares[0].breakdown.exposed_copy_ns == 80_000
