"""On steps that were made by hand the critical path is what it is by hand, and its parts add up to the step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectors.traces.analyzers.critical_path import StepPath, critical_path
from collectors.traces.dependency_graph.graph import PathKind
from collectors.traces.timeline import About, Call, Timeline
from tests.collectors.traces.made.small_traces import (
    BACKWARD,
    GLOO,
    MAIN,
    MICROSECOND_NS,
    all_reduce,
    device,
    host,
    launch,
    span,
)
from tests.support.timelines import Span

STEP = "ProfilerStep#3"
BROADCAST = Call(collective="broadcast", group="0", ranks=(0, 1))


def _one(timelines: list[Timeline]) -> StepPath:
    (step,) = critical_path(timelines).steps
    return step


def _on_one_host(*timelines: Timeline) -> list[Timeline]:
    """Ranks whose single collective could not tell how their clocks differ."""
    return [replace(timeline, about=About(host="n1")) for timeline in timelines]


def _told(step: StepPath) -> list[tuple[int, str, str, int]]:
    """Rank, kind, name and microseconds of each part."""
    return [(part.rank, part.kind, part.name, part.lasting_ns // MICROSECOND_NS) for part in step.parts]


def _two_kernels(rank: int = 0) -> Timeline:
    return device(
        rank,
        span("step", STEP, 0, 100),
        launch(10, 1),
        launch(14, 2),
        span("compute", "first", 20, 60, 7, 1),
        span("compute", "second", 60, 90, 7, 2),
        span("launch", "cudaDeviceSynchronize", 30, 95, correlation=3),
    )


def test_the_path_of_one_rank_goes_from_its_host_through_its_device_and_back() -> None:
    assert _told(_one([_two_kernels()])) == [
        (0, "host", "between operators", 10),
        (0, "delay", "launch to start", 10),
        (0, "compute", "first", 40),
        (0, "compute", "second", 30),
        (0, "delay", "return from synchronisation", 5),
        (0, "host", "between operators", 5),
    ]


def test_what_is_free_leaves_what_it_hid() -> None:
    # The second kernel starts 10 us after its launch at 14; the host, which calls at 30 to wait, then goes on.
    assert _one([_two_kernels()]).free_ns["compute"] == (30 + 5 + 5) * MICROSECOND_NS


def test_a_kind_that_is_not_in_the_trace_is_not_asked_for() -> None:
    assert set(_one([_two_kernels()]).free_ns) == {"compute", "launch", "host", "delay"}


def _late(rank: int, computed_us: int) -> Timeline:
    """A rank that computes so long, reduces, and computes on what was reduced."""
    return device(
        rank,
        span("step", STEP, 0, 105),
        launch(2, 1),
        span("launch", "cudaStreamWaitEvent", 5, 6, correlation=2),
        launch(7, 3),
        span("launch", "cudaStreamWaitEvent", 10, 11, correlation=4),
        launch(12, 5),
        span("compute", "backward", 4, computed_us, 7, 1),
        all_reduce(computed_us, 90, 0, correlation=3),
        span("compute", "update", 91, 100, 7, 5),
        span("launch", "cudaDeviceSynchronize", 15, 105, correlation=6),
    )


def test_the_path_leaves_a_rank_that_waits_and_goes_on_with_the_one_that_was_waited_for() -> None:
    assert _told(_one(_on_one_host(_late(0, 30), _late(1, 80)))) == [
        (1, "host", "between operators", 2),
        (1, "delay", "launch to start", 2),
        (1, "compute", "backward", 76),
        (0, "communication", "ncclDevKernel_AllReduce", 10),
        (0, "delay", "gap between streams", 1),
        (0, "compute", "update", 9),
        (0, "delay", "return from synchronisation", 5),
    ]


def test_free_communication_still_waits_for_the_last_rank() -> None:
    step = _one(_on_one_host(_late(0, 30), _late(1, 80)))
    assert step.free_ns["communication"] == step.step_ns - 10 * MICROSECOND_NS


def test_alone_a_rank_counts_its_waiting_as_communication_and_says_so() -> None:
    found = critical_path([_late(0, 30)])
    assert found.steps[0].spent_ns("communication") == 60 * MICROSECOND_NS
    assert any("count as communication" in note for note in found.notes)


def test_a_root_that_left_before_the_last_came_did_not_wait_for_it() -> None:
    root, other = (
        device(
            rank,
            span("step", STEP, 0, 100),
            launch(5, 1),
            launch(8, 2),
            replace(all_reduce(start, end, 0, correlation=1), call=BROADCAST),
            span("compute", "forward", end, until, 20, 2),
            span("launch", "cudaDeviceSynchronize", 15, until, correlation=3),
        )
        for rank, (start, end, until) in enumerate([(10, 40, 98), (50, 55, 80)])
    )
    assert _told(_one(_on_one_host(root, other))) == [
        (0, "host", "between operators", 5),
        (0, "delay", "launch to start", 5),
        (0, "communication", "ncclDevKernel_AllReduce", 30),
        (0, "compute", "forward", 58),
        (0, "host", "between operators", 2),
    ]


def _on_gloo(rank: int, computed_us: int) -> list[Span]:
    return [
        span("step", STEP, 0, 1000),
        span("compute", "aten::mm", 0, computed_us),
        span("host", "c10d::allreduce_", computed_us, computed_us + 10),
        span("communication", "gloo:all_reduce", computed_us + 20, 900, GLOO),
        span("compute", "aten::add", 910, 990),
    ]


def test_on_gloo_the_path_goes_through_the_thread_that_was_waited_for() -> None:
    step = _one(_on_one_host(host(0, _on_gloo(0, 300)), host(1, _on_gloo(1, 700))))
    assert _told(step) == [
        (1, "compute", "aten::mm", 700),
        (1, "delay", "enqueue to start", 20),
        (0, "communication", "gloo:all_reduce", 180),
        (0, "delay", "hand-over between threads", 10),
        (0, "compute", "aten::add", 80),
        (0, "host", "between operators", 10),
    ]


def test_a_collective_that_is_hidden_is_not_on_the_path() -> None:
    spans = [
        span("step", STEP, 0, 1000),
        span("compute", "aten::mm", 0, 300),
        span("host", "c10d::allreduce_", 300, 310),
        span("communication", "gloo:all_reduce", 320, 500, GLOO),
        span("compute", "aten::mm", 310, 700),
        span("compute", "aten::add", 705, 1000),
    ]
    assert _one([host(0, spans)]).spent_ns("communication") == 0


def test_while_another_thread_goes_backward_the_path_is_there() -> None:
    spans = [
        span("step", STEP, 0, 1000),
        span("host", "aten::loss", 0, 100),
        span("host", "autograd::mm", 150, 800, BACKWARD),
        span("host", "aten::update", 830, 1000),
        launch(160, 1, BACKWARD),
        span("compute", "kernel", 170, 180, 7, 1),
    ]
    assert [(part.kind, part.name, part.stream) for part in _one([device(0, *spans)]).parts] == [
        ("host", "aten::loss", MAIN),
        ("delay", "hand-over between threads", None),
        ("host", "autograd::mm", BACKWARD),
        ("launch", "cudaLaunchKernel", BACKWARD),
        ("host", "autograd::mm", BACKWARD),
        ("delay", "hand-over between threads", None),
        ("host", "aten::update", MAIN),
    ]


def test_a_device_behind_its_host_ends_a_step_when_its_work_is_done() -> None:
    spans = [
        span("step", "ProfilerStep#1", 0, 20),
        span("step", "ProfilerStep#2", 20, 40),
        launch(5, 1),
        launch(38, 2),
        span("compute", "first", 10, 110, 7, 1),
        span("compute", "second", 110, 210, 7, 2),
    ]
    found = critical_path([device(0, *spans)]).steps
    assert [(step.step, step.start_ns // 1000, step.end_ns // 1000) for step in found] == [
        ("ProfilerStep#1", 0, 110),
        ("ProfilerStep#2", 110, 210),
    ]
    # Without computation the host sets the pace: what it launches at 38 starts 5 us later, as the first launch did.
    assert [step.free_ns["compute"] // 1000 for step in found] == [20, 23]


def _with_a_lead_in() -> Timeline:
    """Four times 10 ms of communication, then 5 of computation on one stream, far behind the host; two in no step."""
    spans = [span("step", f"ProfilerStep#{number}", 100 * number, 100 * number + 99) for number in (2, 3)]
    for number in range(4):
        starts_us, correlation = 1_000 + 15_000 * number, 2 * number
        spans += [
            launch(100 * number + 10, correlation),
            launch(100 * number + 30, correlation + 1),
            all_reduce(starts_us, starts_us + 10_000, number, correlation, stream=7),
            span("compute", "gemm", starts_us + 10_000, starts_us + 15_000, 7, correlation + 1),
        ]
    return device(0, *spans)


@pytest.mark.parametrize(("free", "left_ms"), [("compute", 10), ("communication", 5), ("launch", 15), ("host", 15)])
def test_work_before_the_first_marked_step_leaves_each_step_its_own(free: PathKind, left_ms: int) -> None:
    steps = critical_path([_with_a_lead_in()]).steps
    assert [step.free_ns[free] // MICROSECOND_NS for step in steps] == [left_ms * 1000] * 2


def test_a_step_saves_nothing_where_only_what_came_before_it_is_free() -> None:
    # It is over when its host is, at 110, and begins at 60, when the device has done what was asked for before.
    spans = [
        *(span("step", STEP, 10, 110), launch(0, 1), span("compute", "before", 5, 60, 7, 1)),
        *(launch(70, 2), span("compute", "within", 73, 75, 7, 2)),
    ]
    step = _one([device(0, *spans)])
    assert (step.step_ns, step.free_ns["compute"]) == (50 * MICROSECOND_NS, 50 * MICROSECOND_NS)


def test_a_delay_during_which_the_device_had_other_work_is_told() -> None:
    spans = [
        span("step", STEP, 0, 100),
        launch(5, 1),
        launch(10, 2),
        span("compute", "wide", 6, 60, 7, 1),
        span("compute", "narrow", 50, 100, 13, 2),
    ]
    named = [name for _, kind, name, _ in _told(_one([device(0, *spans)])) if kind == "delay"]
    assert named == ["launch to start, while another stream computed"]


def test_without_steps_the_path_is_that_of_the_whole_trace() -> None:
    spans = [launch(10, 1), span("compute", "kernel", 20, 60, 7, 1)]
    found = critical_path([device(0, *spans)])
    assert [(step.step, step.start_ns // 1000, step.end_ns // 1000) for step in found.steps] == [
        ("whole trace", 10, 60)
    ]
    assert any("whole trace" in note for note in found.notes)


def test_the_whole_trace_begins_when_it_did_whatever_is_free() -> None:
    spans = [launch(10, 1), span("compute", "kernel", 20, 60, 7, 1)]
    free_ns = _one([device(0, *spans)]).free_ns
    assert {kind: free_ns[kind] // MICROSECOND_NS for kind in free_ns} == {"compute": 10, "launch": 50, "delay": 40}


def test_how_far_clocks_agree_is_told_in_microseconds() -> None:
    one = device(0, *(all_reduce(100 * number, 100 * number + 50, number) for number in range(4)))
    ends_us = (1_050, 1_153, 1_250, 1_347)  # A millisecond on, and but for the first 3 us late, in time, 3 us early.
    other = device(1, *(all_reduce(end_us - 50, end_us, number) for number, end_us in enumerate(ends_us)))
    assert any("agree within 3 us," in note for note in critical_path([one, other]).notes)


def test_clocks_moved_by_a_single_collective_agree_nobody_knows_how_well() -> None:
    one, other = (
        device(rank, *(all_reduce(begin_us, begin_us + 50, number) for number, begin_us in enumerate(begins_us)))
        for rank, begins_us in enumerate([(0, 100), (1_000, 1_100)])
    )
    assert any("how well they agree is unknown" in note for note in critical_path([one, other]).notes)


def test_no_span_has_no_path() -> None:
    found = critical_path([device(0)])
    assert (found.steps, found.tables()[0].rows) == ((), ())
