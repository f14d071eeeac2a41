"""A trace file says what the Trace Event Format wants, to the nanosecond."""

from __future__ import annotations

import json
from typing import Any

from collectors.traces.perfetto import Flow, TraceSpan, Track, encode

UNIX_NS = 1_700_000_000_123_456_789
UPPER = Track(group="rank 0", name="stage 0")
LOWER = Track(group="rank 1", name="stage 1")
FIRST = TraceSpan(
    track=UPPER,
    name="forward 0",
    category="forward",
    start_ns=UNIX_NS,
    end_ns=UNIX_NS + 2_001,
    arguments={"microbatch": 0},
)
SECOND = TraceSpan(track=LOWER, name="forward 0", category="forward", start_ns=UNIX_NS + 3_000, end_ns=UNIX_NS + 4_500)


def _events(*flows: Flow) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(encode([FIRST, SECOND], flows))["traceEvents"]
    return events


def _of(events: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == phase]


def test_spans_count_microseconds_from_the_earliest_to_the_nanosecond() -> None:
    first, second = _of(_events(), "X")
    assert (first["ts"], first["dur"]) == (0.0, 2.001)
    assert (second["ts"], second["dur"]) == (3.0, 1.5)
    assert first["args"] == {"microbatch": 0}


def test_the_file_names_the_moment_that_it_counts_from() -> None:
    assert json.loads(encode([FIRST, SECOND]))["otherData"] == {"begins_ns": str(UNIX_NS)}


def test_what_the_file_is_told_of_itself_stands_beside_that_moment() -> None:
    said = json.loads(encode([FIRST], about={"clocks": {"0": "7"}}))["otherData"]
    assert said == {"clocks": {"0": "7"}, "begins_ns": str(UNIX_NS)}


def test_each_row_has_its_name_within_its_group() -> None:
    events = _events()
    places = {(event["pid"], event["tid"]) for event in _of(events, "X")}
    assert len(places) == 2
    named = {
        (event["name"], event["pid"]): event["args"]["name"] for event in _of(events, "M") if "name" in event["args"]
    }
    first, second = _of(events, "X")
    assert named["process_name", first["pid"]] == "rank 0"
    assert named["thread_name", second["pid"]] == "stage 1"


def test_an_arrow_leaves_within_its_source_and_arrives_where_its_target_begins() -> None:
    events = _events(Flow(name="activations", source=FIRST, target=SECOND))
    (start,), (finish,) = _of(events, "s"), _of(events, "f")
    first, second = _of(events, "X")
    assert start["id"] == finish["id"]
    assert (start["pid"], start["tid"]) == (first["pid"], first["tid"])
    assert first["ts"] <= start["ts"] < first["ts"] + first["dur"]
    assert (finish["pid"], finish["tid"], finish["ts"]) == (second["pid"], second["tid"], second["ts"])
    assert finish["bp"] == "e"


def test_an_arrow_may_leave_and_arrive_at_moments_within_its_spans() -> None:
    flow = Flow(name="last", source=FIRST, target=SECOND, left_ns=UNIX_NS + 500, arrived_ns=UNIX_NS + 3_250)
    events = _events(flow)
    assert [event["ts"] for phase in ("s", "f") for event in _of(events, phase)] == [0.5, 3.25]


def test_spans_that_come_one_by_one_count_from_the_moment_that_is_given() -> None:
    text = encode(iter([FIRST, SECOND]), begins_ns=UNIX_NS - 1_000)
    assert [event["ts"] for event in _of(json.loads(text)["traceEvents"], "X")] == [1.0, 4.0]


def test_a_trace_of_nothing_is_whole() -> None:
    assert json.loads(encode([]))["traceEvents"] == []
