"""What does not fit into memory is refused before anything is allocated, with the figure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.case import Case
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.gpus import Gpu, GpuMemory, Holder
from bench.machine.preflight import (
    PARTS_JUDGED,
    PROCESS_BYTES,
    check_memory,
    check_processes,
    least_bytes,
    warn_of_memory,
)
from tests.bench.made.examples import TINY, make_case, make_probe
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.shape import PRESETS
from workloads.registry import spec_of
from workloads.spec import OptionValue

GIB = 1 << 30
NONE_DIVIDED = 16
"""Bytes a parameter: weights, gradients and two moments, all in fp32."""


def gpu(index: int, memory_bytes: int | None = 80 * GIB) -> Gpu:
    return Gpu(index=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index}", memory_bytes=memory_bytes)


def test_training_needs_its_states_at_the_least() -> None:
    states_bytes = NONE_DIVIDED * TINY.parameters() + 4 * TINY.parameter_tensors()
    assert least_bytes(_on_gpus(ranks=2), 0) == states_bytes


def test_on_a_cpu_training_needs_what_the_law_of_the_peak_says() -> None:
    case = make_case()
    peak = case.spec().peak(case)
    assert isinstance(peak, Prediction)
    assert least_bytes(case, 0) == peak.total_bytes - peak.buffers_bytes
    check_memory(case, host_bytes=2 * least_bytes(case, 0), gpus=())
    with pytest.raises(Misuse, match=r"live tensors of a step, activations included, of 2 ranks take"):
        check_memory(case, host_bytes=2 * least_bytes(case, 0) - 1, gpus=())


@pytest.mark.parametrize("strategy", ["ddp", "gpipe", "ulysses", "parameter_server", "deepspeed"])
@pytest.mark.parametrize("changes", [{"batch": 10**9}, {"sequence": 10**11}])
def test_a_batch_that_no_machine_holds_is_refused_whatever_shares_it(strategy: str, changes: dict[str, Any]) -> None:
    case = make_case(strategy)
    case = replace(case, model=replace(case.shape, **changes))
    with pytest.raises(Misuse, match=r"a batch of \d+ sequences of \d+ tokens takes at least .* GB, but"):
        check_memory(case, host_bytes=10**11, gpus=())
    with pytest.raises(Misuse, match=r"tokens takes at least .* GB, but 2 GPUs have only 171\.8 GB"):
        check_memory(replace(case, device="cuda"), host_bytes=0, gpus=(gpu(0), gpu(1)))


def test_a_loss_in_chunks_needs_no_more_logits_than_a_chunk_has() -> None:
    case = make_case("single")
    case = replace(case, device="cuda", model=replace(case.shape, sequence=2**20, vocabulary=128_256))
    with pytest.raises(Misuse, match=r"tokens takes at least .* GB, but 1 GPU has only"):
        check_memory(case, host_bytes=0, gpus=(gpu(0),))
    chunked = replace(case, options={**case.options, "loss_chunks": 1024})
    check_memory(chunked, host_bytes=0, gpus=(gpu(0),))


def test_more_processes_than_memory_holds_are_refused() -> None:
    case = make_case(ranks=4)
    case = replace(case, options={**case.options, "workers": 3})
    need = 16 * PROCESS_BYTES
    check_processes(case, host_bytes=need, cores=16)
    with pytest.raises(Misuse, match=r"^ddp: 4 ranks with 3 workers each need 0\.3 GB before they allocate anything"):
        check_processes(case, host_bytes=need - 1, cores=16)


@pytest.mark.parametrize(
    ("ranks", "threads", "workers", "told"),
    [
        (2, 1, 1, []),
        (1, 2, 2, []),
        (2, 1, 2, ["2 ranks with 2 workers each load batches on 2 cores"]),
        (64, 1, 1, ["64 ranks share 2 cores (oversubscribed): speeds are not those of 64 cores"]),
        (2, 2, 0, ["2 ranks of 2 threads share 2 cores"]),
        (2, 1, 3, ["2 ranks with 3 workers each load batches on 2 cores"]),
    ],
)
def test_what_is_crowded_is_told_and_runs(ranks: int, threads: int, workers: int, told: list[str]) -> None:
    case = make_case(ranks=ranks, batch=64, threads=threads)
    case = replace(case, options={**case.options, "workers": workers})
    said = check_processes(case, host_bytes=64 * GIB, cores=2)
    assert len(said) == len(told)
    assert all(line.startswith(words) for line, words in zip(said, told, strict=True))


def test_ranks_on_gpus_crowd_no_core() -> None:
    assert check_processes(_on_gpus(ranks=8), host_bytes=64 * GIB, cores=2) == []


def test_a_probe_needs_its_buffers() -> None:
    probe = make_probe("collectives")
    assert least_bytes(probe, 0) == probe.spec().working_bytes(probe, 0) > 0


def test_all_ranks_of_a_cpu_share_its_memory() -> None:
    case = make_case(ranks=2)
    need = 2 * least_bytes(case, 0)
    check_memory(case, host_bytes=need, gpus=())
    with pytest.raises(Misuse, match=r"^ddp: .* of 2 ranks takes? .* MB, but available memory is only"):
        check_memory(case, host_bytes=need - 1, gpus=())


def test_a_shape_beyond_memory_is_refused_with_both_figures() -> None:
    case = make_case("single", ranks=1, model=PRESETS["70b"])
    with pytest.raises(Misuse, match=r"take 1,128\.9 GB, but available memory is only 25\.8 GB; use a smaller shape"):
        check_memory(case, host_bytes=24 * GIB, gpus=())


def test_a_sweep_beyond_memory_says_what_to_make_smaller() -> None:
    probe = make_probe("collectives")
    probe = replace(probe, options={**probe.options, "max_bytes": 1 << 40})
    with pytest.raises(Misuse, match=r"collectives: buffers of 2 rank.* use smaller sizes"):
        check_memory(probe, host_bytes=24 * GIB, gpus=())


def test_each_gpu_holds_the_ranks_that_take_it() -> None:
    case = replace(make_case(ranks=3), device="cuda")
    need = least_bytes(case, 0)
    check_memory(case, host_bytes=0, gpus=(gpu(0, 2 * need), gpu(1, need)))
    with pytest.raises(Misuse, match=r"of 2 ranks take .*, but GPU 0 has"):
        check_memory(case, host_bytes=0, gpus=(gpu(0, 2 * need - 1), gpu(1, need)))


def _full(free_bytes: int, *holders: Holder) -> GpuMemory:
    return GpuMemory(index=0, free_bytes=free_bytes, holders=holders)


def _on_gpus(strategy: str = "ddp", ranks: int = 1, **changes: Any) -> Case:
    return replace(make_case(strategy, ranks, **changes), device="cuda")


def test_a_gpu_that_another_process_fills_is_refused_with_who_it_is() -> None:
    case = _on_gpus("single", model=PRESETS["1b"])
    holders = (Holder(pid=7, memory_bytes=2 * GIB), Holder(pid=77, memory_bytes=70 * GIB))
    names = {77: "python", 7: None}
    with pytest.raises(InfrastructureFailed) as caught:
        check_memory(case, host_bytes=0, gpus=(gpu(0),), memory=(_full(8 * GIB, *holders),), name_of=names.get)
    assert str(caught.value).endswith(
        ", but GPU 0 has only 8.6 GB free of 85.9 GB: process 77 (python) holds 75.2 GB, process 7 holds 2.1 GB;"
        " wait for them, end them, or hide the GPU with CUDA_VISIBLE_DEVICES"
    )


def test_a_gpu_that_is_full_by_nobody_that_nvml_names_says_so() -> None:
    with pytest.raises(InfrastructureFailed, match="other processes hold the rest, but NVML names none"):
        check_memory(_on_gpus(), host_bytes=0, gpus=(gpu(0),), memory=(_full(0),))


def test_many_holders_are_counted_beyond_the_largest() -> None:
    holders = [Holder(pid=pid, memory_bytes=None) for pid in range(6)]
    with pytest.raises(InfrastructureFailed, match=r"process 3 holds some, 2 more; wait"):
        check_memory(_on_gpus(), host_bytes=0, gpus=(gpu(0),), memory=(_full(0, *holders),), name_of=lambda pid: None)


def test_a_gpu_too_small_even_when_it_is_free_is_misuse() -> None:
    case = _on_gpus("single", model=PRESETS["70b"])
    with pytest.raises(Misuse, match=r"GPU 0 has only 85\.9 GB; use a smaller shape"):
        check_memory(case, host_bytes=0, gpus=(gpu(0),), memory=(_full(8 * GIB),))


def test_free_memory_that_is_not_told_is_not_judged() -> None:
    check_memory(_on_gpus(), host_bytes=0, gpus=(gpu(0),), memory=(GpuMemory(index=0, reason="NVML: Not Supported"),))


def test_a_model_that_fits_only_divided_is_let_through() -> None:
    case = _on_gpus("fsdp", ranks=64, model=PRESETS["70b"])
    states = case.spec().states(case, 0)
    # Embedding, head and last norm, and a block: 2 x 128,256 x 8,192 + 8,192 + 855,654,400 weights in fp32.
    gathered_bytes = 4 * (2 * 128256 * 8192 + 8192 + 855_654_400)
    assert least_bytes(case, 0) == states.parameters_bytes + states.optimizer_bytes + gathered_bytes
    gpus = tuple(gpu(index, 24 * GIB) for index in range(64))
    check_memory(case, host_bytes=0, gpus=gpus)


def test_a_unit_that_does_not_fit_is_refused_however_many_ranks_share_it() -> None:
    model = replace(PRESETS["405b"], batch=4096)
    case = _on_gpus("fsdp", ranks=4096, model=model)
    states = case.spec().states(case, 0)
    assert states.parameters_bytes + states.gradients_bytes + states.optimizer_bytes < 2 * GIB
    gpus = tuple(gpu(index, 24 * GIB) for index in range(4096))
    with pytest.raises(Misuse, match=r"gathers at once, of 1 rank take 31\.6 GB, .* or three_d, which also divides"):
        check_memory(case, host_bytes=0, gpus=gpus)
    half = replace(case, precision="bf16", options={**case.options, "weights": "bf16_compute"})
    check_memory(half, host_bytes=0, gpus=gpus)


def test_weights_that_stay_gathered_are_all_there_at_once() -> None:
    sharded = {"fsdp": {}, "zero2": {}, "ring_attention": {"sharded": True}, "ddp": {}}
    gathered = {}
    for name, options in sharded.items():
        case = _on_gpus(name, ranks=8)
        case = replace(case, options={**case.options, **options})
        gathered[name] = case.spec().gathered_bytes(case, 0)
    assert gathered["ring_attention"] == gathered["fsdp"] < gathered["zero2"] == 4 * TINY.parameters()
    assert gathered["ddp"] == 0


def test_whole_gradients_that_wait_for_the_last_microbatch_are_refused() -> None:
    options: dict[str, OptionValue] = {"accumulate": 2, "reduce": "last"}
    case = _on_gpus("fsdp", ranks=64, model=replace(PRESETS["70b"], batch=128))
    gpus = tuple(gpu(index, 80 * GIB) for index in range(64))
    check_memory(case, host_bytes=0, gpus=gpus)
    with pytest.raises(Misuse, match=r"reduces them, of 1 rank take 307\.\d GB, .*; use option reduce=each"):
        check_memory(replace(case, options={**case.options, **options}), host_bytes=0, gpus=gpus)


def test_more_ranks_are_offered_only_where_they_would_hold_less() -> None:
    gpus = tuple(gpu(index, 24 * GIB) for index in range(8))
    for name, remedy in (("fsdp", "use a smaller shape, or more ranks"), ("ddp", "or a strategy that shards it")):
        with pytest.raises(Misuse, match=remedy):
            check_memory(_on_gpus(name, ranks=8, model=PRESETS["70b"]), host_bytes=0, gpus=gpus)


def test_more_stages_are_offered_also_where_twice_as_many_would_not_divide_the_layers() -> None:
    case = _on_gpus("gpipe", ranks=16, model=PRESETS["70b"])
    with pytest.raises(Misuse, match="use a smaller shape, or more ranks"):
        check_memory(case, host_bytes=0, gpus=tuple(gpu(index, 24 * GIB) for index in range(16)))


@pytest.mark.parametrize(
    ("name", "ranks", "remedy"),
    [("single", 1, "a smaller shape"), ("fsdp", 4, "a smaller shape"), ("ddp", 4, "a smaller shape, or fewer ranks")],
)
def test_fewer_ranks_are_offered_on_a_host_only_where_they_would_hold_less(name: str, ranks: int, remedy: str) -> None:
    case = make_case(name, ranks, model=PRESETS["8b"])
    with pytest.raises(Misuse) as refused:
        check_memory(case, host_bytes=GIB, gpus=())
    assert str(refused.value).endswith(f"; use {remedy}")


def test_stages_that_fsdp_divides_hold_whole_gradients_until_the_last_microbatch() -> None:
    three_d = spec_of("three_d")
    case = _on_gpus("three_d", ranks=8)
    sharded = replace(case, options={**case.options, "data_axis": "fsdp", "tensor_ranks": 1})
    for rank in range(8):
        states = three_d.states(sharded, rank)
        assert three_d.unreduced_bytes(sharded, rank) == 4 * states.parameters_bytes
        assert three_d.gathered_bytes(sharded, rank) == 4 * states.parameters_bytes
        assert three_d.unreduced_bytes(case, rank) == three_d.gathered_bytes(case, rank) == 0


def test_ranks_that_share_a_gpu_hold_their_parts_at_the_same_time() -> None:
    case = _on_gpus("fsdp", ranks=8)
    every = sum(least_bytes(case, rank) for rank in range(8))
    check_memory(case, host_bytes=0, gpus=(gpu(0, every),))
    with pytest.raises(Misuse, match=r"of 8 ranks"):
        check_memory(case, host_bytes=0, gpus=(gpu(0, every - 1),))


def test_a_gpu_that_does_not_tell_its_memory_is_not_judged() -> None:
    check_memory(replace(make_case(ranks=1), device="cuda"), host_bytes=0, gpus=(gpu(0, None),))


def test_only_the_root_of_a_gather_needs_room_for_the_whole() -> None:
    probe = make_probe("collectives", ranks=8)
    probe = replace(probe, options={**probe.options, "collectives": "gather", "max_bytes": 1 << 30})
    root, other = least_bytes(probe, 0), least_bytes(probe, 1)
    assert root - other == 1 << 30


# A step that may not fit on a GPU: said before it starts, and left to the step to decide.


def _warning(case: Case, *gpus: Gpu) -> str | None:
    (*warnings,) = warn_of_memory(case, gpus)
    assert len(warnings) <= 1
    return warnings[0] if warnings else None


def test_a_step_beyond_a_gpus_memory_is_said_with_both_figures_and_what_to_do() -> None:
    case = _on_gpus("single", model=replace(PRESETS["1b"], batch=16), precision="bf16")
    assert _warning(case, gpu(0)) == (
        "single on 1: a step may need more memory than a GPU has: 97.1 GB of tensors, and about 3.7 GB for CUDA's"
        " context, NCCL and fragmentation, but the GPU has 85.9 GB; use a smaller batch, or option checkpoint=full"
    )
    assert _warning(case, gpu(0, 183 * GIB)) is None
    check_memory(case, host_bytes=0, gpus=(gpu(0),))


def test_what_is_checkpointed_already_is_not_asked_to_be() -> None:
    case = _on_gpus("single", model=replace(PRESETS["1b"], batch=80), precision="bf16")
    warning = _warning(replace(case, options={**case.options, "checkpoint": "full"}), gpu(0))
    assert warning is not None
    assert warning.endswith("; use a smaller batch")


def test_ranks_that_share_a_gpu_hold_their_steps_at_the_same_time() -> None:
    case = _on_gpus("ddp", ranks=4, model=replace(PRESETS["1b"], batch=16), backend="gloo")
    assert _warning(case, *map(gpu, range(4))) is None
    warning = _warning(case, gpu(0), gpu(1))
    assert warning is not None
    assert "GB of tensors of 2 ranks, and" in warning


@pytest.mark.parametrize(
    "case",
    [
        make_case("ddp", model=PRESETS["8b"]),
        make_probe("matmul", 1, device="cuda", backend="nccl"),
        _on_gpus("deepspeed", ranks=2, model=PRESETS["8b"]),
        _on_gpus("single", model=replace(PRESETS["8b"], batch=2 * PARTS_JUDGED)),
    ],
    ids=["on a CPU", "a probe", "no cost model", "too many microbatches to look at"],
)
def test_a_step_that_no_cost_model_covers_is_not_judged(case: Case) -> None:
    if case.strategy == "single":
        case = replace(case, options={**case.options, "accumulate": 2 * PARTS_JUDGED})
    assert _warning(case, gpu(0, 1)) is None


def test_a_step_on_gpus_that_do_not_tell_their_memory_is_not_judged() -> None:
    assert _warning(_on_gpus("single", model=PRESETS["8b"]), gpu(0, None)) is None
