"""What does not fit into memory is refused before anything is allocated, with the figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.errors import Misuse
from bench.gpus import Gpu
from bench.preflight import check_memory, least_bytes
from tests.bench.examples import TINY, make_case, make_probe
from workloads.parts.shape import PRESETS

GIB = 1 << 30
NONE_DIVIDED = 16
"""Bytes a parameter: weights, gradients and two moments, all in fp32."""


def gpu(index: int, memory_bytes: int | None = 80 * GIB) -> Gpu:
    return Gpu(index=index, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index}", memory_bytes=memory_bytes)


def test_training_needs_its_states_at_the_least() -> None:
    assert least_bytes(make_case(), 0) == NONE_DIVIDED * TINY.parameters() + 4 * TINY.parameter_tensors()


def test_a_probe_needs_its_buffers() -> None:
    probe = make_probe("collectives")
    assert least_bytes(probe, 0) == probe.card().working_bytes(probe, 0) > 0


def test_all_ranks_of_a_cpu_share_its_memory() -> None:
    case = make_case(ranks=2)
    need = 2 * least_bytes(case, 0)
    check_memory(case, host_bytes=need, gpus=())
    with pytest.raises(Misuse, match=r"ddp: parameters, gradients and optimizer state of 2 rank\(s\) take .* MB and"):
        check_memory(case, host_bytes=need - 1, gpus=())


def test_a_shape_beyond_memory_is_refused_with_both_figures() -> None:
    case = make_case("single", ranks=1, model=PRESETS["70b"])
    with pytest.raises(Misuse, match=r"take 1,128\.9 GB and this machine has available 25\.8 GB; take a smaller shape"):
        check_memory(case, host_bytes=24 * GIB, gpus=())


def test_a_sweep_beyond_memory_says_what_to_make_smaller() -> None:
    probe = make_probe("collectives")
    probe = replace(probe, options={**probe.options, "max_bytes": 1 << 40})
    with pytest.raises(Misuse, match=r"collectives: buffers of 2 rank.* take smaller sizes"):
        check_memory(probe, host_bytes=24 * GIB, gpus=())


def test_each_gpu_holds_the_ranks_that_take_it() -> None:
    case = replace(make_case(ranks=3), device="cuda")
    need = least_bytes(case, 0)
    check_memory(case, host_bytes=0, gpus=(gpu(0, 2 * need), gpu(1, need)))
    with pytest.raises(Misuse, match=r"of 2 rank\(s\) take .* and GPU 0 has"):
        check_memory(case, host_bytes=0, gpus=(gpu(0, 2 * need - 1), gpu(1, need)))


def test_a_gpu_that_does_not_tell_its_memory_is_not_judged() -> None:
    check_memory(replace(make_case(ranks=1), device="cuda"), host_bytes=0, gpus=(gpu(0, None),))


def test_only_the_root_of_a_gather_needs_room_for_the_whole() -> None:
    probe = make_probe("collectives", ranks=8)
    probe = replace(probe, options={**probe.options, "collectives": "gather", "max_bytes": 1 << 30})
    root, other = least_bytes(probe, 0), least_bytes(probe, 1)
    assert root - other == 1 << 30
