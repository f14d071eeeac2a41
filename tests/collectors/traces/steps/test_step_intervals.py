"""A step lies on the device where its work does, and what no step holds is listed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.event_names import STEP
from collectors.traces.steps import CUT, NO_TIME, NOTHING, StepInterval, step_intervals, step_names, steps
from collectors.traces.timeline import About, Timeline
from tests.support.timelines import Span, timeline_of


def _step(number: int, start_ns: int, end_ns: int) -> Span:
    return Span(name=f"ProfilerStep#{number}", kind="step", start_ns=start_ns, end_ns=end_ns, stream=1)


def _launched(correlation: int, launch_ns: int, start_ns: int, end_ns: int, *, stream: int = 7) -> list[Span]:
    return [
        Span(
            name="cudaLaunchKernel",
            kind="launch",
            start_ns=launch_ns,
            end_ns=launch_ns + 1,
            stream=1,
            correlation=correlation,
        ),
        _kernel(correlation, start_ns, end_ns, stream=stream),
    ]


def _kernel(correlation: int, start_ns: int, end_ns: int, *, stream: int = 7) -> Span:
    return Span(name="gemm", kind="compute", start_ns=start_ns, end_ns=end_ns, stream=stream, correlation=correlation)


def _device(*spans: Span) -> Timeline:
    return timeline_of(spans, rank=0, is_device=True)


def _times(found: tuple[StepInterval, ...]) -> list[tuple[str, int, int]]:
    return [(stretch.name, stretch.start_ns, stretch.end_ns) for stretch in found]


def test_a_step_of_a_device_that_is_behind_lasts_from_the_end_of_the_work_before_it_to_the_end_of_its_own() -> None:
    timeline = _device(
        _step(1, 0, 10),
        *_launched(1, 2, 20, 30),
        *_launched(2, 4, 30, 45),
        _step(2, 10, 20),
        *_launched(3, 12, 45, 70),
    )
    assert _times(steps(timeline)) == [("ProfilerStep#1", 0, 45), ("ProfilerStep#2", 45, 70)]


def test_where_the_host_waits_for_the_device_a_step_is_the_hosts() -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 9), _step(2, 11, 20), *_launched(2, 12, 13, 18))
    assert _times(steps(timeline)) == [("ProfilerStep#1", 0, 10), ("ProfilerStep#2", 11, 20)]


def test_without_a_device_a_step_is_the_hosts() -> None:
    spans = [_step(1, 0, 10), Span(name="aten::mm", kind="compute", start_ns=5, end_ns=15, stream=1)]
    assert _times(steps(timeline_of(spans, rank=0, is_device=False))) == [("ProfilerStep#1", 0, 10)]


def test_work_that_runs_late_on_another_stream_belongs_to_the_step_that_launched_it() -> None:
    timeline = _device(
        _step(1, 0, 10),
        *_launched(1, 2, 3, 6),
        *_launched(2, 4, 6, 16, stream=20),
        _step(2, 10, 20),
        *_launched(3, 11, 12, 19),
    )
    assert _times(steps(timeline)) == [("ProfilerStep#1", 0, 16), ("ProfilerStep#2", 16, 20)]


def test_work_from_before_the_trace_delays_the_first_step_and_is_listed_before_it() -> None:
    timeline = _device(
        _kernel(1, 0, 25), _step(1, 5, 15), *_launched(2, 6, 25, 40), _step(2, 15, 25), *_launched(3, 16, 40, 50)
    )
    assert step_intervals(timeline)[1:] == (
        StepInterval(part="partial", name="before ProfilerStep#1", start_ns=0, end_ns=25, why="no step holds it"),
        StepInterval(part="step", name="ProfilerStep#1", start_ns=25, end_ns=40),
        StepInterval(part="step", name="ProfilerStep#2", start_ns=40, end_ns=50),
    )


def test_work_of_a_lost_launch_moves_no_step() -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 8), _kernel(2, 8, 14), _step(2, 10, 20))
    assert _times(steps(timeline)) == [("ProfilerStep#1", 0, 10), ("ProfilerStep#2", 10, 20)]


def test_work_between_and_after_steps_is_listed() -> None:
    timeline = _device(
        _step(1, 0, 10),
        *_launched(1, 2, 3, 9),
        *_launched(2, 11, 12, 14),
        _step(2, 15, 20),
        *_launched(3, 16, 17, 19),
        *_launched(4, 21, 22, 30),
    )
    assert [(found.part, *_times((found,))[0]) for found in step_intervals(timeline)] == [
        ("trace", "trace", 3, 30),
        ("step", "ProfilerStep#1", 0, 10),
        ("partial", "after ProfilerStep#1 and before ProfilerStep#2", 10, 15),
        ("step", "ProfilerStep#2", 15, 20),
        ("partial", "after ProfilerStep#2", 20, 30),
    ]


def test_time_between_steps_in_which_nothing_is_at_work_is_not_listed() -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 9), _step(2, 15, 20), *_launched(2, 16, 17, 19))
    assert [found.name for found in step_intervals(timeline)] == ["trace", "ProfilerStep#1", "ProfilerStep#2"]


def test_a_step_is_partial_where_any_launch_in_it_has_no_work() -> None:
    lost = Span(name="hipGraphLaunch", kind="launch", start_ns=4, end_ns=5, stream=1, correlation=9)
    (found,) = steps(_device(_step(1, 0, 10), *_launched(1, 2, 3, 6), lost, *_launched(2, 7, 8, 9)))
    assert (found.part, found.why) == ("partial", "the trace lacks the work of 1 of 3 launches")


def test_a_step_without_any_of_its_work_is_partial_and_the_one_before_it_is_not() -> None:
    lost = [
        Span(name="cuLaunchKernel", kind="launch", start_ns=start_ns, end_ns=13, stream=1, correlation=start_ns)
        for start_ns in (10, 12)
    ]
    one, other = steps(_device(_step(1, 0, 10), *_launched(1, 2, 3, 6), _step(2, 10, 20), *lost))
    assert (one.part, one.why) == ("step", None)
    assert (other.part, other.why) == ("partial", "the trace lacks the work of 2 of 2 launches")


@pytest.mark.parametrize("is_device", [True, False])
def test_no_step_of_a_trace_that_is_cut_is_whole_though_no_launch_in_it_lacks_its_work(is_device: bool) -> None:
    spans = [_step(1, 0, 10), *_launched(1, 2, 3, 6)]
    (found,) = steps(timeline_of(spans, rank=0, is_device=is_device, about=About(is_cut=True)))
    assert (found.part, found.why) == ("partial", CUT)


def test_where_the_trace_is_cut_the_work_that_is_known_to_lack_is_the_reason() -> None:
    lost = Span(name="cudaLaunchKernel", kind="launch", start_ns=4, end_ns=5, stream=1, correlation=9)
    spans = [_step(1, 0, 10), *_launched(1, 2, 3, 6), lost]
    (found,) = steps(timeline_of(spans, rank=0, is_device=True, about=About(is_cut=True)))
    assert found.why == "the trace lacks the work of 1 of 2 launches"


def test_a_call_that_launches_no_kernel_makes_no_step_partial() -> None:
    calls = [
        Span(name=name, kind="launch", start_ns=9, end_ns=10, stream=1, correlation=number)
        for number, name in enumerate(("cudaMemsetAsync", "cudaLaunchHostFunc", "cudaEventQuery"), start=20)
    ]
    (found,) = steps(_device(_step(1, 0, 10), *_launched(1, 2, 3, 6), *calls))
    assert found.part == "step"


def test_steps_are_told_apart_by_the_number_of_their_annotation_and_else_by_their_place() -> None:
    ours = [Span(name=STEP, kind="step", start_ns=start_ns, end_ns=start_ns + 9, stream=1) for start_ns in (20, 30)]
    assert step_names(_device(_step(4, 0, 9), *ours)) == ["ProfilerStep#4", f"{STEP} 1", f"{STEP} 2"]


def test_a_step_has_the_name_that_tells_it_from_the_others() -> None:
    ours = [Span(name=STEP, kind="step", start_ns=start_ns, end_ns=start_ns + 9, stream=1) for start_ns in (0, 10)]
    timeline = _device(*ours, *_launched(1, 2, 3, 6), *_launched(2, 12, 13, 16), *_launched(3, 20, 21, 22))
    assert [found.name for found in step_intervals(timeline)] == ["trace", f"{STEP} 0", f"{STEP} 1", f"after {STEP} 1"]


def test_a_step_that_the_loop_did_not_come_to_is_partial_also_where_the_device_is_behind() -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 30), _step(2, 10, 12))
    assert [(found.part, found.why) for found in steps(timeline)] == [("step", None), ("partial", NOTHING)]
    behind, in_time = (_device(_step(1, 0, 10), *_launched(1, 2, 3, end_ns), _step(2, 10, 20)) for end_ns in (15, 8))
    assert [steps(timeline)[1].why for timeline in (behind, in_time)] == [NOTHING, NOTHING]


def test_without_a_device_a_step_in_which_the_host_did_no_work_is_partial() -> None:
    spans = [
        _step(1, 0, 10),
        Span(name="aten::mm", kind="compute", start_ns=2, end_ns=10, stream=1),
        _step(2, 10, 12),
        Span(name="Optimizer.zero_grad#SGD", kind="host", start_ns=10, end_ns=11, stream=1),
    ]
    found = steps(timeline_of(spans, rank=0, is_device=False))
    assert [(step.part, step.why) for step in found] == [("step", None), ("partial", NOTHING)]


def test_a_step_whose_work_ran_beside_that_of_the_step_before_has_no_time_of_its_own_and_is_partial() -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 30), _step(2, 10, 20), *_launched(2, 12, 13, 19, stream=20))
    assert [(found.part, found.start_ns, found.end_ns, found.why) for found in steps(timeline)] == [
        ("step", 0, 30, None),
        ("partial", 30, 30, NO_TIME),
    ]


@pytest.mark.parametrize(("start_ns", "end_ns"), [(12, 18), (5, 11), (12, 12)])
def test_a_step_is_whole_where_work_of_a_lost_launch_lies_in_it(start_ns: int, end_ns: int) -> None:
    timeline = _device(_step(1, 0, 10), *_launched(1, 2, 3, 5), _kernel(2, start_ns, end_ns), _step(2, 10, 20))
    assert [found.part for found in steps(timeline)] == ["step", "step"]


def test_time_around_a_step_that_lasts_no_time_is_named_by_its_side_of_it() -> None:
    timeline = _device(_step(1, 5, 6), _kernel(1, 0, 8), *_launched(2, 9, 10, 20))
    assert [_times((found,))[0] for found in step_intervals(timeline)[1:]] == [
        ("before ProfilerStep#1", 0, 8),
        ("ProfilerStep#1", 8, 8),
        ("after ProfilerStep#1", 8, 20),
    ]


def test_a_trace_in_which_nothing_is_at_work_has_no_stretch() -> None:
    assert step_intervals(_device(_step(1, 0, 10))) == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 30), st.integers(1, 30), st.sampled_from([7, 20])), max_size=12
    )
)
def test_steps_that_follow_each_other_on_the_host_do_so_on_the_device(work: list[tuple[int, int, int, int]]) -> None:
    spans = [_step(number, 20 * number, 20 * number + 20) for number in range(5)]
    for correlation, (launch_ns, delay_ns, lasts_ns, stream) in enumerate(work):
        start_ns = launch_ns + delay_ns
        spans += _launched(correlation, launch_ns, start_ns, start_ns + lasts_ns, stream=stream)
    found = steps(_device(*spans))
    assert all(one.end_ns == other.start_ns for one, other in pairwise(found))
    assert found[0].start_ns == 0
    # The last ends when the host is through with it and all that was launched until then is done.
    ends_ns = [start + delay + lasts for start, delay, lasts, _ in work]
    assert found[-1].end_ns == max([100, *ends_ns])
