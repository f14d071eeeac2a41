"""Each moment in which nothing runs has the one cause that was laid for it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.idle import CAUSES, LAUNCH_GAP_NS, idle_causes
from collectors.traces.intervals import intersection, length_ns, union
from collectors.traces.timeline import SpanKind
from tests.support.timelines import Span, timeline_of

SOON_NS = 2_000
LATE_NS = 10 * LAUNCH_GAP_NS
NOW_NS = 1_700_000_000_000_000_000


def _host(name: str, start_ns: int, end_ns: int, kind: SpanKind = "host", thread: int = 1) -> Span:
    return Span(name=name, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=thread)


def _call(correlation: int, start_ns: int, end_ns: int, thread: int = 1) -> Span:
    return Span(
        name="cudaLaunchKernel",
        kind="launch",
        start_ns=start_ns,
        end_ns=end_ns,
        stream=thread,
        correlation=correlation,
    )


def _work(correlation: int, start_ns: int, end_ns: int, kind: SpanKind = "compute", stream: int = 7) -> Span:
    return Span(name=kind, kind=kind, start_ns=start_ns, end_ns=end_ns, stream=stream, correlation=correlation)


def _causes(*spans: Span, window: tuple[int, int] = (0, 10**9), is_device: bool = True) -> dict[str, list[list[int]]]:
    """The parts of each cause that has some, of a window."""
    found = idle_causes(timeline_of(spans, rank=0, is_device=is_device), *window)
    return {cause: parts.tolist() for cause, parts in found.by_cause.items() if parts is not None and parts.size}


def test_until_a_late_launch_the_host_is_the_cause_and_then_the_launch() -> None:
    found = _causes(_call(1, 0, 5), _work(1, 10, 100), _call(2, 400, 405), _work(2, 412, 500), window=(10, 500))
    assert found == {"host_bound": [[100, 400]], "launch_gap": [[400, 412]]}


def test_work_that_was_launched_in_time_has_a_launch_gap() -> None:
    found = _causes(_call(1, 0, 5), _work(1, 10, 100), _call(2, 50, 55), _work(2, 101, 200), window=(10, 200))
    assert found == {"launch_gap": [[100, 101]]}


def test_a_launch_that_returns_late_is_a_launch_gap_however_long_it_took() -> None:
    end_ns = 200 + LATE_NS
    found = _causes(
        _call(1, 0, 5), _work(1, 10, 100), _call(2, 200, end_ns), _work(2, end_ns, end_ns + 50), window=(10, end_ns)
    )
    assert found == {"host_bound": [[100, 200]], "launch_gap": [[200, end_ns]]}


def test_while_its_thread_loads_data_that_is_the_cause() -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 50, 300),
        _call(2, 400, 405),
        _work(2, 405, 500),
        window=(10, 500),
    )
    assert found == {"data_loading": [[100, 300]], "host_bound": [[300, 400]], "launch_gap": [[400, 405]]}


def test_data_that_another_thread_loads_is_no_cause() -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 300, thread=2),
        _call(2, 400, 405),
        _work(2, 405, 500),
        window=(10, 500),
    )
    assert "data_loading" not in found


def test_while_its_thread_waits_for_the_device_that_is_the_cause() -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _host("cudaStreamSynchronize", 20, 130, kind="launch"),
        _host("cudaEventQuery", 150, 160, kind="launch"),
        _call(2, 400, 405),
        _work(2, 405, 500),
        window=(10, 500),
    )
    assert found == {"synchronisation": [[100, 130]], "host_bound": [[130, 400]], "launch_gap": [[400, 405]]}


def test_work_that_begins_after_a_collective_of_another_stream_waited_for_it() -> None:
    begins_ns = 100_000 + LAUNCH_GAP_NS
    found = _causes(
        _call(1, 0, 5),
        _call(2, 10, 15),
        _call(3, 20, 25),
        _work(1, 30, 60),
        _work(2, 30, 100_000, "communication", stream=20),
        _work(3, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"collective": [[100_000, begins_ns]]}


def test_work_that_was_ready_only_as_the_collective_ended_has_a_launch_gap() -> None:
    found = _causes(
        _call(1, 0, 5),
        _call(2, 10, 15),
        _call(3, 20, 25),
        _work(1, 30, 99_000),
        _work(2, 30, 100_000, "communication", stream=20),
        _work(3, 102_000, 103_000),
        window=(30, 102_000),
    )
    assert found == {"launch_gap": [[100_000, 102_000]]}


def test_work_behind_a_collective_on_the_same_stream_did_not_wait_for_another() -> None:
    begins_ns = 100_000 + LATE_NS
    found = _causes(
        _call(1, 0, 5),
        _call(2, 20, 25),
        _work(1, 30, 100_000, "communication"),
        _work(2, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"other": [[100_000, begins_ns]]}


def test_work_that_is_held_by_nothing_that_the_trace_shows_is_other() -> None:
    begins_ns = 100 + LATE_NS
    found = _causes(
        _call(1, 0, 5), _call(2, 6, 9), _work(1, 10, 100), _work(2, begins_ns, begins_ns + 1), window=(10, begins_ns)
    )
    assert found == {"other": [[100, begins_ns]]}


def test_work_that_was_launched_after_the_collective_did_not_wait_for_it() -> None:
    begins_ns = 100_200 + LATE_NS
    found = _causes(
        _call(1, 0, 5),
        _work(1, 30, 100_000, "communication", stream=20),
        _call(2, 100_100, 100_200),
        _work(2, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"host_bound": [[100_000, 100_100]], "other": [[100_100, begins_ns]]}


def test_a_collective_that_ended_before_the_gap_began_is_not_its_cause() -> None:
    begins_ns = 100_000 + LATE_NS
    found = _causes(
        _call(1, 0, 5),
        _call(2, 6, 9),
        _call(3, 10, 15),
        _work(1, 30, 60_000, "communication", stream=20),
        _work(2, 30, 100_000, stream=21),
        _work(3, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"other": [[100_000, begins_ns]]}


def test_messages_of_gloo_hold_no_work_of_the_device() -> None:
    begins_ns = 100_000 + LATE_NS
    found = _causes(
        _call(1, 0, 5),
        _call(2, 20, 25),
        _work(1, 30, 60),
        Span(name="gloo:all_reduce", kind="communication", start_ns=30, end_ns=100_000, stream=3),
        _work(2, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"other": [[100_000, begins_ns]]}


@pytest.mark.parametrize(
    ("name", "waits"),
    [("cudaMemcpy", True), ("hipMemcpyWithStream", True), ("cudaMemcpyAsync", False), ("hipMemcpyAsync", False)],
)
def test_a_copy_waits_for_the_device_unless_it_is_asynchronous(name: str, waits: bool) -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _host(name, 20, 130, kind="launch"),
        _call(2, 130, 132),
        _work(2, 132, 150),
        window=(10, 150),
    )
    assert found == {"synchronisation" if waits else "host_bound": [[100, 130]], "launch_gap": [[130, 132]]}


def test_behind_the_last_work_the_host_launched_nothing_more() -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _host("cudaDeviceSynchronize", 20, 120, kind="launch"),
        window=(10, 150),
    )
    assert found == {"synchronisation": [[100, 120]], "host_bound": [[120, 150]]}


def test_before_work_of_an_unknown_launch_the_cause_is_other_and_it_is_counted() -> None:
    timeline = timeline_of([_call(1, 0, 5), _work(1, 10, 100), _work(2, 105, 200)], rank=0, is_device=True)
    found = idle_causes(timeline, 10, 200)
    assert found.by_cause["other"] is not None
    assert (found.by_cause["other"].tolist(), found.unknown) == ([[100, 105]], 1)


def test_of_work_of_an_unknown_launch_it_cannot_be_told_that_it_waited_for_a_collective() -> None:
    begins_ns = 100_000 + LATE_NS
    found = _causes(
        _call(1, 0, 5),
        _work(1, 30, 100_000, "communication", stream=20),
        _work(2, begins_ns, begins_ns + 10),
        window=(30, begins_ns),
    )
    assert found == {"other": [[100_000, begins_ns]]}


def test_work_from_before_the_trace_was_no_late_launch() -> None:
    found = _causes(_work(1, 10, 100), _work(2, 105, 200), _call(3, 106, 108), _work(3, 200, 210), window=(10, 210))
    assert found == {"launch_gap": [[100, 105]]}


def test_a_span_that_lasts_no_time_ends_no_gap() -> None:
    found = _causes(
        _call(1, 0, 5),
        _work(1, 10, 100),
        _call(2, 150, 151),
        _work(2, 200, 200),
        _call(3, 250, 251),
        _work(3, 260, 300),
        window=(10, 300),
    )
    assert found == {"host_bound": [[100, 250]], "launch_gap": [[250, 260]]}


def test_without_a_device_only_data_loading_is_told_from_the_rest() -> None:
    spans = [
        _host("aten::mm", 0, 10, kind="compute"),
        _host("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 15, 20),
        _host("aten::mm", 30, 40, kind="compute"),
    ]
    found = idle_causes(timeline_of(spans, rank=0, is_device=False), 0, 40)
    assert found.by_cause.keys() == set(CAUSES)
    assert {cause: parts.tolist() for cause, parts in found.by_cause.items() if parts is not None} == {
        "data_loading": [[15, 20]],
        "other": [[10, 15], [20, 30]],
    }


KINDS: tuple[SpanKind, ...] = ("compute", "communication", "copy")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 40),
            st.integers(0, 30),
            st.integers(0, 20),
            st.sampled_from(KINDS),
            st.sampled_from([7, 20]),
            st.booleans(),
        ),
        min_size=1,
        max_size=10,
    ),
    st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 100_000), st.booleans()), max_size=3),
)
def test_the_causes_share_no_moment_and_together_are_all_gaps(
    work: list[tuple[int, int, int, SpanKind, int, bool]], busy: list[tuple[int, int, bool]]
) -> None:
    spans: list[Span] = []
    for correlation, (launch, delay, lasts, kind, stream, is_launched) in enumerate(work):
        launch_ns = NOW_NS + 10_000 * launch
        start_ns = launch_ns + 3_000 * delay
        if is_launched:
            spans.append(_call(correlation, launch_ns, launch_ns + 1_000, thread=stream % 3))
        spans.append(_work(correlation, start_ns, start_ns + 5_000 * lasts, kind, stream))
    for start, lasts, is_loading in busy:
        start_ns, end_ns = NOW_NS + start, NOW_NS + start + lasts
        if is_loading:
            spans.append(_host("enumerate(DataLoader)#x", start_ns, end_ns, thread=7 % 3))
        else:
            spans.append(_host("cudaDeviceSynchronize", start_ns, end_ns, kind="launch", thread=7 % 3))
    found = idle_causes(timeline_of(spans, rank=0, is_device=True), NOW_NS, NOW_NS + 700_000)
    parts = [part for part in found.by_cause.values() if part is not None]
    together = np.concatenate(parts)
    assert sum(length_ns(part) for part in parts) == length_ns(found.gaps)
    assert length_ns(intersection(union(together[:, 0], together[:, 1]), found.gaps)) == length_ns(found.gaps)
