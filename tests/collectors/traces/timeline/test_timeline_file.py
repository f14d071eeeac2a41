"""A Timeline is read back as it was saved, also from files of older versions."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collectors.traces.timeline import ABSENT, COLUMNS, SCHEMA_VERSION, About, Allocations, Call, Timeline, load, save
from tests.support.timelines import Span, timeline_of

SPANS = [
    Span(name="aten::mm", kind="host", start_ns=1, end_ns=3, stream=1, shape="[[2, 3], [3, 4]]"),
    Span(
        name="ncclDevKernel_AllReduce",
        kind="communication",
        start_ns=7,
        end_ns=12,
        stream=2,
        correlation=9,
        call=Call(collective="all_reduce", group="0", ranks=(0, 1), dtype="bfloat16", given_elements=4, group_size=2),
        sequence=5,
    ),
]
MESSAGE = Span(
    name="ncclDevKernel_SendRecv",
    kind="communication",
    start_ns=13,
    end_ns=14,
    stream=2,
    call=Call(collective="send", group="0", peer=1),
)
ALLOCATIONS = Allocations(
    time_ns=np.array([2, 4]),
    address=np.array([2**63, 2**63], dtype=np.uint64),
    change_bytes=np.array([512, -512]),
    allocated_bytes=np.array([512, ABSENT]),
    device=np.array([0, ABSENT], dtype=np.int16),
    thread=np.array([7, ABSENT]),
)
ABOUT = About(world_size=2, device_name="H100", host="n1", groups={"0": (0, 1)}, left_out=("the last event",))


def test_a_timeline_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    timeline = timeline_of([*SPANS, MESSAGE], rank=3, is_device=True, allocations=ALLOCATIONS, about=ABOUT)
    save(timeline, tmp_path / "rank3.timeline.npz")
    again = load(tmp_path / "rank3.timeline.npz")
    for field in fields(Timeline):
        if field.name not in (*COLUMNS, "allocations"):
            assert getattr(again, field.name) == getattr(timeline, field.name)
    for one, other, names in (
        (timeline, again, COLUMNS),
        (timeline.allocations, again.allocations, [field.name for field in fields(Allocations)]),
    ):
        for name in names:
            ours, theirs = getattr(one, name), getattr(other, name)
            assert ours.dtype == theirs.dtype
            assert ours.tolist() == theirs.tolist()


def test_a_file_of_the_first_version_has_no_calls(tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    column = np.array([1])
    np.savez(
        path,
        schema_version=np.int64(1),
        rank=np.int64(0),
        is_device=np.bool_(False),
        names=np.array(["aten::mm"]),
        name=np.array([0], dtype=np.int32),
        kind=np.array([0], dtype=np.int8),
        start_ns=column,
        end_ns=column + 1,
        stream=column,
    )
    timeline = load(path)
    assert (timeline.names, timeline.calls, timeline.shapes) == (("aten::mm",), (), ())
    assert timeline.call.tolist() == timeline.sequence.tolist() == timeline.correlation.tolist() == [ABSENT]


def test_a_file_whose_calls_tell_no_peer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    save(timeline_of(SPANS, rank=3, is_device=True), path)
    with np.load(path) as file:
        columns = dict(file)
    (call,) = msgspec.json.decode(columns["calls"].tobytes())
    del call["peer"]
    columns["calls"] = np.frombuffer(msgspec.json.encode([call]), dtype=np.uint8)
    np.savez(path, **columns)
    assert load(path).calls == (SPANS[1].call,)


def test_a_file_whose_calls_tell_no_group_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    save(timeline_of(SPANS, rank=3, is_device=True), path)
    with np.load(path) as file:
        columns = dict(file)
    (call,) = msgspec.json.decode(columns["calls"].tobytes())
    assert call.pop("group_size") == 2
    columns["calls"] = np.frombuffer(msgspec.json.encode([call]), dtype=np.uint8)
    np.savez(path, **columns)
    (again,) = load(path).calls
    assert (again.ranks, again.group_size) == ((0, 1), None)


def test_a_file_whose_changes_of_memory_tell_no_thread_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank0.timeline.npz"
    save(timeline_of(SPANS, rank=3, is_device=True, allocations=ALLOCATIONS), path)
    with np.load(path) as file:
        columns = dict(file)
    del columns["allocations_thread"]
    np.savez(path, **columns)
    again = load(path).allocations
    assert (again.thread.tolist(), again.device.tolist()) == ([ABSENT, ABSENT], ALLOCATIONS.device.tolist())


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank3.timeline.npz"
    np.savez(path, schema_version=np.int64(SCHEMA_VERSION + 1))
    with pytest.raises(ValueError, match=r"schema version 3 is newer than 2"):
        load(path)
