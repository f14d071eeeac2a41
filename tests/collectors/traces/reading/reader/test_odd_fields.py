"""One bad field costs no event, and a bad last event cuts no trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from collectors.traces.analyzers.summary import summary
from collectors.traces.reading.reader import read_trace
from collectors.traces.steps import step_intervals
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.foreign_traces import NCCL, Event, changed, event, good_steps, kernel, read

ODD = Path(__file__).parents[5] / "../shared/data/odd"


def _second(one: Event) -> bool:
    return bool(one["name"] == NCCL and one["args"]["correlation"] == 5)


def _communication_us(timeline: Timeline) -> int | None:
    found = summary([timeline]).shares[0].breakdown.communication_ns
    return None if found is None else found // 1000


@pytest.mark.parametrize(
    "values",
    [
        {"tid": 2**64 - 1},
        {"tid": 2**63},
        {"tid": 10**30},
        {"tid": 1.5},
        {"tid": None},
        {"pid": None},
        {"pid": [1]},
        {"pid": 2**64 - 1},
        {"pid": "stream nowhere"},
        {"name": 5},
    ],
)
def test_a_kernel_with_one_bad_field_is_read(tmp_path: Path, values: dict[str, object]) -> None:
    events = changed(good_steps(), _second, **values)
    timeline = read(tmp_path, events)
    assert sum("not JSON" in line for line in timeline.about.left_out) == 0
    assert _communication_us(timeline) == 600
    assert timeline.name.size == len(events)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("correlation", 2**70),
        ("correlation", "x"),
        ("Seq", {}),
        ("Seq", 2**64 - 1),
        ("Seq", 2**63),
        ("Seq", -2),
        ("Group size", 10**30),
        ("Group size", 0),
        ("In msg nelems", -3),
        ("In msg nelems", "many"),
        ("Out msg nelems", 10**18),
        ("Process Group Name", 7),
    ],
)
def test_a_kernel_with_one_bad_argument_is_read_and_the_argument_counted(
    tmp_path: Path, key: str, value: object
) -> None:
    events = changed(good_steps(), _second, args=lambda args: {**args, key: value})
    timeline = read(tmp_path, events)
    assert _communication_us(timeline) == 600
    assert timeline.about.left_out == (f'1 value of "{key}" of another type than it has, or out of its range',)


@pytest.mark.parametrize(
    ("key", "value"), [("correlation", None), ("Seq", -1), ("Seq", None), ("In msg nelems", 0), ("Group size", 1)]
)
def test_an_argument_that_is_absent_or_the_least_is_no_fault(tmp_path: Path, key: str, value: object) -> None:
    events = changed(good_steps(), _second, args=lambda args: {**args, key: value})
    assert read(tmp_path, events).about.left_out == ()


def test_values_of_one_argument_are_said_once(tmp_path: Path) -> None:
    events = changed(
        good_steps(), lambda one: one["name"] == NCCL, args=lambda args: {**args, "In msg nelems": -3, "Seq": 2**64}
    )
    assert read(tmp_path, events).about.left_out == (
        '3 values of "In msg nelems" of another type than it has, or out of its range',
        '3 values of "Seq" of another type than it has, or out of its range',
    )


@pytest.mark.parametrize("args", [None, [], "text", 7])
def test_an_event_whose_arguments_are_none_is_read(tmp_path: Path, args: object) -> None:
    assert _communication_us(read(tmp_path, changed(good_steps(), _second, args=args))) == 600


@pytest.mark.parametrize("ts", ["soon", None, {}])
def test_work_whose_time_cannot_be_read_makes_its_step_partial(tmp_path: Path, ts: object) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD", ts, 5, tid=7, correlation=500)
    at_us = good_steps()[0]["ts"] + 1040
    call = event("cuda_runtime", "cudaMemcpyAsync", at_us, 2, correlation=500)
    timeline = read(tmp_path, [*good_steps(), copy, call])
    assert timeline.about.left_out[0].startswith("1 event that is not JSON, or lacks what an event needs")
    parts = [part.part for part in step_intervals(timeline)]
    assert parts == ["trace", "step", "partial", "step"]


@pytest.mark.parametrize(
    "bad", ['{"ph": "X", "name": "quo"te"}', '{"ph": "X" "cat": 1}', '{"ph": X}', '{"ph": "X", "args": {]}', "oops"]
)
@pytest.mark.parametrize("tail", ["]", "]}", ']\n, "displayTimeUnit": "ms", "deviceProperties": [{"name": "GPU"}]\n}'])
def test_an_unreadable_last_event_cuts_no_trace(tmp_path: Path, bad: str, tail: str) -> None:
    path = tmp_path / "rank0.json"
    head = "[" if tail == "]" else '{"traceEvents": ['
    path.write_text(head + ",\n".join(map(json.dumps, good_steps())) + ",\n" + bad + "\n" + tail)
    timeline = read_trace(path)
    assert not timeline.about.is_cut
    assert [part.part for part in step_intervals(timeline)] == ["trace", "step", "step", "step"]
    assert timeline.about.left_out[0].startswith("1 event that is not JSON, or lacks what an event needs")
    assert timeline.about.device_name == ("GPU" if "GPU" in tail else None)


def test_a_last_event_that_is_cut_cuts_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(
        '{"traceEvents": [' + ",\n".join(map(json.dumps, good_steps())) + ',\n{"ph": "X", "args": {"a": [1]'
    )
    assert read_trace(path).about.is_cut


def test_a_stream_of_64_bits_keeps_its_communication() -> None:
    if not ODD.exists():
        pytest.skip(f"{ODD} is not there")
    timeline = read_trace(ODD / "c08_stream64.json")
    assert _communication_us(timeline) == 600
    assert [part.part for part in step_intervals(timeline)] == ["trace", "step", "step", "step"]


def test_two_bad_streams_are_two(tmp_path: Path) -> None:
    base = good_steps()[0]["ts"]
    odd = [kernel("k", base + 20, 5, 90, stream=2**64 - 1), kernel("k", base + 20, 5, 91, stream=2**64 - 2)]
    timeline = read(tmp_path, [*good_steps(), *odd])
    assert len(set(timeline.stream[[timeline.names[name] == "k" for name in timeline.name]].tolist())) == 2
