"""A chunk of a trace becomes columns, whichever version of kineto wrote it."""

from __future__ import annotations

import json

import pytest

from collectors.traces.reading.decoders import decode_in_python
from collectors.traces.reading.raw_events import CATEGORIES, CollectiveArgs, RawEvents
from collectors.traces.timeline import ABSENT
from tests.collectors.traces.made.kineto_text import event, kernel

ALLREDUCE = {
    "Collective name": "allreduce",
    "In msg nelems": 4,
    "Out msg nelems": 5,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 9,
    "External id": 31,
}


def _chunk(*events: str) -> bytes:
    return b"[" + ",\n".join(events).encode() + b"]"


def _decoded(*events: str) -> RawEvents:
    raw = decode_in_python(_chunk(*events))
    assert raw is not None
    return raw


def test_complete_events_become_rows() -> None:
    raw = _decoded(
        event("cpu_op", "aten::mm", "4458676522690.655", "156.777", pid=5, tid=6, args={"Input Dims": [[2, 3], []]}),
        kernel("gemm", "4458676522691.000", "0.001", stream=20, args={"correlation": 7}),
        kernel("gemm", "4458676522692", "3"),
    )
    assert raw.names == ("aten::mm", "gemm")
    assert raw.name.tolist() == [0, 1, 1]
    assert [CATEGORIES[number] for number in raw.category] == ["cpu_op", "kernel", "kernel"]
    assert raw.start_ns.tolist() == [4458676522690655, 4458676522691000, 4458676522692000]
    assert raw.duration_ns.tolist() == [156777, 1, 3000]
    assert (raw.process.tolist(), raw.thread.tolist()) == ([5, 0, 0], [6, 20, 7])
    assert raw.correlation.tolist() == [ABSENT, 7, ABSENT]
    assert (raw.shapes, raw.shape.tolist()) == (("[[2, 3], []]",), [0, ABSENT, ABSENT])


def test_times_that_doubles_do_not_tell_are_read_from_their_digits() -> None:
    raw = _decoded(kernel("k", "1711964646000123.457", "1.002"))
    assert raw.start_ns.tolist() == [1711964646000123457]
    assert raw.duration_ns.tolist() == [1002]


def test_whole_microseconds_since_1970_are_read() -> None:
    assert _decoded(kernel("k", "1661203462598738", "19")).start_ns.tolist() == [1661203462598738000]


def test_what_is_said_of_a_collective_is_kept_by_its_row() -> None:
    raw = _decoded(kernel("gemm", "1.0", "1.0"), kernel("ncclDevKernel_AllReduce", "2.0", "1.0", args=ALLREDUCE))
    words = CollectiveArgs(
        collective="allreduce",
        dtype="Float",
        given_elements=4,
        filled_elements=5,
        group="0",
        group_size=2,
        ranks="[0, 1]",
        sequence=9,
        external_id=31,
    )
    assert raw.collective_args == ((1, words),)


def test_where_a_message_goes_and_comes_from_is_kept() -> None:
    sent = kernel("ncclDevKernel_SendRecv", "1.0", "1.0", args={"Collective name": "send", "Dst Rank": 3})
    received = kernel("ncclDevKernel_SendRecv", "2.0", "1.0", args={"Collective name": "recv", "Src Rank": 0})
    assert _decoded(sent, received).collective_args == (
        (0, CollectiveArgs(collective="send", destination=3)),
        (1, CollectiveArgs(collective="recv", source=0)),
    )


def test_changes_of_memory_become_allocations() -> None:
    changes = [
        {"Addr": -1, "Bytes": 512, "Total Allocated": 900, "Device Type": 1, "Device Id": 3},
        {"Addr": 2**63, "Bytes": -512, "Device Type": 0, "Device Id": 0},
    ]
    events = [{"ph": "i", "name": "[memory]", "ts": 1.5 + number, "args": args} for number, args in enumerate(changes)]
    allocations = _decoded(*map(json.dumps, events)).allocations
    assert allocations.time_ns.tolist() == [1500, 2500]
    assert allocations.address.tolist() == [2**64 - 1, 2**63]
    assert allocations.change_bytes.tolist() == [512, -512]
    assert allocations.allocated_bytes.tolist() == [900, ABSENT]
    assert allocations.device.tolist() == [3, ABSENT]


def test_changes_of_memory_without_an_address_are_counted_and_not_kept() -> None:
    sizes = {"Bytes": 4, "Device Type": 0, "Device Id": -1}
    events = [
        {"ph": "i", "name": "[memory]", "ts": 1 + number, "args": args}
        for number, args in enumerate((sizes, {"Addr": 5, **sizes}, {"Addr": None, **sizes}, None))
    ]
    raw = _decoded(*map(json.dumps, events))
    assert (raw.without_address, raw.allocations.time_ns.tolist()) == (3, [2000])


def test_the_first_traces_of_kineto_are_read_too() -> None:
    raw = _decoded(
        event("Operator", "aten::mm", "1", "2", pid=5, tid="6", args={"Input dims": [[2]]}),
        event("Kernel", "gemm", "3", "4", pid=0, tid="stream 7", args={"correlation": 8}),
    )
    assert [CATEGORIES[number] for number in raw.category] == ["cpu_op", "kernel"]
    assert raw.thread.tolist() == [6, 7]
    assert raw.shapes == ("[[2]]",)


def test_flows_and_marks_are_passed_over_and_unknown_categories_named() -> None:
    raw = _decoded(
        '{"ph": "s", "id": 1, "pid": 0, "tid": 0, "ts": 1, "cat": "ac2g", "name": "ac2g"}',
        '{"name": "process_name", "ph": "M", "ts": 1, "pid": "Spans", "tid": 0, "args": {"name": "x"}}',
        event("python_function", "f", "1", "1"),
        event("Trace", "PyTorch Profiler (0)", "1", "1", pid="Spans", tid="PyTorch Profiler"),
        event("telepathy", "t", "1", "1"),
    )
    assert raw.name.size == 0
    assert raw.unknown == {"telepathy"}
    assert raw.unread_phases == frozenset()


def test_records_of_cuda_events_are_known_and_not_kept() -> None:
    raw = _decoded(event("cuda_event", "Event Record", "1", "1"))
    assert (raw.name.size, raw.unknown) == (0, frozenset())


@pytest.mark.parametrize("phase", ["B", "E", "x", "", "XX"])
def test_a_phase_that_is_not_read_is_named(phase: str) -> None:
    raw = _decoded(kernel("k", "1.0", "1.0"), kernel("k", "3.0", "1.0").replace('"X"', json.dumps(phase)))
    assert raw.name.size == 1
    assert raw.unread_phases == {phase}


@pytest.mark.parametrize(
    "text",
    [
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 1}',
        '{"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": "x y", "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": "1", "dur": 1}',
        '{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1, "args": {"Addr": 1}}',
        '{"cat": "kernel"}',
        "5",
        '{"ph": "X"',
    ],
)
def test_an_event_that_misses_what_it_needs_makes_the_chunk_none(text: str) -> None:
    assert decode_in_python(_chunk(kernel("k", "1.0", "1.0"), text)) is None


def test_an_empty_chunk_has_no_rows() -> None:
    assert _decoded().name.size == 0
