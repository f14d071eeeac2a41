"""Events are told apart by what they are and where they ran."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.traces.event_names import STEP
from collectors.traces.reading.event_kinds import devices, kinds
from collectors.traces.reading.raw_events import CollectiveArgs
from collectors.traces.timeline import KINDS
from tests.collectors.traces.made.raw import Row, raw_of


def _kinds(*rows: Row) -> list[str]:
    kind, _ = kinds(raw_of(rows))
    assert kind.dtype == np.int8
    return [KINDS[number] for number in kind]


def test_on_the_host_operators_compute_but_for_those_of_gloos_threads() -> None:
    rows = (
        Row(STEP, "user_annotation"),
        Row("aten::mm", "cpu_op", thread=1),
        Row("gloo:all_reduce", "user_annotation", thread=2),
        Row("aten::copy_", "cpu_op", thread=2),
        Row("c10d::allreduce_", "cpu_op", thread=1),
        Row("autograd::engine::evaluate_function: MmBackward0", "cpu_op", thread=1),
        Row("Optimizer.step#AdamW.step", "user_annotation", thread=1),
    )
    assert _kinds(*rows) == ["step", "compute", "communication", "host", "host", "host", "host"]
    assert not kinds(raw_of(rows))[1]


def test_a_send_on_the_callers_thread_makes_no_communication_thread_of_it() -> None:
    assert _kinds(Row("gloo:send", "cpu_op"), Row("aten::mm", "cpu_op")) == ["communication", "compute"]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (Row("void gemm<float>", "kernel"), "compute"),
        (Row("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel"), "communication"),
        (Row("any_name_at_all", "kernel", said=CollectiveArgs(collective="allreduce")), "communication"),
        (Row("Memcpy HtoD", "gpu_memcpy"), "copy"),
        (Row("Memcpy PtoP (Device -> Device)", "gpu_memcpy"), "communication"),
        (Row("Memset", "gpu_memset"), "copy"),
        (Row("cudaLaunchKernel", "cuda_runtime"), "launch"),
        (Row("cuLaunchKernel", "cuda_driver"), "launch"),
        (Row("hipLaunchKernel", "hip_runtime"), "launch"),
        (Row("Stream Wait Event", "cuda_sync"), "wait"),
        (Row("ProfilerStep#3", "user_annotation"), "step"),
        (Row("ProfilerStep#3", "cpu_op"), "step"),
        (Row("aten::mm", "cpu_op"), "host"),
        (Row("record_param_comms", "cpu_op", said=CollectiveArgs(collective="allreduce")), "host"),
        (Row("ncclGroupEnd", "user_annotation"), "host"),
    ],
)
def test_with_kernels_the_devices_own_events_count(row: Row, kind: str) -> None:
    assert _kinds(row, Row("k", "kernel"))[0] == kind
    assert kinds(raw_of((row, Row("k", "kernel"))))[1]


@pytest.mark.parametrize("category", ["gpu_memcpy", "gpu_memset"])
def test_a_device_that_only_copies_is_a_device(category: str) -> None:
    rows = (Row("Memset (Device)", category), Row("aten::mm", "cpu_op"))
    assert _kinds(*rows) == ["copy", "host"]
    assert kinds(raw_of(rows))[1]


def test_a_stream_that_waits_is_no_sign_of_a_device() -> None:
    assert not kinds(raw_of((Row("Stream Wait Event", "cuda_sync"),)))[1]


def test_ranks_that_share_a_device_communicate_on_the_host() -> None:
    rows = (
        Row("gemm", "kernel"),
        Row("gloo:all_reduce", "cpu_op", thread=2),
        Row("aten::mm", "cpu_op"),
    )
    assert _kinds(*rows) == ["compute", "communication", "host"]
    assert _kinds(*rows, Row("ncclDevKernel_AllReduce", "kernel"))[1] == "host"


def test_no_events_are_of_no_kind() -> None:
    assert _kinds() == []


def test_devices_are_those_that_work() -> None:
    rows = (
        Row("Stream Wait Event", "cuda_sync", process=0),
        Row("aten::mm", "cpu_op", process=99),
        Row("Memset", "gpu_memset", process=5),
        Row("gemm", "kernel", process=3),
    )
    assert devices(raw_of(rows)).tolist() == [3, 5]
