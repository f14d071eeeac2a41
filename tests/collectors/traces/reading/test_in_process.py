"""Events of a profiler in this process give the Timeline that its exported file gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from collectors.rank.profiler import EVENTS_HAVE_KINDS, recording
from collectors.traces.event_names import STEP
from collectors.traces.reading.reader import read_events, read_trace
from collectors.traces.timeline import ABSENT, KINDS, Call, Timeline
from tests.collectors.traces.made.kineto_text import differing
from tests.support.ranks import OnRanks

of_real_events = pytest.mark.skipif(
    not EVENTS_HAVE_KINDS, reason="events in memory of torch 2.11 do not tell of what kind they are; its file is read"
)


@dataclass(frozen=True)
class FakeEvent:
    """A kineto event."""

    named: str
    activity: str
    thread: int = 1
    correlation: int = 0
    linked: int = 0
    shapes: Sequence[object] = ()
    meta: Mapping[str, str] = field(default_factory=dict)

    def name(self) -> str:
        return self.named

    def activity_type(self) -> str:
        return self.activity

    def start_ns(self) -> int:
        return 10

    def end_ns(self) -> int:
        return 20

    def device_index(self) -> int:
        return 0

    def device_resource_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def structured_input_shapes(self) -> Sequence[object]:
        return self.shapes

    def extra_meta(self) -> Mapping[str, str]:
        return self.meta


def test_an_operators_number_is_no_correlation_but_a_kernels_is() -> None:
    timeline = read_events(
        [
            FakeEvent("aten::mm", "cpu_op", correlation=3, shapes=[[2, 3], []]),
            FakeEvent("gemm", "kernel", correlation=3, linked=7),
        ],
        rank=4,
    )
    assert timeline.rank == 4
    by_name = {
        timeline.names[name]: int(number) for name, number in zip(timeline.name, timeline.correlation, strict=True)
    }
    assert by_name == {"aten::mm": ABSENT, "gemm": 3}
    assert timeline.shapes == ("[[2, 3], []]",)


def test_what_an_operator_says_of_its_collective_is_said_of_its_kernel() -> None:
    meta = {
        "Collective name": '"allreduce"',
        "In msg nelems": "4",
        "Out msg nelems": "4",
        "dtype": '"Float"',
        "Process Group Name": '"0"',
        "Process Group Ranks": '"[0, 1]"',
        "Seq": "12",
        "Is asynchronized op": "True",
    }
    timeline = read_events(
        [
            FakeEvent("record_param_comms", "cpu_op", correlation=30, meta=meta),
            FakeEvent("ncclDevKernel_AllReduce", "kernel", correlation=5, linked=30),
        ],
        rank=0,
    )
    (row,) = [row for row, kind in enumerate(timeline.kind) if KINDS[kind] == "communication"]
    assert timeline.calls[timeline.call[row]] == Call(
        collective="all_reduce", group="0", ranks=(0, 1), dtype="float32", given_elements=4, filled_elements=4
    )
    assert timeline.sequence[row] == 12


def test_the_other_rank_of_a_message_is_known() -> None:
    meta = {"Collective name": '"recv"', "Src Rank": "2"}
    timeline = read_events(
        [
            FakeEvent("record_param_comms", "cpu_op", correlation=30, meta=meta),
            FakeEvent("ncclDevKernel_SendRecv", "kernel", linked=30),
        ],
        rank=0,
    )
    assert timeline.calls == (Call(collective="send", peer=2),)


def test_frames_of_python_and_marks_of_the_device_are_left_out() -> None:
    timeline = read_events([FakeEvent("f", "python_function"), FakeEvent(STEP, "gpu_user_annotation")], rank=0)
    assert timeline.names == ()


def _both_ways(
    path: Path, run: Callable[[], object], activities: Sequence[ProfilerActivity]
) -> tuple[Timeline, Timeline]:
    """From memory, and from the file that the same profile exports."""
    profiled = profile(activities=activities, record_shapes=True)
    with recording(profiled):
        run()
    assert profiled.profiler is not None
    results = profiled.profiler.kineto_results
    assert results is not None
    timeline = read_events(results.events(), rank=0)
    profiled.export_chrome_trace(str(path))
    return timeline, read_trace(path, rank=0)


@of_real_events
@pytest.mark.parametrize("count", [30, 31])
def test_sizes_of_a_long_list_of_tensors_are_those_of_the_file(tmp_path: Path, count: int) -> None:
    timeline, from_file = _both_ways(
        tmp_path / "rank0.json", lambda: torch.cat([torch.ones(2)] * count), [ProfilerActivity.CPU]
    )
    assert differing(timeline, from_file) == []
    assert ("[[], []]" in timeline.shapes) == (count > 30)


def _train_on_two_ranks(folder: str) -> tuple[list[str], Timeline]:
    weight = torch.randn(64, 64, requires_grad=True)

    def steps() -> None:
        for _ in range(3):
            with record_function(STEP):
                (weight @ torch.cat([weight, weight], dim=1)).relu().sum().backward()  # type: ignore[no-untyped-call]
                assert isinstance(weight.grad, Tensor)
                dist.all_reduce(weight.grad)
                dist.broadcast(weight.grad, src=0)

    steps()
    path = Path(folder) / f"rank{dist.get_rank()}.json"
    in_process, from_file = _both_ways(path, steps, [ProfilerActivity.CPU])
    return differing(in_process, from_file), in_process


@of_real_events
def test_two_ranks_on_gloo_are_seen_alike_in_process_and_in_the_file(on_ranks: OnRanks, tmp_path: Path) -> None:
    for different, timeline in on_ranks(2, _train_on_two_ranks, str(tmp_path)):
        assert different == []
        assert len(timeline.steps()) == 3
        assert {call.collective for call in timeline.calls} == {"all_reduce", "broadcast"}
        assert {call.given_elements for call in timeline.calls} == {64 * 64}
        assert timeline.intervals("compute").size > 0


@of_real_events
@pytest.mark.gpu
def test_a_profile_of_a_gpu_is_seen_alike_in_process_and_in_the_file(tmp_path: Path) -> None:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        weight = torch.randn(256, 256, device="cuda")
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]

        def run() -> None:
            with record_function(STEP):
                product = weight @ weight
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    dist.all_reduce(product)
                torch.cuda.synchronize()
                product.cpu()

        run()
        timeline, from_file = _both_ways(tmp_path / "rank0.json", run, [ProfilerActivity.CPU, ProfilerActivity.CUDA])
    finally:
        dist.destroy_process_group()
    assert differing(timeline, from_file) == []
    assert timeline.is_device
    # Of communication none is demanded: in a world of one NCCL may launch no kernel.
    assert {"compute", "copy", "launch", "step"} <= {KINDS[kind] for kind in timeline.kind}
