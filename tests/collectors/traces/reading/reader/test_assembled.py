"""A Timeline has its spans in order, and each text once, in the order in which spans first bear it."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from collectors.traces.reading.event_kinds import EARLIEST_UNIX_NS
from collectors.traces.reading.raw_events import CollectiveArgs
from collectors.traces.reading.reader import build_timeline
from collectors.traces.timeline import KINDS, About, Allocations
from tests.collectors.traces.made.kineto_text import differing
from tests.collectors.traces.made.raw import Row, raw_of
from tests.support.timelines import Span, timeline_of

ROWS = (
    Row(
        "ncclDevKernel_AllReduce",
        "kernel",
        30,
        40,
        thread=20,
        said=CollectiveArgs(collective="allreduce", group="0", sequence=4),
    ),
    Row("aten::mm", "cpu_op", 10, 20, thread=5, shape="[[2, 3]]"),
    Row("cudaLaunchKernel", "cuda_runtime", 12, 13, thread=5, correlation=6),
    Row("gemm", "kernel", 25, 33, thread=7, correlation=6),
    Row("ProfilerStep#0", "user_annotation", 10, 90, thread=5),
    Row("aten::add", "cpu_op", 30, 31, thread=5, shape="[[4]]"),
)


def test_it_is_as_if_it_were_made_of_spans() -> None:
    one = build_timeline(raw_of(ROWS), rank=2, about=About(world_size=4))
    spans = []
    for row in range(one.name.size):
        call, sequence, shape = int(one.call[row]), int(one.sequence[row]), int(one.shape[row])
        spans.append(
            Span(
                name=one.names[one.name[row]],
                kind=KINDS[one.kind[row]],
                start_ns=int(one.start_ns[row]),
                end_ns=int(one.end_ns[row]),
                stream=int(one.stream[row]),
                correlation=None if one.correlation[row] < 0 else int(one.correlation[row]),
                call=None if call < 0 else one.calls[call],
                sequence=None if sequence < 0 else sequence,
                shape="" if shape < 0 else one.shapes[shape],
            )
        )
    other = timeline_of(spans[::-1], rank=2, is_device=True)
    assert differing(one, other) == []
    assert one.names[:2] == ("ProfilerStep#0", "aten::mm")
    assert one.sequence.tolist().count(4) == 1
    assert one.about == About(
        world_size=4,
        left_out=one.about.left_out,
        decided_by={"ncclDevKernel_AllReduce": "record_param_comms"},
    )


def test_the_events_columns_become_the_timelines() -> None:
    raw = raw_of(ROWS)
    one = build_timeline(raw, rank=2, about=About())
    for column, given in ((one.start_ns, raw.start_ns), (one.end_ns, raw.duration_ns), (one.sequence, raw.process)):
        assert np.shares_memory(column, given)


def test_the_order_of_the_file_does_not_matter() -> None:
    tied = (Row("b", "kernel", 5, 9, thread=7), Row("a", "kernel", 5, 9, thread=7), Row("a", "kernel", 5, 9, thread=8))
    rows = (*tied, Row("c", "kernel", 5, 11, thread=9))
    whole = build_timeline(raw_of(rows), rank=0, about=About())
    assert [whole.names[number] for number in whole.name] == ["c", "a", "b", "a"]
    for order in permutations(rows):
        assert differing(build_timeline(raw_of(order), rank=0, about=About()), whole) == []


def test_times_count_from_the_base() -> None:
    allocations = Allocations(
        time_ns=np.array([7, 3]),
        address=np.array([1, 2], dtype=np.uint64),
        change_bytes=np.array([8, 9]),
        allocated_bytes=np.array([17, 9]),
        device=np.array([0, 0], dtype=np.int16),
        thread=np.array([4, 5]),
    )
    moved = build_timeline(raw_of(ROWS, allocations=allocations), rank=0, about=About(), base_ns=1000)
    assert moved.start_ns.tolist() == [1010, 1010, 1012, 1025, 1030, 1030]
    assert moved.allocations.time_ns.tolist() == [1003, 1007]
    assert moved.allocations.address.tolist() == [2, 1]
    assert moved.allocations.thread.tolist() == [5, 4]


def test_streams_of_several_devices_are_told_apart() -> None:
    rows = (
        Row("k", "kernel", 10, 20, process=0, thread=7),
        Row("k", "kernel", 10, 21, process=1, thread=7),
        Row("aten::mm", "cpu_op", 10, 30, process=4, thread=7),
    )
    both = build_timeline(raw_of(rows), rank=0, about=About())
    assert both.stream.tolist() == [7, (1 << 32) + 7, 7]
    assert not any("stream" in line for line in both.about.left_out)
    one = build_timeline(raw_of(rows[1:]), rank=0, about=About())
    assert one.stream.tolist() == [7, 7]
    told = "which of its 2 GPUs (0 and 1) a figure belongs to: they are reported as one rank"
    assert (both.about.left_out.count(told), any("GPU" in line for line in one.about.left_out)) == (1, False)


def test_a_wait_that_is_said_to_be_of_another_device_makes_no_second_one() -> None:
    rows = (
        Row("Stream Wait Event", "cuda_sync", 10, 11, process=0, thread=20),
        Row("gemm", "kernel", 12, 20, process=3, thread=7),
        Row("ncclDevKernel_AllReduce", "kernel", 20, 30, process=3, thread=20),
    )
    one = build_timeline(raw_of(rows), rank=3, about=About(), base_ns=EARLIEST_UNIX_NS)
    assert one.about.left_out == ()
    assert one.stream.tolist() == [20, 7, 20]


def test_beside_several_devices_a_wait_of_none_of_them_keeps_its_number() -> None:
    kernels = (Row("k", "kernel", 14, 15, process=1), Row("k", "kernel", 16, 17, process=2, thread=7))
    waits = [(1, 7), (0, 7), (2, -1), (2**32 - 1, -1)]
    rows = [
        Row("s", "cuda_sync", 10 + at, 11 + at, process=place[0], thread=place[1]) for at, place in enumerate(waits)
    ]
    both = build_timeline(raw_of([*rows, *kernels]), rank=0, about=About())
    assert both.stream.tolist() == [(1 << 32) + 7, 7, -1, -1, (1 << 32) + 1, (2 << 32) + 7]


def test_a_stream_of_several_devices_is_spoken_of_with_its_device() -> None:
    rows = (
        Row("k", "kernel", 10, 20, process=0, thread=7),
        Row("k", "kernel", 10, 20, process=3, thread=7),
        Row("k", "kernel", 15, 21, process=3, thread=7),
    )
    left_out = build_timeline(raw_of(rows), rank=0, about=About()).about.left_out
    assert "nothing, though 1 event of stream 7 of GPU 3 begins before another ends, by 0.005 us" in left_out


def test_no_events_make_an_empty_timeline() -> None:
    empty = build_timeline(raw_of(()), rank=0, about=About())
    assert differing(empty, timeline_of([], rank=0, is_device=False)) == []
