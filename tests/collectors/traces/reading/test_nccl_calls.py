"""NCCL's kernels are told what they are by the order of the record, and only where there is one way to do so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from collectors.rank.flight_recorder import works_since
from collectors.traces.reading.collective_args import CLOCKS_APART_NS, Issued
from collectors.traces.reading.nccl_calls import replayed, why_uncounted, with_calls
from collectors.traces.timeline import ABSENT, Call, Timeline
from tests.collectors.made_nccl_record import EMPTY, MadeRecord
from tests.support.timelines import Span, timeline_of

MS = 1_000_000
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAG_MS = 40
"""The device runs behind the host."""


def _ran(
    correlation: int,
    at_ms: float,
    name: str = SEND,
    *,
    stream: int = 20,
    call: Call | None = None,
    sequence: int | None = None,
    launch: str = "cudaLaunchKernelExC",
    lag_ms: float = LAG_MS,
) -> tuple[Span, Span]:
    """A launch at this time, and its kernel."""
    start_ns = int(at_ms * MS)
    kernel_ns = start_ns + int(lag_ms * MS)
    return (
        Span(name=launch, kind="launch", start_ns=start_ns, end_ns=start_ns + 5, stream=1, correlation=correlation),
        Span(
            name=name,
            kind="communication",
            start_ns=kernel_ns,
            end_ns=kernel_ns + MS,
            stream=stream,
            correlation=correlation,
            call=call,
            sequence=sequence,
        ),
    )


def _timeline(*ran: tuple[Span, ...]) -> Timeline:
    return timeline_of([span for spans in ran for span in spans], rank=0, is_device=True)


def _batch(at_ms: float, group: str = "0", peer: int | None = 1, elements: int = 4) -> Issued:
    call = Call(
        collective="send",
        group=group,
        ranks=(0, 1),
        given_elements=elements,
        filled_elements=elements,
        peer=peer,
    )
    return Issued(event="nccl:coalesced", created_ns=int(at_ms * MS), call=call, sequence=None)


def _reduced(at_ms: float, sequence: int, group: str = "0") -> Issued:
    call = Call(collective="all_reduce", group=group, ranks=(0, 1), given_elements=4)
    return Issued(event="nccl:all_reduce", created_ns=int(at_ms * MS), call=call, sequence=sequence)


def _calls(timeline: Timeline) -> list[Call | None]:
    """Of each event of communication, by start."""
    return [
        None if timeline.call[row] == ABSENT else timeline.calls[timeline.call[row]]
        for row in range(timeline.name.size)
        if timeline.of_kind("communication")[row]
    ]


def _told(timeline: Timeline, issued: Sequence[Issued]) -> tuple[list[tuple[str | None, int | None]], tuple[str, ...]]:
    """Group and peer of each event, and the notes."""
    told, notes = with_calls(timeline, issued)
    return [(None, None) if call is None else (call.group, call.peer) for call in _calls(told)], notes


def test_messages_say_whose_they_are_and_how_much_they_hold() -> None:
    told, notes = with_calls(_timeline(_ran(1, 10), _ran(2, 20)), [_batch(9.9, elements=4), _batch(19.9, elements=6)])
    assert [(call.given_elements, call.filled_elements, call.peer) for call in _calls(told) if call] == [
        (4, 4, 1),
        (6, 6, 1),
    ]
    assert notes == ()


def test_messages_of_two_groups_are_told_apart_by_the_order_of_their_launch() -> None:
    """The kernel that was launched last runs first, since its stream has less before it."""
    ran = [_ran(1, 10, stream=20), _ran(2, 20, stream=24, lag_ms=2), _ran(3, 30, stream=20)]
    issued = [_batch(9.9, "a", 1), _batch(19.9, "b", 2), _batch(29.9, "a", 1)]
    assert _told(_timeline(*ran), issued) == ([("b", 2), ("a", 1), ("a", 1)], ())


def test_messages_that_may_be_any_of_more_batches_are_told_to_be_none() -> None:
    told, notes = _told(_timeline(_ran(1, 10)), [_batch(9.9), _batch(19.9)])
    assert told == [(None, None)]
    assert notes == (
        "process groups, peers and bytes of 1 kernels of messages are absent: the Flight Recorder has 2 batches of"
        " messages",
    )


def test_a_batch_of_several_kernels_leaves_all_untold() -> None:
    told, notes = _told(_timeline(_ran(1, 10), _ran(2, 10.1), _ran(3, 20)), [_batch(9.9), _batch(19.9)])
    assert told == [(None, None)] * 3
    assert "of 3 kernels of messages are absent: the Flight Recorder has 2 batches" in notes[0]


@pytest.mark.parametrize(("launched_ms", "issued_ms"), [((10, 20), (15, 19)), ((10, 20), (5, 9))])
def test_no_message_is_launched_before_it_is_issued_or_after_the_next_is(
    launched_ms: tuple[int, int], issued_ms: tuple[int, int]
) -> None:
    ran = [_ran(number, at_ms) for number, at_ms in enumerate(launched_ms)]
    told, notes = _told(_timeline(*ran), [_batch(at_ms) for at_ms in issued_ms])
    assert told == [(None, None)] * 2
    assert "they were not launched when the Flight Recorder has them issued" in notes[0]


def test_the_profilers_clock_may_be_a_little_off() -> None:
    off_ms = CLOCKS_APART_NS / MS
    assert _told(_timeline(_ran(1, 10)), [_batch(10 + off_ms)])[1] == ()
    assert _told(_timeline(_ran(1, 10)), [_batch(10.1 + off_ms)])[1] != ()


def test_a_group_has_one_stream_for_its_messages() -> None:
    ran = [_ran(1, 10, stream=20), _ran(2, 20, stream=24)]
    told, notes = _told(_timeline(*ran), [_batch(9.9, "a"), _batch(19.9, "a")])
    assert told == [(None, None)] * 2
    assert "a process group would have several streams" in notes[0]


def test_without_launches_one_stream_tells_the_order_and_two_do_not() -> None:
    one = _timeline(_ran(1, 10)[1:], _ran(2, 20)[1:])
    assert _told(one, [_batch(9.9, peer=1), _batch(19.9, peer=2)]) == ([("0", 1), ("0", 2)], ())
    two = _timeline(_ran(1, 10, stream=20)[1:], _ran(2, 20, stream=24)[1:])
    told, notes = _told(two, [_batch(9.9, "a"), _batch(19.9, "b")])
    assert told == [(None, None)] * 2
    assert "their launches are not in the trace" in notes[0]


def test_collectives_without_numbers_take_them_from_the_record_and_keep_their_words() -> None:
    words = Call(collective="all_reduce", group="3", ranks=(0, 1), dtype="bfloat16", given_elements=4)
    ran = [_ran(1, 10, REDUCE, call=words), _ran(2, 20, REDUCE, call=words)]
    told, notes = with_calls(_timeline(*ran), [_reduced(9.9, 7, "3"), _reduced(19.9, 8, "3")])
    assert told.sequence[told.of_kind("communication")].tolist() == [7, 8]
    assert _calls(told) == [words, words]
    assert notes == ()


def test_numbers_that_the_trace_has_stay() -> None:
    words = Call(collective="all_reduce", group="3")
    timeline = _timeline(_ran(1, 10, REDUCE, call=words, sequence=5))
    told, notes = with_calls(timeline, [])
    assert told is timeline
    assert notes == ()


def test_collectives_of_one_group_and_not_of_another_may_lack_numbers() -> None:
    ran = [
        _ran(1, 10, REDUCE, call=Call(collective="all_reduce", group="a")),
        _ran(2, 20, REDUCE, call=Call(collective="all_reduce", group="b"), stream=24),
    ]
    told, notes = with_calls(_timeline(*ran), [_reduced(9.9, 1, "a"), _reduced(19.9, 1, "b"), _reduced(29.9, 2, "b")])
    assert told.sequence[told.of_kind("communication")].tolist() == [1, ABSENT]
    assert notes == (
        "numbers of all_reduce in process group b are absent: 1 of its kernels were traced, and the Flight Recorder"
        " has 2",
    )


def test_a_real_sequence_of_a_ring_is_told_from_its_record() -> None:
    """Each hop of the ring is a batch, and the loss is reduced beside it."""
    record = MadeRecord()
    for step in range(3):
        record.batch([("recv", 1, (2, 8)), ("send", 1, (2, 8))], dtype="BFloat16", at_ns=(10 + 20 * step) * MS)
        record.collective("nccl:all_reduce", at_ns=(20 + 20 * step) * MS)
    words = Call(collective="all_reduce", group="0", given_elements=4)
    ran = [
        _ran(2 * step + part, 10.1 + 20 * step + 10 * part, name, call=call)
        for step in range(3)
        for part, name, call in ((0, SEND, None), (1, REDUCE, words))
    ]
    told, notes = with_calls(_timeline(*ran), works_since(EMPTY, record.json()))
    assert notes == ()
    calls = _calls(told)
    message = Call(collective="send", group="0", dtype="bfloat16", given_elements=16, filled_elements=16)
    assert calls == [message, words] * 3
    assert told.sequence[told.of_kind("communication")].tolist() == [ABSENT, 1, ABSENT, 2, ABSENT, 3]


def test_a_window_without_events_of_the_device_is_left_as_it_is() -> None:
    host = Span(name="gloo:all_reduce", kind="communication", start_ns=0, end_ns=MS, stream=1)
    timeline = timeline_of([host], rank=0, is_device=False)
    assert with_calls(timeline, [_batch(0)]) == (timeline, ())


def test_collectives_that_a_graph_replays_are_counted_and_not_told() -> None:
    ran = [_ran(1, 10, REDUCE, launch="cudaGraphLaunch"), _ran(2, 20)]
    timeline = _timeline(*ran)
    assert replayed(timeline) == 1
    assert _told(timeline, [_batch(19.9)]) == ([(None, None), ("0", 1)], ())
    assert why_uncounted(timeline, [_batch(19.9)], has_graphs=False) == (
        "1 collectives were replayed from CUDA graphs, which the Flight Recorder does not see"
    )


def test_collectives_that_torch_issued_are_all_counted() -> None:
    timeline = _timeline(_ran(1, 10, REDUCE), _ran(2, 20))
    issued = [_reduced(9.9, 1), _batch(19.9)]
    assert why_uncounted(timeline, issued, has_graphs=False) is None
    assert why_uncounted(timeline, issued, has_graphs=True) is None


def test_where_graphs_are_used_more_kernels_than_works_say_that_some_were_replayed() -> None:
    reason = why_uncounted(_timeline(_ran(1, 10, REDUCE)[1:]), [], has_graphs=True)
    assert reason is not None
    assert reason.startswith("1 kernels of NCCL ran, and the Flight Recorder has 0 collectives: CUDA graphs")


def test_where_graphs_are_used_a_window_without_kernels_tells_nothing() -> None:
    timeline = timeline_of([], rank=0, is_device=False)
    assert why_uncounted(timeline, [], has_graphs=False) is None
    reason = why_uncounted(timeline, [], has_graphs=True)
    assert reason == (
        "CUDA graphs may have replayed collectives, and the window has no events of the device that would tell"
    )
