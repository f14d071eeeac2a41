"""Merged ranks are one trace file on one clock, exact to the nanosecond, with waits, arrows and the critical path."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

from collectors.traces.analyzers.critical_path import critical_path
from collectors.traces.analyzers.merge import merge
from collectors.traces.cross_rank.clock_sync import align
from collectors.traces.perfetto import TraceSpan, Track
from collectors.traces.timeline import Call, Timeline
from tests.collectors.traces.made.generated import generate
from tests.collectors.traces.made.small_traces import all_reduce, device, host, span

Event = dict[str, Any]
UNIX_US = 1_795_187_272_350_042


def _events(file: bytes) -> list[Event]:
    events: list[Event] = json.loads(file, parse_float=Decimal)["traceEvents"]
    return events


def _rows(events: list[Event]) -> dict[tuple[str, str], list[Event]]:
    """The boxes of each row, by the names of its group and its own."""
    named: dict[Any, str] = {}
    for event in events:
        if event["ph"] == "M" and "name" in event["args"]:
            named[event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])] = event["args"][
                "name"
            ]
    rows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            rows[named[event["pid"]], named[event["pid"], event["tid"]]].append(event)
    return rows


def _at_ns(file: bytes, event: Event) -> tuple[int, int]:
    """Start and end of a box on the traces' clock."""
    start_ns = int(json.loads(file)["otherData"]["begins_ns"]) + int(event["ts"] * 1000)
    return start_ns, start_ns + int(event["dur"] * 1000)


def _two() -> list[Timeline]:
    """Rank 1 comes 30 us late to the first of two, and rank 0 10 us to the second; their clocks agree."""
    return [
        device(rank, *(all_reduce(UNIX_US + start, UNIX_US + end, number) for number, (start, end) in enumerate(spans)))
        for rank, spans in enumerate([[(0, 50), (70, 90)], [(30, 50), (60, 90)]])
    ]


def test_each_wait_is_a_box_that_names_who_came_last() -> None:
    file = merge(_two()).content
    rows = _rows(_events(file))
    (first,), (second,) = rows["rank 0", "waits in collectives"], rows["rank 1", "waits in collectives"]
    assert (first["name"], _at_ns(file, first)) == ("wait for rank 1", (UNIX_US * 1000, UNIX_US * 1000 + 30_000))
    assert (second["name"], second["dur"]) == ("wait for rank 0", 10)


def test_an_arrow_goes_from_the_last_rank_to_each_that_waited_when_it_came() -> None:
    events = _events(merge(_two()).content)
    boxes = {(event["pid"], event["tid"], event["ts"]): event for event in events if event["ph"] == "X"}
    starts = [event for event in events if event["ph"] == "s"]
    ends = [event for event in events if event["ph"] == "f"]
    assert [event["ts"] for event in starts] == [event["ts"] for event in ends] == [30, 70]
    for start, end in zip(starts, ends, strict=True):
        assert start["id"] == end["id"]
        assert boxes[start["pid"], start["tid"], start["ts"]]["name"] == "ncclDevKernel_AllReduce"
        assert (start["pid"], start["tid"]) != (end["pid"], end["tid"])


def test_the_critical_path_is_a_row_whose_boxes_follow_each_other() -> None:
    truth = generate(3, ranks=4, steps=2, straggler=2)
    file = merge(truth.timelines).content
    boxes = [_at_ns(file, event) for event in _rows(_events(file))["critical path", "critical path"]]
    parts = [(part.start_ns, part.end_ns) for step in critical_path(truth.timelines).steps for part in step.parts]
    assert boxes == parts
    assert all(one[1] == other[0] for one, other in pairwise(boxes))


def test_every_span_of_every_rank_is_there_to_the_nanosecond_on_the_common_clock() -> None:
    truth = generate(4, ranks=4, steps=2, told="sequence")
    file = merge(truth.timelines).content
    rows = _rows(_events(file))
    streams = [events for (group, name), events in rows.items() if group == "rank 2" and name.startswith("stream")]
    drawn = sorted((*_at_ns(file, event), event["name"]) for events in streams for event in events)
    mine = truth.timelines[2]
    names = [mine.names[name] for name in mine.name]
    at_work = mine.of_kind("compute") | mine.of_kind("communication") | mine.of_kind("copy")
    spans = sorted(
        (start, end, name)
        for start, end, name, chosen in zip(mine.start_ns.tolist(), mine.end_ns.tolist(), names, at_work, strict=True)
        if chosen
    )
    (moved_ns,) = {one[0] - other[0] for one, other in zip(drawn, spans, strict=True)}
    assert drawn == [(start + moved_ns, end + moved_ns, name) for start, end, name in spans]


def test_ranks_whose_clocks_are_a_second_apart_are_drawn_together() -> None:
    events = _rows(_events(merge(generate(4, ranks=4, steps=2).timelines).content))
    ends = [[event["ts"] + event["dur"] for event in events[f"rank {rank}", "steps"]] for rank in range(4)]
    assert all(max(step) - min(step) < 1_000 for step in zip(*ends, strict=True))


def test_rows_hold_boxes_that_are_inside_of_each_other_or_apart() -> None:
    file = merge(generate(5, ranks=4, steps=2).timelines).content
    for events in _rows(_events(file)).values():
        open_until: list[Decimal] = []
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1]
            open_until.append(event["ts"] + event["dur"])


def test_what_was_timed_on_another_clock_is_drawn_from_the_beginning_on() -> None:
    track = Track(group="rank 0", name="stage 0, in a step of its own")
    beside = [
        TraceSpan(track=track, name=name, category="forward", start_ns=start_ns, end_ns=start_ns + 2_000)
        for name, start_ns in (("forward 0", 7_000), ("forward 1", 9_000))
    ]
    file = merge([host(0, [span("compute", "aten::mm", UNIX_US, UNIX_US + 5)])], added=beside).content
    drawn = _rows(_events(file))["rank 0", "stage 0, in a step of its own"]
    assert [_at_ns(file, event)[0] - UNIX_US * 1000 for event in drawn] == [0, 2_000]


def test_ranks_stand_in_their_order_whatever_the_order_of_their_files() -> None:
    one, other = _two()
    events = _events(merge([other, one]).content)
    groups = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert groups == ["critical path", "rank 0", "rank 1"]


def test_nothing_merges_to_a_whole_file() -> None:
    merged = merge([])
    assert (_events(merged.content), merged.notes) == ([], ("no span in any trace",))


def test_clocks_that_nothing_connects_are_told() -> None:
    lone = Call(collective="all_reduce", group="1", ranks=(2, 3))
    third = device(2, replace(all_reduce(UNIX_US, UNIX_US + 50, 0), call=lone))
    notes = merge([*_two(), third]).notes
    assert "no collective connects these sets of ranks, whose clocks are not compared: 0, 1; 2" in notes
    assert "1 spans of communication were not matched" in " ".join(notes)


def test_what_was_added_to_each_clock_stands_in_the_file() -> None:
    truth = generate(4, ranks=4, steps=2)
    about = json.loads(merge(truth.timelines).content)["otherData"]
    alignment = align(truth.timelines)
    assert {int(rank): int(offset) for rank, offset in about["clock_offset_ns"].items()} == alignment.offset_ns
    assert int(about["clock_residual_ns"]) == alignment.residual_ns


def test_a_residual_that_is_not_known_is_not_in_the_file() -> None:
    (one, _) = _two()
    about = json.loads(merge([one]).content)["otherData"]
    assert (about["clock_offset_ns"], "clock_residual_ns" in about) == ({"0": "0"}, False)


def test_how_far_clocks_agree_is_told_of_a_drawing() -> None:
    truth = generate(4, ranks=4, steps=2)
    residual_ns = align(truth.timelines).residual_ns
    assert residual_ns is not None
    (agreed,) = (note for note in merge(truth.timelines).notes if "agree within" in note)
    assert f"agree within {residual_ns / 1e3:g} us" in agreed
