"""The division of a step is exact on steps that were made by hand."""

import pytest

from collectors.metrics import rank as rank_metrics
from collectors.traces.breakdown import Breakdown, breakdowns, why_no_communication
from collectors.traces.timeline import Call, SpanKind, Timeline
from tests.support.timelines import Span, timeline_of


def _timeline(*spans: tuple[SpanKind, int, int], is_device: bool = True) -> Timeline:
    return timeline_of(
        [
            Span(name=f"{kind} {number % 2}", kind=kind, start_ns=start, end_ns=end, stream=number)
            for number, (kind, start, end) in enumerate(spans)
        ],
        rank=0,
        is_device=is_device,
    )


def test_each_share_of_a_step_is_what_it_is_by_hand() -> None:
    timeline = _timeline(
        ("step", 0, 100),
        ("compute", 0, 30),
        ("compute", 20, 40),  # Overlaps with the first on another stream: counts once.
        ("communication", 35, 60),
        ("copy", 55, 70),
        ("host", 0, 100),
    )
    assert breakdowns(timeline) == [
        Breakdown(
            step=0,
            step_ns=100,
            compute_ns=40,
            communication_ns=25,
            overlap_ns=5,
            exposed_communication_ns=20,
            exposed_copy_ns=10,
            idle_ns=30,
            collectives_ns={"other": (25, 5)},
        )
    ]


def test_a_span_over_the_edge_of_two_steps_counts_in_each_with_its_part() -> None:
    timeline = _timeline(("step", 0, 50), ("step", 50, 100), ("compute", 40, 70))
    assert [found.compute_ns for found in breakdowns(timeline)] == [10, 20]


def test_what_lies_outside_of_steps_counts_nowhere() -> None:
    timeline = _timeline(("compute", 0, 9), ("step", 10, 20), ("compute", 12, 15), ("compute", 30, 40))
    assert [found.compute_ns for found in breakdowns(timeline)] == [3]


def test_a_step_in_which_nothing_ran_is_left_out() -> None:
    timeline = _timeline(("step", 0, 10), ("compute", 0, 9), ("step", 10, 12))
    assert [(found.step, found.compute_ns) for found in breakdowns(timeline)] == [(0, 9)]


def test_without_communication_it_is_absent_and_the_names_that_were_seen_are_said() -> None:
    timeline = _timeline(("step", 0, 10), ("compute", 0, 5), ("compute", 5, 6), ("compute", 6, 7))
    (found,) = breakdowns(timeline)
    assert (found.communication_ns, found.overlap_ns, found.exposed_communication_ns) == (None, None, None)
    assert why_no_communication(timeline) == ("no communication kernels found; names seen: compute 1, compute 0")
    known = {sample.metric for sample in found.samples()}
    assert known == {
        rank_metrics.TRACED_STEP_SECONDS.name,
        rank_metrics.COMPUTE_SECONDS.name,
        rank_metrics.EXPOSED_COPY_SECONDS.name,
        rank_metrics.IDLE_SECONDS.name,
    }


def test_a_step_without_communication_beside_one_with_is_known_to_have_zero() -> None:
    timeline = _timeline(("step", 0, 10), ("step", 10, 20), ("communication", 2, 4), ("compute", 0, 20))
    found = breakdowns(timeline)
    assert [(step.communication_ns, step.overlap_ns, step.exposed_communication_ns) for step in found] == [
        (2, 2, 0),
        (0, 0, 0),
    ]
    known = {sample.metric: sample.value for sample in found[1].samples()}
    assert known[rank_metrics.COMMUNICATION_SECONDS.name] == known[rank_metrics.EXPOSED_COMMUNICATION_RATIO.name] == 0
    assert rank_metrics.OVERLAP_RATIO.name not in known


def test_on_the_host_copies_are_no_share_of_their_own() -> None:
    (found,) = breakdowns(_timeline(("step", 0, 10), ("compute", 0, 5), is_device=False))
    assert found.exposed_copy_ns is None
    assert found.idle_ns == 5


def test_samples_are_seconds_and_ratios_of_what_they_say() -> None:
    timeline = _timeline(
        ("step", 0, 1_000_000_000), ("compute", 0, 400_000_000), ("communication", 300_000_000, 500_000_000)
    )
    (found,) = breakdowns(timeline)
    values = {sample.metric: sample.value for sample in found.samples()}
    assert values[rank_metrics.COMMUNICATION_SECONDS.name] == 0.2
    assert values[rank_metrics.OVERLAP_RATIO.name] == pytest.approx(0.5)
    assert values[rank_metrics.EXPOSED_COMMUNICATION_RATIO.name] == pytest.approx(0.1)
    assert values[rank_metrics.IDLE_SECONDS.name] == 0.5


def test_each_collective_has_its_own_overlap() -> None:
    spans: tuple[tuple[str, SpanKind, int, int], ...] = (
        ("observatory step", "step", 0, 100),
        ("aten::mm", "compute", 0, 40),
        ("gloo:send", "communication", 30, 50),
        ("gloo:recv", "communication", 45, 60),  # Of the same message: the overlap counts once.
        ("gloo:all_reduce", "communication", 60, 80),
    )
    timeline = timeline_of(
        [Span(name=name, kind=kind, start_ns=start, end_ns=end, stream=0) for name, kind, start, end in spans],
        rank=0,
        is_device=False,
    )
    (found,) = breakdowns(timeline)
    assert found.collectives_ns == {"all_reduce": (20, 0), "send": (30, 10)}
    ratios = [sample for sample in found.samples() if sample.metric == rank_metrics.COLLECTIVE_OVERLAP_RATIO.name]
    assert ratios == [
        rank_metrics.COLLECTIVE_OVERLAP_RATIO.at(0, collective="all_reduce"),
        rank_metrics.COLLECTIVE_OVERLAP_RATIO.at(10 / 30, collective="send"),
    ]


def test_a_collective_that_a_step_holds_none_of_is_absent_there() -> None:
    timeline = _timeline(("step", 0, 10), ("compute", 1, 2), ("step", 10, 20), ("communication", 12, 14))
    assert [found.collectives_ns for found in breakdowns(timeline)] == [{}, {"other": (2, 0)}]


def test_a_collective_is_called_what_its_trace_calls_it_and_not_as_its_kernel() -> None:
    call = Call(collective="all_to_all", group="0")
    spans = [
        Span(name="step", kind="step", start_ns=0, end_ns=20, stream=0),
        Span(name="ncclKernel_SendRecv", kind="communication", start_ns=2, end_ns=5, stream=1, call=call),
        Span(name="ncclKernel_SendRecv", kind="communication", start_ns=7, end_ns=9, stream=1),
    ]
    (found,) = breakdowns(timeline_of(spans, rank=0, is_device=True))
    assert found.collectives_ns == {"all_to_all": (3, 0), "send": (2, 0)}


def test_a_step_is_divided_over_its_time_on_the_device() -> None:
    spans = [
        Span(name="ProfilerStep#7", kind="step", start_ns=0, end_ns=10, stream=0),
        Span(name="cudaLaunchKernel", kind="launch", start_ns=1, end_ns=2, stream=0, correlation=1),
        Span(name="gemm", kind="compute", start_ns=8, end_ns=30, stream=7, correlation=1),
    ]
    (found,) = breakdowns(timeline_of(spans, rank=0, is_device=True))
    assert (found.step_ns, found.compute_ns, found.idle_ns) == (30, 22, 8)


def test_a_step_that_the_trace_does_not_hold_whole_is_left_out_and_the_others_keep_their_numbers() -> None:
    spans = [
        Span(name="ProfilerStep#7", kind="step", start_ns=0, end_ns=10, stream=0),
        Span(name="cudaLaunchKernel", kind="launch", start_ns=1, end_ns=2, stream=0, correlation=1),
        Span(name="ProfilerStep#8", kind="step", start_ns=10, end_ns=20, stream=0),
        Span(name="cudaLaunchKernel", kind="launch", start_ns=11, end_ns=12, stream=0, correlation=2),
        Span(name="gemm", kind="compute", start_ns=13, end_ns=15, stream=7, correlation=2),
    ]
    (found,) = breakdowns(timeline_of(spans, rank=0, is_device=True))
    assert (found.step, found.compute_ns) == (1, 2)


def test_names_of_templates_are_cut_where_a_sentence_names_them() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, " + 9 * "x, "
    span = Span(name=name, kind="compute", start_ns=0, end_ns=1, stream=0)
    timeline = timeline_of([span], rank=0, is_device=True)
    reason = why_no_communication(timeline)
    assert reason is not None
    assert reason.endswith(f"{name[:57]}...")
