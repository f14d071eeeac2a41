"""What stands around the events of a trace is read wherever it stands, and never taken for the events."""

from __future__ import annotations

import io
import json

import pytest

from collectors.traces.reading.json_chunks import TextWindow
from collectors.traces.reading.metadata import NoEvents, TraceMetadata, go_to_events, ranks_of, read_metadata, read_tail
from collectors.traces.timeline import About


def _window(text: bytes, size_bytes: int = 1 << 16) -> TextWindow:
    return TextWindow(io.BytesIO(text), size_bytes=size_bytes)


@pytest.mark.parametrize("size_bytes", [8, 1 << 16])
def test_the_events_begin_behind_their_bracket(size_bytes: int) -> None:
    window = _window(
        b'{"a": {"traceEvents": [1]}, "b": "\\"traceEvents\\": [", "traceEvents" : [{}], "c": 3}', size_bytes
    )
    keys, is_bare = go_to_events(window)
    assert keys is not None
    assert sorted(keys) == ["a", "b", "traceEvents"]
    assert not is_bare
    assert window.offset == 72
    window.start += len(b"{}]")
    behind = read_tail(window, is_bare=False)
    assert behind is not None
    assert {key: bytes(value) for key, value in behind.items()} == {"c": b"3"}


def test_a_byte_order_mark_is_passed_over() -> None:
    assert go_to_events(_window(b"\xef\xbb\xbf [{}]")) == ({}, True)


def test_what_is_behind_a_bare_list_is_nothing_or_cannot_be_read() -> None:
    assert read_tail(_window(b" \n"), is_bare=True) == {}
    assert read_tail(_window(b", 1"), is_bare=True) is None


@pytest.mark.parametrize(("text", "at"), [(b"", 0), (b"5", 0), (b'{"a": 1}', 0), (b'{"a": }', 6)])
def test_a_text_without_events_says_where_it_is_none(text: bytes, at: int) -> None:
    with pytest.raises(NoEvents) as caught:
        go_to_events(_window(text))
    assert caught.value.at == at


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("text", "at"),
    [
        (b'{"a": 1, "b": 2, "name": "caf\xe9"}', 29),
        (b'{"a": 1, "b": 2, "na', 20),
        (b'{"a": 1, "byte 3": }', 19),
    ],
)
def test_the_byte_where_a_text_broke_is_counted_from_its_start(before: bytes, text: bytes, at: int) -> None:
    with pytest.raises(NoEvents, match="it is not JSON") as caught:
        go_to_events(_window(before + text))
    assert caught.value.at == len(before) + at


def test_a_text_whose_events_are_too_far_behind_is_not_said_to_be_broken() -> None:
    text = b'{"segments": [' + b"1, " * 1000 + b'1], "traceEvents": []}'
    with pytest.raises(NoEvents) as caught:
        go_to_events(_window(text, size_bytes=256), largest_head_bytes=1000)
    assert (str(caught.value), caught.value.at) == ('it has no "traceEvents" in its first 1024 bytes', 0)
    assert go_to_events(_window(text, size_bytes=256)) is not None


def _said(**keys: object) -> TraceMetadata:
    head, _ = go_to_events(_window(json.dumps({**keys, "traceEvents": []}).encode()))
    assert head is not None
    return read_metadata(head)


def test_torch_says_who_the_rank_is() -> None:
    groups = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}, {"pg_name": "tp", "ranks": "[1, 3]"}]
    said = _said(
        distributedInfo={"backend": "nccl", "rank": 1, "world_size": 4, "pg_config": groups},
        deviceProperties=[{"id": 0, "name": "H100"}, {"id": 1, "name": "other"}],
        host_name="n1",
        baseTimeNanoseconds=1711964646000000000,
    )
    assert said == TraceMetadata(
        base_ns=1711964646000000000,
        rank=1,
        about=About(world_size=4, device_name="H100", host="n1", groups={"0": (0, 1), "tp": (1, 3)}),
    )


def test_what_is_not_as_torch_writes_it_says_nothing() -> None:
    said = _said(distributedInfo={"rank": 1, "pg_config": 5}, deviceProperties=[], baseTimeNanoseconds="then")
    assert said == TraceMetadata(rank=1)


@pytest.mark.parametrize("base_ns", [-1, 10**30, 1.5])
def test_a_base_that_no_clock_shows_is_none(base_ns: float) -> None:
    assert _said(baseTimeNanoseconds=base_ns).base_ns is None


def test_ranks_that_are_not_all_written_are_none() -> None:
    assert ranks_of("[0, 1, 2]") == ranks_of([0, 1, 2]) == (0, 1, 2)
    assert ranks_of("[0, 1, ..., 63]") == ()


def test_ranks_among_which_a_number_is_too_long_for_one_are_none() -> None:
    for digits in ("9" * 11, "9" * 5000):
        assert ranks_of(f"[0, {digits}]") == ()
        groups = [{"pg_name": "0", "ranks": f"[0, {digits}]"}]
        assert _said(distributedInfo={"rank": 1, "pg_config": groups}) == TraceMetadata(
            rank=1, about=About(groups={"0": ()})
        )
