"""A rank is drawn in rows that viewers take: boxes are inside of each other or apart."""

from __future__ import annotations

from collectors.traces.analyzers.merge import drawn_spans
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.small_traces import GLOO, all_reduce, device, host, launch, span


def _rows(timeline: Timeline) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for _, box in drawn_spans(timeline):
        assert box.track.group == f"rank {timeline.rank}"
        rows.setdefault(box.track.name, []).append(box.name)
    return rows


def test_streams_threads_steps_and_waits_have_rows_of_their_own() -> None:
    timeline = device(
        4,
        span("step", "ProfilerStep#1", 0, 50),
        launch(1, 1),
        span("compute", "kernel", 5, 9, 7, 1),
        span("wait", "Stream Wait Event", 5, 5, 7),
        span("communication", "gloo:all_reduce", 5, 9, GLOO),
    )
    assert _rows(timeline) == {
        "steps": ["ProfilerStep#1"],
        "stream 7": ["kernel"],
        "waits of stream 7": ["Stream Wait Event"],
        "thread 1": ["cudaLaunchKernel"],
        "thread 3": ["gloo:all_reduce"],
    }


def test_what_a_pipeline_stage_does_has_a_row_too() -> None:
    timeline = host(0, [span("host", "PP:0F1", 0, 9), span("compute", "aten::mm", 1, 5)])
    assert _rows(timeline) == {"stage actions": ["PP:0F1"], "thread 1": ["PP:0F1", "aten::mm"]}


def test_boxes_that_overlap_without_one_inside_the_other_are_on_rows_beside() -> None:
    timeline = device(
        0,
        span("compute", "one", 0, 10, 7),
        span("compute", "inside", 2, 8, 7),
        span("compute", "across", 5, 15, 7),
        span("compute", "after", 10, 20, 7),
    )
    assert _rows(timeline) == {"stream 7": ["one", "inside", "after"], "stream 7 (2)": ["across"]}


def test_a_box_says_what_its_span_does_and_no_more() -> None:
    timeline = device(0, all_reduce(3, 9, 5, correlation=8), span("compute", "kernel", 10, 11, 7))
    first, second = (box for _, box in drawn_spans(timeline) if box.category in ("communication", "compute"))
    arguments = {box.name: dict(box.arguments) for box in (first, second)}
    assert arguments["ncclDevKernel_AllReduce"] == {
        "correlation": 8,
        "collective": "all_reduce",
        "group": "0",
        "sequence": 5,
    }
    assert arguments["kernel"] == {}


def test_each_span_is_drawn_with_its_place_in_the_timeline() -> None:
    timeline = device(0, launch(1, 1), span("compute", "kernel", 5, 9, 7, 1))
    assert all(timeline.names[timeline.name[row]] == box.name for row, box in drawn_spans(timeline))


def test_streams_of_several_devices_are_titled_with_theirs() -> None:
    timeline = device(0, span("compute", "one", 0, 9, 7), span("compute", "other", 0, 9, (3 << 32) + 7))
    assert _rows(timeline) == {"stream 7": ["one"], "stream 7 of GPU 3": ["other"]}
