"""A stretch is divided among what ran in it, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.analyzers.step_division import PARTS, UNTIL_THE_END, Item, ItemTime, StepPart, amounts_of
from collectors.traces.breakdown import divide
from collectors.traces.reading.reader import read_trace
from collectors.traces.steps import StepInterval
from collectors.traces.timeline import Call, SpanKind, Timeline
from tests.support.timelines import Span, timeline_of

WORK: tuple[SpanKind, ...] = ("compute", "communication", "copy")
TRACES = Path(__file__).parents[4] / "../shared/data/traces"

spans_of_work = st.lists(
    st.builds(
        lambda kind, start_ns, length_ns, stream: Span(
            name=f"{kind} {length_ns}", kind=kind, start_ns=start_ns, end_ns=start_ns + length_ns, stream=stream
        ),
        st.sampled_from(WORK),
        st.integers(0, 90),
        st.integers(0, 30),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=15,
)
windows = st.tuples(st.integers(0, 50), st.integers(1, 70)).map(lambda pair: stretch(pair[0], pair[0] + pair[1]))


def stretch(start_ns: int, end_ns: int) -> StepInterval:
    return StepInterval(part="step", name="step", start_ns=start_ns, end_ns=end_ns)


def by_part(amounts: dict[Item, ItemTime]) -> dict[StepPart, int]:
    return {
        part: sum(int(amount.exposed_ns) for item, amount in amounts.items() if item.part == part) for part in PARTS
    }


def division(timeline: Timeline, parts: list[StepInterval]) -> dict[Item, tuple[int, int, int]]:
    """Own time, work and count."""
    return {
        item: (int(amount.exposed_ns), int(amount.work_ns), int(amount.count))
        for item, amount in amounts_of(timeline, parts).items()
    }


def test_each_moment_belongs_to_one_span_and_computation_comes_first() -> None:
    timeline = timeline_of(
        [
            Span(name="gemm", kind="compute", start_ns=0, end_ns=30, stream=1),
            Span(name="relu", kind="compute", start_ns=20, end_ns=40, stream=2),
            Span(name="nccl", kind="communication", start_ns=35, end_ns=60, stream=3),
            Span(name="memcpy", kind="copy", start_ns=55, end_ns=70, stream=4),
        ],
        rank=0,
        is_device=True,
    )
    assert division(timeline, [stretch(0, 100)]) == {
        Item(part="compute", name="gemm"): (20, 30, 1),
        Item(part="compute", name="relu"): (20, 20, 1),
        Item(part="exposed_communication", name="nccl", collective="other"): (20, 25, 1),
        Item(part="exposed_copies", name="memcpy"): (10, 15, 1),
        Item(part="idle", name=UNTIL_THE_END, cause="host_bound"): (30, 30, 1),
    }


def test_an_operator_inside_of_another_works_and_the_other_does_not() -> None:
    timeline = timeline_of(
        [
            Span(name="aten::linear", kind="compute", start_ns=0, end_ns=30, stream=1, shape="[[2, 3]]"),
            Span(name="aten::mm", kind="compute", start_ns=10, end_ns=20, stream=1),
        ],
        rank=0,
        is_device=False,
    )
    assert division(timeline, [stretch(0, 30)]) == {
        Item(part="compute", name="aten::linear", operator="aten::linear", shape="[[2, 3]]"): (20, 20, 1),
        Item(part="compute", name="aten::mm", operator="aten::mm"): (10, 10, 1),
    }


def test_a_kernel_is_told_by_the_operator_and_the_sizes_that_launched_it() -> None:
    timeline = timeline_of(
        [
            Span(name="aten::mm", kind="host", start_ns=0, end_ns=9, stream=1, shape="[[2, 3], [3, 4]]"),
            Span(name="cudaLaunchKernel", kind="launch", start_ns=1, end_ns=2, stream=1, correlation=5),
            Span(name="gemm", kind="compute", start_ns=10, end_ns=20, stream=7, correlation=5),
        ],
        rank=0,
        is_device=True,
    )
    assert division(timeline, [stretch(10, 20)]) == {
        Item(part="compute", name="gemm", operator="aten::mm", shape="[[2, 3], [3, 4]]"): (10, 10, 1)
    }


def test_calls_that_differ_in_group_alone_are_one_item() -> None:
    timeline = timeline_of(
        [
            Span(
                name="nccl",
                kind="communication",
                start_ns=10 * number,
                end_ns=10 * number + 10,
                stream=1,
                call=Call(collective="all_reduce", group=str(number), given_elements=64, dtype="float"),
            )
            for number in range(2)
        ],
        rank=0,
        is_device=True,
    )
    assert division(timeline, [stretch(0, 20)]) == {
        Item(part="exposed_communication", name="nccl", collective="all_reduce", shape="64 float"): (20, 20, 2)
    }


def test_a_span_over_an_edge_counts_where_it_starts_and_works_on_both_sides() -> None:
    timeline = timeline_of([Span(name="gemm", kind="compute", start_ns=5, end_ns=25, stream=1)], rank=0, is_device=True)
    gemm = Item(part="compute", name="gemm")
    assert division(timeline, [stretch(0, 10)])[gemm] == (5, 5, 1)
    assert division(timeline, [stretch(10, 20)])[gemm] == (10, 10, 0)
    assert division(timeline, [stretch(0, 10), stretch(20, 30)])[gemm] == (10, 10, 1)


def test_idle_time_is_told_by_what_runs_next() -> None:
    timeline = timeline_of(
        [
            Span(name="one", kind="compute", start_ns=10, end_ns=20, stream=1),
            Span(name="other", kind="compute", start_ns=35, end_ns=40, stream=1),
        ],
        rank=0,
        is_device=False,
    )
    idle = {item.name: own for item, (own, _, _) in division(timeline, [stretch(0, 60)]).items() if item.part == "idle"}
    assert idle == {"one": 10, "other": 15, UNTIL_THE_END: 20}


@given(spans_of_work, windows, st.booleans())
def test_the_parts_are_those_of_the_breakdown_and_add_up(
    spans: list[Span], window: StepInterval, is_device: bool
) -> None:
    possible = [span for span in spans if is_device or span.kind != "copy"]
    timeline = timeline_of(possible, rank=0, is_device=is_device)
    (expected,) = divide(timeline, [window])
    found = by_part(amounts_of(timeline, [window]))
    assert found == {
        "compute": expected.compute_ns,
        "exposed_communication": expected.exposed_communication_ns or 0,
        "exposed_copies": expected.exposed_copy_ns or 0,
        "idle": expected.idle_ns,
    }
    assert sum(found.values()) == window.end_ns - window.start_ns


@given(spans_of_work, windows)
def test_nothing_has_more_time_of_its_own_than_it_worked(spans: list[Span], window: StepInterval) -> None:
    for amount in amounts_of(timeline_of(spans, rank=0, is_device=True), [window]).values():
        assert 0 <= amount.exposed_ns <= amount.work_ns


def test_every_part_has_a_place() -> None:
    assert set(PARTS) == set(get_args(StepPart))


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"no real traces in {TRACES}")
def test_a_real_trace_is_divided_to_the_nanosecond() -> None:
    timeline = read_trace(TRACES / "nccl_a100_rank0_of_2.json.gz")
    end_ns = 2**62
    found = by_part(amounts_of(timeline, [stretch(0, end_ns)]))
    assert found["compute"] == 115_655_847
    assert found["exposed_communication"] == 46_876_493 - 7_317_025
    assert sum(found.values()) == end_ns
