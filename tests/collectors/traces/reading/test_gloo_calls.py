"""gloo's events are told what they are by the order of their issue, and only where there is one way to do so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from torch.profiler import profile

from collectors.rank import flight_recorder
from collectors.rank.profiler import EVENTS_HAVE_KINDS, recording
from collectors.traces.reading.collective_args import CLOCKS_APART_NS, Issued, elements_of, with_calls
from collectors.traces.reading.reader import read_events
from collectors.traces.timeline import ABSENT, Call, Timeline
from tests.support.ranks import OnRanks
from tests.support.timelines import Span, timeline_of

MS = 1_000_000
of_real_events = pytest.mark.skipif(
    not EVENTS_HAVE_KINDS, reason="events in memory of torch 2.11 do not tell of what kind they are; its file is read"
)
REDUCE, GATHER = "gloo:all_reduce", "gloo:all_gather"


def _issued(at_ms: int, group: str, sequence: int, event: str = REDUCE) -> Issued:
    call = Call(collective=event.removeprefix("gloo:"), group=group, ranks=(0, 1), given_elements=at_ms)
    return Issued(event=event, created_ns=at_ms * MS, call=call, sequence=sequence)


def _ran(at_ms: int, thread: int, name: str = REDUCE) -> Span:
    return Span(name=name, kind="communication", start_ns=at_ms * MS, end_ns=(at_ms + 9) * MS, stream=thread)


def _told(spans: Sequence[Span], issued: Sequence[Issued]) -> tuple[list[tuple[str | None, int]], tuple[str, ...]]:
    """Group and number of each event, and the notes."""
    timeline, notes = with_calls(timeline_of(spans, rank=0, is_device=False), issued)
    return [(_group(timeline, row), int(timeline.sequence[row])) for row in range(len(spans))], notes


def _group(timeline: Timeline, row: int) -> str | None:
    return None if timeline.call[row] == ABSENT else timeline.calls[timeline.call[row]].group


def test_events_on_both_threads_of_a_group_are_numbered_in_order() -> None:
    told, notes = _told(
        [_ran(1, 7), _ran(3, 8), _ran(5, 7), _ran(6, 8, GATHER)],
        [_issued(1, "0", 4), _issued(2, "0", 5), _issued(4, "0", 6), _issued(5, "0", 7, GATHER)],
    )
    assert told == [("0", 4), ("0", 5), ("0", 6), ("0", 7)]
    assert notes == ()


def test_two_groups_are_told_apart_by_when_collectives_were_issued() -> None:
    told, notes = _told(
        [_ran(1, 7), _ran(4, 9), _ran(6, 7), _ran(9, 9)],
        [_issued(1, "a", 1), _issued(4, "b", 1), _issued(6, "a", 2), _issued(9, "b", 2)],
    )
    assert told == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert notes == ()


def test_two_groups_are_told_apart_by_what_they_do() -> None:
    told, _ = _told([_ran(5, 7, GATHER), _ran(6, 9)], [_issued(1, "a", 1), _issued(1, "b", 1, GATHER)])
    assert told == [("b", 1), ("a", 1)]


def test_events_that_may_be_either_groups_are_told_to_be_neither() -> None:
    told, notes = _told([_ran(5, 7), _ran(6, 9)], [_issued(1, "a", 1), _issued(2, "b", 1)])
    assert told == [(None, ABSENT)] * 2
    assert notes == (
        "process groups and numbers of 2 collectives are absent: their events do not tell which of gloo's threads serve"
        " which of 2 process groups",
    )


def test_no_event_begins_before_its_issue() -> None:
    told, notes = _told([_ran(1, 7)], [_issued(2, "a", 1)])
    assert told == [(None, ABSENT)]
    assert len(notes) == 1


def test_the_profilers_clock_may_be_a_little_behind() -> None:
    event = Span(name=REDUCE, kind="communication", start_ns=2 * MS - CLOCKS_APART_NS, end_ns=3 * MS, stream=7)
    assert _told([event], [_issued(2, "a", 1)])[0] == [("a", 1)]


def test_a_collective_whose_events_are_not_all_there_is_left_untold() -> None:
    told, notes = _told(
        [_ran(1, 7), _ran(2, 7, GATHER)], [_issued(1, "a", 1), _issued(2, "a", 2, GATHER), _issued(3, "a", 3, GATHER)]
    )
    assert told == [("a", 1), (None, ABSENT)]
    assert notes == (
        "process groups and numbers of gloo:all_gather are absent: 1 of its events were traced, and the Flight Recorder"
        " has 2",
    )


def test_messages_keep_what_their_trace_says() -> None:
    message = Span(
        name="gloo:send",
        kind="communication",
        start_ns=0,
        end_ns=MS,
        stream=1,
        call=Call(collective="send", given_elements=3),
    )
    timeline, notes = with_calls(timeline_of([message, _ran(5, 7)], rank=0, is_device=False), [_issued(5, "a", 1)])
    assert [timeline.calls[number].collective for number in timeline.call] == ["send", "all_reduce"]
    assert timeline.sequence.tolist() == [ABSENT, 1]
    assert notes == ()


def reduced_in_two_groups() -> list[tuple[str | None, int | None, int | None]]:
    """Of each event its group, its elements as the record has them, and as the profiler saw them."""
    other = dist.new_group([0, 1])
    world = [torch.ones(size) for size in (1, 30, 500, 7000)]
    others = [torch.ones(size) for size in (2, 40, 600, 8000)]
    before = flight_recorder.dump("gloo")
    profiler = profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
    with recording(profiler):
        for one, two in zip(world, others, strict=True):
            dist.all_reduce(one)
            dist.all_reduce(two, group=other)
    issued = flight_recorder.issued_since(before, flight_recorder.dump("gloo"))
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    seen = read_events(profiler.profiler.kineto_results.events(), rank=dist.get_rank())
    told, _ = with_calls(seen, issued)
    return [
        (
            told.calls[told.call[row]].group,
            told.calls[told.call[row]].given_elements,
            elements_of(seen.shapes[seen.shape[row]]),
        )
        for row in range(seen.name.size)
        if seen.names[seen.name[row]] == REDUCE
    ]


@of_real_events
def test_what_the_record_says_of_real_events_is_what_the_profiler_saw(on_ranks: OnRanks) -> None:
    for told in on_ranks(2, reduced_in_two_groups):
        assert len({group for group, _, _ in told}) == 2
        assert sorted(size for _, size, _ in told if size is not None) == [1, 2, 30, 40, 500, 600, 7000, 8000]
        assert all(recorded == seen for _, recorded, seen in told)
