"""Events become spans by what they are and where they ran."""

from dataclasses import dataclass

import pytest

from collectors.traces.in_process import read_events
from collectors.traces.names import STEP
from collectors.traces.spans import KINDS, Timeline


@dataclass(frozen=True)
class FakeEvent:
    """A kineto event."""

    named: str
    activity: str
    thread: int = 1
    metadata: str = "{}"

    def name(self) -> str:
        return self.named

    def activity_type(self) -> str:
        return self.activity

    def start_ns(self) -> int:
        return 10

    def end_ns(self) -> int:
        return 20

    def device_resource_id(self) -> int:
        return self.thread

    def metadata_json(self) -> str:
        return self.metadata


def _kinds(timeline: Timeline) -> dict[str, str]:
    return {timeline.names[name]: KINDS[kind] for name, kind in zip(timeline.name, timeline.kind, strict=True)}


def test_on_the_host_operators_compute_but_for_those_of_gloos_threads() -> None:
    timeline = read_events(
        [
            FakeEvent(STEP, "user_annotation"),
            FakeEvent("aten::mm", "cpu_op", thread=1),
            FakeEvent("gloo:all_reduce", "cpu_op", thread=2),
            FakeEvent("aten::copy_", "cpu_op", thread=2),
            FakeEvent("c10d::allreduce_", "cpu_op", thread=1),
            FakeEvent("autograd::engine::evaluate_function: MmBackward0", "cpu_op", thread=1),
            FakeEvent("Optimizer.step#AdamW.step", "user_annotation", thread=1),
        ],
        rank=0,
    )
    assert not timeline.is_device
    assert _kinds(timeline) == {
        STEP: "step",
        "aten::mm": "compute",
        "gloo:all_reduce": "communication",
        "aten::copy_": "host",
        "c10d::allreduce_": "host",
        "autograd::engine::evaluate_function: MmBackward0": "host",
        "Optimizer.step#AdamW.step": "host",
    }


def test_a_send_on_the_callers_thread_makes_no_communication_thread_of_it() -> None:
    timeline = read_events([FakeEvent("gloo:send", "cpu_op"), FakeEvent("aten::mm", "cpu_op")], rank=0)
    assert _kinds(timeline) == {"gloo:send": "communication", "aten::mm": "compute"}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (FakeEvent("void gemm<float>", "kernel"), "compute"),
        (FakeEvent("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel"), "communication"),
        (FakeEvent("any_name_at_all", "kernel", metadata='{"Collective name": "allreduce"}'), "communication"),
        (FakeEvent("Memcpy HtoD", "gpu_memcpy"), "copy"),
        (FakeEvent("Memset", "gpu_memset"), "copy"),
    ],
)
def test_on_a_device_its_own_events_count(event: FakeEvent, kind: str) -> None:
    timeline = read_events([event, FakeEvent("k", "kernel"), FakeEvent("aten::mm", "cpu_op")], rank=0)
    assert timeline.is_device
    assert _kinds(timeline)[event.named] == kind
    assert _kinds(timeline)["aten::mm"] == "host"


def test_ranks_that_share_a_device_communicate_on_the_host() -> None:
    events = [
        FakeEvent("gemm", "kernel"),
        FakeEvent("gloo:all_reduce", "cpu_op", thread=2),
        FakeEvent("aten::mm", "cpu_op"),
    ]
    assert _kinds(read_events(events, rank=0)) == {
        "gemm": "compute",
        "gloo:all_reduce": "communication",
        "aten::mm": "host",
    }
    nccl = FakeEvent("ncclDevKernel_AllReduce", "kernel")
    assert _kinds(read_events([*events, nccl], rank=0))["gloo:all_reduce"] == "host"


def test_calls_of_the_driver_and_marks_of_the_device_are_left_out() -> None:
    timeline = read_events(
        [FakeEvent("cudaLaunchKernel", "cuda_runtime"), FakeEvent(STEP, "gpu_user_annotation")], rank=0
    )
    assert timeline.names == ()
