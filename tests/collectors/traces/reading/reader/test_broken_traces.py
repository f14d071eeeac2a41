"""A broken trace is read as far as it is good, and says what was left out, or is refused at the byte where it broke."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectors.traces.reading.reader import Unreadable, read_trace
from collectors.traces.timeline import Timeline
from tests.collectors.traces.made.kineto_text import BASE_NS, document, event, kernel

BASE = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": BASE_NS}


def _events(begin_us: int) -> list[str]:
    """One step from there on; five of these events are spans."""
    at = [f"{begin_us + after}.000" for after in (1, 2, 3, 5, 20, 4)]
    memory = '"Total Allocated": 256, "Bytes": 256, "Device Id": 0, "Device Type": 1, "Addr": 94902'
    return [
        event("user_annotation", "ProfilerStep#1", at[0], "90.000", pid=4, tid=4),
        event("cpu_op", "aten::mm", at[1], "1.000", pid=4, tid=4, args={"External id": 1, "Input Dims": [[2, 3]]}),
        event("cuda_runtime", "cudaLaunchKernel", at[2], "1.000", pid=4, tid=4, args={"correlation": begin_us}),
        f'{{"ph": "s", "id": 8, "pid": 4, "tid": 4, "ts": {at[2]}, "cat": "ac2g", "name": "ac2g"}}',
        kernel("gemm", at[3], "4.000", args={"correlation": begin_us, "grid": [1, 1, 1], "blocks per SM": 0.5}),
        kernel("ncclDevKernel_AllReduce", at[4], "4.000", stream=20, args={"Collective name": "allreduce", "Seq": 3}),
        f'{{"ph": "i", "name": "[memory]", "pid": 4, "tid": 4, "ts": {at[5]}, "args": {{{memory}}}}}',
    ]


EVENTS = _events(100)
TRACE = document([*_events(100), *_events(200), *_events(300)], head=BASE)
PACKED = gzip.compress(TRACE)
CHUNK_BYTES = 512

fuzz = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(folder: Path, text: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Timeline:
    path = folder / "rank0.json"
    path.write_bytes(text)
    return read_trace(path, chunk_bytes=chunk_bytes)


def _read_or_none(folder: Path, text: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> Timeline | None:
    """None where it is refused, at a byte that it may well have."""
    try:
        return _read(folder, text, chunk_bytes=chunk_bytes)
    except Unreadable as error:
        assert 0 <= error.at <= len(TRACE) + 1000  # noqa: PT017  # Each other error shall be seen.
        return None


def _rows(timeline: Timeline) -> list[tuple[object, ...]]:
    """Each span by what it is, in order."""
    columns = (timeline.start_ns, timeline.end_ns, timeline.stream, timeline.correlation, timeline.sequence)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    return [(timeline.names[name], *row) for name, row in zip(timeline.name.tolist(), numbers, strict=True)]


@fuzz
@given(cut=st.integers(0, len(TRACE)), chunk_bytes=st.sampled_from([100, 512, 1 << 16]))
def test_a_cut_trace_is_a_part_of_the_whole_or_refused(tmp_path: Path, cut: int, chunk_bytes: int) -> None:
    whole = Counter(_rows(_read(tmp_path, TRACE)))
    timeline = _read_or_none(tmp_path, TRACE[:cut], chunk_bytes=chunk_bytes)
    if timeline is not None:
        assert Counter(_rows(timeline)) <= whole
        assert timeline.about.left_out or cut == len(TRACE)


@fuzz
@given(data=st.data())
def test_a_trace_with_other_bytes_in_it_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    text = bytearray(TRACE)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 6))
        text[place : place + length] = data.draw(
            st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"{", b"}]", b"\\"]))
        )
    timeline = _read_or_none(tmp_path, bytes(text), chunk_bytes=data.draw(st.sampled_from([100, 512, 1 << 16])))
    assert timeline is None or (timeline.end_ns >= timeline.start_ns).all()


@pytest.mark.slow
@fuzz
@given(text=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_anything_at_all_is_read_or_refused(tmp_path: Path, text: bytes) -> None:
    for before in (b"", b"[", b'{"traceEvents": [', b"\x1f\x8b"):
        _read_or_none(tmp_path, before + text)


@fuzz
@given(cut=st.integers(0, len(PACKED) - 1))
def test_a_cut_compressed_trace_is_read_or_refused(tmp_path: Path, cut: int) -> None:
    timeline = _read_or_none(tmp_path, PACKED[:cut])
    assert timeline is None or any("compression" in line for line in timeline.about.left_out)


def test_a_cut_compressed_trace_is_read_like_the_text_that_is_left_of_it(tmp_path: Path) -> None:
    # Each event says something else, so that less than all of the text is left.
    packed = gzip.compress(document([text for begin_us in range(100, 100_000, 100) for text in _events(begin_us)]))
    cut = packed[: len(packed) // 2]
    left = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(cut)
    timeline, plain = _read(tmp_path, cut), _read(tmp_path, left)
    assert 1000 < timeline.name.size < 4000
    assert _rows(timeline) == _rows(plain)
    assert timeline.about.left_out[0] == plain.about.left_out[0]
    assert timeline.about.left_out[0].startswith("everything after byte")
    assert timeline.about.left_out[1] == "what cannot be unpacked: its compression is cut short"


def test_a_truncated_trace_keeps_all_whole_events(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE[: TRACE.rindex(b'"Collective name"')])
    assert timeline.name.size == 3 * 5 - 1
    (line,) = timeline.about.left_out
    assert line.startswith("everything after byte")


def test_an_event_with_a_quotation_mark_too_many_is_left_out_alone(tmp_path: Path) -> None:
    broken = EVENTS[1].replace("aten::mm", 'quo"te')
    timeline = _read(tmp_path, document([EVENTS[0], broken, *EVENTS[2:]], head=BASE))
    assert timeline.name.size == 4
    (line,) = timeline.about.left_out
    assert line.startswith("1 event that is not JSON, or lacks what an event needs; it is at byte")


def test_a_bandwidth_without_end_costs_no_event(tmp_path: Path) -> None:
    copy = event("gpu_memcpy", "Memcpy HtoD", "120.000", "0.000", args={"correlation": 5, "bandwidth": 0})
    for bad in ("inf", "-nan", "Infinity", "NaN"):
        text = document([*EVENTS, copy.replace('"bandwidth": 0', f'"bandwidth": {bad}')], head=BASE)
        timeline = _read(tmp_path, text)
        assert timeline.name.size == 6
        assert 5 in timeline.correlation
        assert timeline.about.left_out == ()


def test_what_is_no_number_where_one_is_read_says_nothing(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b'"Seq": 3', b'"Seq": inf'), chunk_bytes=1 << 16)
    assert timeline.calls[0].collective == "all_reduce"
    assert set(timeline.sequence.tolist()) == {-1}
    timeless = kernel("k", "nan", "1.000")
    left = _read(tmp_path, document([*EVENTS, timeless, *EVENTS], head=BASE), chunk_bytes=1 << 16)
    assert left.name.size == 10
    assert left.about.left_out[0].startswith("1 event that is not JSON, or lacks what an event needs")


def test_a_number_that_no_double_holds_costs_no_event(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b'"Seq": 3', b'"Seq": 1e400'), chunk_bytes=1 << 16)
    assert timeline.calls[0].collective == "all_reduce"
    assert set(timeline.sequence.tolist()) == {-1}
    assert timeline.about.left_out == ('3 values of "Seq" of another type than it has, or out of its range',)


def test_an_event_whose_time_is_beyond_64_bits_is_left_out_alone(tmp_path: Path) -> None:
    starts = ("1700000000000000000", "0", "1700000000000002000", "90000000000000000", "9300000000000000000")
    timeline = _read(tmp_path, document([kernel("k", ts, "5") for ts in starts]))
    assert timeline.start_ns.tolist() == [1700000000000000000, 1700000000000002000]
    assert (timeline.end_ns - timeline.start_ns).tolist() == [5, 5]
    assert timeline.about.left_out[:2] == (
        "2 events that end later than 64 bits of nanoseconds can tell, counted from the trace's base",
        "1 event at time 0: the profiler never took the time",
    )


@pytest.mark.slow
@fuzz
@given(
    base=st.integers(1, 9 * 10**15) | st.integers(10**17, 9 * 10**18),
    later=st.lists(st.integers(0, 3 * 10**9), min_size=1, max_size=8),
)
def test_whatever_the_times_are_they_are_read_exactly(tmp_path: Path, base: int, later: list[int]) -> None:
    starts = [base + each for each in later]
    read = _read(tmp_path, document([kernel("k", str(start), "0") for start in starts]))
    assert read.start_ns.tolist() == sorted(start if start >= 10**17 else 1000 * start for start in starts)


def test_a_trace_that_ends_before_its_events_do_is_said_to_be_cut(tmp_path: Path) -> None:
    assert _read(tmp_path, TRACE[: TRACE.rindex(b'"Collective name"')]).about.is_cut
    assert _read(tmp_path, gzip.compress(TRACE)[:-60]).about.is_cut
    assert not _read(tmp_path, TRACE).about.is_cut
    assert not _read(tmp_path, TRACE[: TRACE.rindex(b"]") + 1]).about.is_cut


def test_a_name_with_letters_that_are_none_costs_no_event(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b"gemm", b"ge\xffm"))
    assert timeline.name.size == 15
    assert "ge\ufffdm" in timeline.names


def test_an_arg_of_another_type_costs_that_arg_alone(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b'"Seq": 3', b'"Seq": "three"'))
    assert timeline.calls[0].collective == "all_reduce"
    assert set(timeline.sequence.tolist()) == {-1}


@fuzz
@given(
    key=st.sampled_from(
        ["Total Allocated", "Bytes", "Device Id", "Device Type", "Addr", "External id", "Seq", "correlation"]
    ),
    value=st.sampled_from([2**63, 2**64 - 1, 2**63 - 1, -(2**63), -1, 10**30, "9" * 5000]),
)
def test_a_number_of_args_may_be_of_any_size(tmp_path: Path, key: str, value: int | str) -> None:
    text = re.sub(rf'"{key}": \d+', f'"{key}": {value}', TRACE.decode()).encode()
    assert text != TRACE
    timeline = _read_or_none(tmp_path, text)
    assert timeline is not None
    assert timeline.names[0] == "ProfilerStep#1"
    assert timeline.name.size == 15 or timeline.about.left_out


def test_a_sequence_beyond_64_bits_is_none(tmp_path: Path) -> None:
    for value in (2**63, 2**64 - 1):
        timeline = _read(tmp_path, TRACE.replace(b'"Seq": 3', f'"Seq": {value}'.encode()))
        assert (timeline.name.size, set(timeline.sequence.tolist())) == (15, {-1})
        assert timeline.about.left_out == ('3 values of "Seq" of another type than it has, or out of its range',)


def test_ranks_of_any_length_cost_no_event(tmp_path: Path) -> None:
    ranks = f'"Seq": 3, "Process Group Ranks": "[0, {"9" * 5000}]"'.encode()
    timeline = _read(tmp_path, TRACE.replace(b'"Seq": 3', ranks))
    assert (timeline.name.size, timeline.calls[0].ranks, timeline.about.left_out) == (15, (), ())


def test_a_name_in_which_something_is_no_number_is_kept(tmp_path: Path) -> None:
    name = r"void f<std::inf, c: nan>(\"a\\)"
    odd = event("cpu_op", name, "120.000", "1.000", args={"share": 0}).replace('"share": 0', '"share":nan')
    timeline = _read(tmp_path, document([*EVENTS, odd], head=BASE))
    assert name in timeline.names
    assert timeline.about.left_out == ()


def test_changes_of_memory_without_an_address_are_no_broken_events(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b', "Addr": 94902', b""))
    assert (timeline.name.size, timeline.allocations.time_ns.size) == (15, 0)
    assert timeline.about.left_out == ("3 changes of memory without an address, as kineto wrote them in 2021",)


def test_an_event_whose_phase_is_damaged_is_said(tmp_path: Path) -> None:
    timeline = _read(tmp_path, document([EVENTS[0].replace('"X"', '"Y"'), *EVENTS[1:]], head=BASE))
    assert timeline.name.size == 4
    assert timeline.about.left_out == ('events of phases that are not read: "Y"',)


def test_events_that_end_before_they_begin_are_left_out(tmp_path: Path) -> None:
    timeline = _read(tmp_path, document([*EVENTS, kernel("k", "108.000", "-1.000")], head=BASE))
    assert "k" not in timeline.names
    assert timeline.about.left_out == ("1 event that ends before it begins",)


def test_events_that_overlap_on_one_stream_are_kept_and_said(tmp_path: Path) -> None:
    timeline = _read(tmp_path, document([*EVENTS, kernel("late", "108.999", "1.000")], head=BASE))
    assert "late" in timeline.names
    assert timeline.about.left_out == ("nothing, though 1 event of stream 7 begins before another ends, by 0.001 us",)


def test_a_trace_of_a_device_without_its_events_says_so(tmp_path: Path) -> None:
    timeline = _read(tmp_path, document(EVENTS[:3], head=BASE))
    assert not timeline.is_device
    assert timeline.about.left_out == (
        "the device: it has no kernels, but 1 call of its driver; the figures are of the host's work",
    )


def test_a_category_that_is_not_known_is_named(tmp_path: Path) -> None:
    timeline = _read(tmp_path, document([*EVENTS, event("telepathy", "t", "1", "1")], head=BASE))
    assert timeline.about.left_out == ('events of categories that are not known: "telepathy"',)


def test_metadata_that_is_no_json_costs_no_event(tmp_path: Path) -> None:
    timeline = _read(tmp_path, TRACE.replace(b'"rank": 0', b'"rank": oh'))
    assert timeline.name.size == 15
    assert timeline.about.left_out[0] == "the text before its events: it is not JSON"
    behind = document(EVENTS, head={}, tail=BASE).replace(b'"rank": 0', b'"rank": oh')
    assert _read(tmp_path, behind).about.left_out[0] == "the text after its events: it is not JSON"


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        (b"", 0, "it is empty"),
        (b'{"events": []}', 0, 'it has no "traceEvents"'),
        (b'{"a": 1, oh', 9, "it is not JSON"),
        (b'{"traceEvents": [x', 17, "no event of it can be read"),
        (b"[\x00\x01", 1, "no event of it can be read"),
        (b"\x1f\x8bno", 0, "its compression is (cut short|broken)"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_byte_where_it_broke(
    tmp_path: Path, text: bytes, at: int, why: str
) -> None:
    with pytest.raises(Unreadable, match=why) as caught:
        _read(tmp_path, text)
    assert caught.value.at == at


def test_an_empty_list_of_events_is_a_trace_of_nothing(tmp_path: Path) -> None:
    assert _read(tmp_path, json.dumps({**BASE, "traceEvents": []}).encode()).name.size == 0


def test_a_missing_file_is_not_said_to_be_broken(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "absent.json")
