"""A trace's file is read to the nanosecond, whatever version of kineto wrote it, and says what it does not tell."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from collectors.traces.reading import decoders
from collectors.traces.reading.reader import Unreadable, read_trace
from collectors.traces.timeline import KINDS, Timeline
from tests.collectors.traces.made.kineto_text import BASE_NS, REAL, differing, document, event, kernel

STEP = event("user_annotation", "ProfilerStep#5", "1.000", "9.000", pid=4, tid=4)
LAUNCH = event("cuda_runtime", "cudaLaunchKernel", "2.000", "1.000", pid=4, tid=4, args={"correlation": 11})
GEMM = kernel("gemm", "4.000", "2.500", args={"correlation": 11})
REDUCE = kernel("ncclDevKernel_AllReduce_Sum_f32", "5.000", "3.001", stream=20)
EVENTS = (STEP, LAUNCH, GEMM, REDUCE)


def _read(tmp_path: Path, text: bytes, *, name: str = "trace.json", rank: int | None = None) -> Timeline:
    path = tmp_path / name
    path.write_bytes(text)
    return read_trace(path, rank=rank)


def _starts_ns(timeline: Timeline) -> list[int]:
    return [int(start) for start in timeline.start_ns]


def test_a_trace_becomes_a_timeline(tmp_path: Path) -> None:
    head = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": {"rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0, 3]}]},
        "host_name": "n1",
        "baseTimeNanoseconds": BASE_NS,
    }
    timeline = _read(tmp_path, document(EVENTS, head=head))
    assert (timeline.rank, timeline.is_device) == (3, True)
    assert [KINDS[kind] for kind in timeline.kind] == ["step", "launch", "compute", "communication"]
    assert _starts_ns(timeline) == [BASE_NS + 1000, BASE_NS + 2000, BASE_NS + 4000, BASE_NS + 5000]
    assert timeline.end_ns.tolist()[-1] == BASE_NS + 8001
    assert timeline.correlation.tolist() == [-1, 11, 11, -1]
    assert timeline.stream.tolist() == [4, 4, 7, 20]
    about = timeline.about
    assert (about.world_size, about.device_name, about.host) == (8, "NVIDIA H100", "n1")
    assert about.groups == {"0": (0, 3)}
    assert about.left_out == ()


@pytest.mark.parametrize("where", ["head", "tail"])
def test_the_base_time_may_stand_before_the_events_or_behind_them(tmp_path: Path, where: str) -> None:
    base = {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    text = document(EVENTS, head=base) if where == "head" else document(EVENTS, head={}, tail=base)
    assert _starts_ns(_read(tmp_path, text))[0] == BASE_NS + 1000


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "end_ns"),
    [
        ("1661203462598738", "19", 1661203462598738000, 1661203462598757000),
        ("1711964646000123.457", "1.002", 1711964646000123457, 1711964646000124459),
        ("1711964646000123457", "1002", 1711964646000123457, 1711964646000124459),
    ],
)
def test_times_since_1970_are_read_in_every_unit(tmp_path: Path, ts: str, dur: str, start_ns: int, end_ns: int) -> None:
    timeline = _read(tmp_path, document([kernel("k", ts, dur)]))
    assert (timeline.start_ns.tolist(), timeline.end_ns.tolist()) == ([start_ns], [end_ns])


def test_a_bare_list_of_events_is_a_trace_whether_it_is_closed_or_not(tmp_path: Path) -> None:
    closed = _read(tmp_path, ("[" + ",\n".join(EVENTS) + "]").encode())
    for text in ("[\n" + ",\n".join(EVENTS) + ",\n", "[\n" + ",\n".join(EVENTS)):
        open_ = _read(tmp_path, text.encode())
        assert differing(closed, open_) == []
        assert open_.about.left_out == closed.about.left_out


def test_a_compressed_trace_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    plain, packed = document(EVENTS), gzip.compress(document(EVENTS))
    assert differing(_read(tmp_path, plain), _read(tmp_path, packed, name="trace.anything")) == []


@pytest.mark.parametrize(
    ("name", "told", "rank"),
    [("trace.json", None, 0), ("rank12.pt.trace.json", None, 12), ("my_RANK_5.json", None, 5), ("rank2.json", 7, 7)],
)
def test_a_trace_without_a_rank_has_the_one_that_is_told_or_that_its_name_bears(
    tmp_path: Path, name: str, told: int | None, rank: int
) -> None:
    timeline = _read(tmp_path, document(EVENTS, head={"baseTimeNanoseconds": BASE_NS}), name=name, rank=told)
    assert timeline.rank == rank
    assert any("its rank" in line for line in timeline.about.left_out) == (name == "trace.json")


def test_a_rank_that_is_told_counts_more_than_the_traces(tmp_path: Path) -> None:
    assert _read(tmp_path, document(EVENTS), rank=6).rank == 6


def test_a_text_in_small_pieces_is_the_same_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(document([*EVENTS * 50], tail={"distributedInfo": {"rank": 1}}))
    whole = read_trace(path)
    for chunk_bytes in (64, 700, 4096):
        assert differing(whole, read_trace(path, chunk_bytes=chunk_bytes)) == []


def test_an_event_that_reads_like_two_is_one(tmp_path: Path) -> None:
    tricky = event(
        "cpu_op", 'a}, {"ph": "X"}, {"name": ', "1.0", "8.0", args={"list": [{"ph": 1}, {"ph": 2}], "[": "]}"}
    )
    path = tmp_path / "trace.json"
    path.write_bytes(document([tricky] * 30))
    for chunk_bytes in (300, 1 << 20):
        timeline = read_trace(path, chunk_bytes=chunk_bytes)
        assert timeline.names == ('a}, {"ph": "X"}, {"name": ',)
        assert timeline.name.size == 30


def test_a_key_that_reads_like_the_events_is_not_taken_for_them(tmp_path: Path) -> None:
    head = {"note": '"traceEvents": [', "other": {"traceEvents": []}, "baseTimeNanoseconds": BASE_NS}
    assert _read(tmp_path, document(EVENTS, head=head)).name.size == 4


def test_a_trace_without_a_base_says_that_its_clock_is_not_known(tmp_path: Path) -> None:
    assert any("the base of its times" in line for line in _read(tmp_path, document(EVENTS)).about.left_out)


def test_an_unreadable_file_names_the_byte_and_survives_pickling(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"trace\.json: byte 9: it is not JSON") as caught:
        _read(tmp_path, b'{"a": 1, b')
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.at) == (str(caught.value), 9)


@pytest.mark.skipif(not REAL.exists(), reason="the folder shared/ is not beside the project")
@pytest.mark.parametrize(
    ("name", "communication_ns", "compute_ns", "overlap_ns"),
    [
        ("resnet_mi300x_rank0_of_8", 71_516_523, 25_739_303, 15_891_299),
        ("nccl_a100_rank0_of_2", 46_876_493, 115_655_847, 7_317_025),
        ("a100_rank3_of_8", 163_535_000, 281_336_000, 75_614_000),
    ],
)
def test_real_traces_are_exact_to_the_nanosecond(
    name: str, communication_ns: int, compute_ns: int, overlap_ns: int
) -> None:
    timeline = read_trace(REAL / f"{name}.json.gz")
    assert timeline.busy_ns("communication") == communication_ns
    assert timeline.busy_ns("compute") == compute_ns
    assert timeline.overlap_ns("compute", "communication") == overlap_ns
    assert timeline.about.left_out == ()


@pytest.mark.skipif(not REAL.exists(), reason="the folder shared/ is not beside the project")
def test_real_traces_are_alike_by_each_decoder_and_in_pieces_of_any_size() -> None:
    for path in sorted(REAL.glob("*.json.gz")):
        one = read_trace(path)
        other = read_trace(path, decoders=(decoders.decode_in_python,), chunk_bytes=100_000)
        assert differing(one, other) == []
        assert one.about == other.about


@pytest.mark.skipif(not REAL.exists(), reason="the folder shared/ is not beside the project")
def test_kernels_of_sends_and_receives_are_the_collectives_that_the_host_called() -> None:
    timeline = read_trace(REAL / "dlrm_v100_rank0.json.gz")
    called = [timeline.calls[number] for number in timeline.call if number >= 0]
    assert [call.collective for call in called].count("all_to_all") == 5
    assert [call.collective for call in called].count("all_reduce") == 3
    assert all(call.given_elements and call.group is None for call in called)


@pytest.mark.skipif(not REAL.exists(), reason="the folder shared/ is not beside the project")
def test_args_of_collectives_become_calls() -> None:
    timeline = read_trace(REAL / "nccl_a100_rank0_of_2.json.gz")
    broadcast, all_reduce = (
        next(call for call in timeline.calls if call.collective == collective)
        for collective in ("broadcast", "all_reduce")
    )
    assert (broadcast.group, broadcast.ranks) == (all_reduce.group, all_reduce.ranks) == ("0", (0, 1))
    assert all_reduce.dtype == "float32"
    assert all_reduce.given_elements == all_reduce.filled_elements
