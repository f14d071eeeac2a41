"""The events of a text are told apart exactly, also where some of it is not JSON."""

from __future__ import annotations

import io

import pytest

from collectors.traces.reading.damaged_json import SplitEvents, likely_boundary, split
from collectors.traces.reading.json_chunks import TextWindow

ONE = b'{"ph": "X", "cat": "kernel", "name": "one", "pid": 0, "tid": 7, "ts": 1, "dur": 1}'
TWO = b'{"ph": "X", "cat": "kernel", "name": "two", "pid": 0, "tid": 7, "ts": 2, "dur": 1, "args": {"}": [{"ph": 1}]}}'


def _window(text: bytes, size_bytes: int = 1 << 16) -> TextWindow:
    return TextWindow(io.BytesIO(text), size_bytes=size_bytes)


def _names(found: SplitEvents) -> list[str]:
    return [found.raw.names[number] for number in found.raw.name]


def test_all_events_up_to_the_bracket_are_found() -> None:
    window = _window(b" " + ONE + b",\n" + TWO + b" ], 5")
    found = split(window)
    assert _names(found) == ["one", "two"]
    assert (found.broken_at, found.end) == ((), "closed")
    assert window.text[window.start :] == b", 5"


def test_behind_the_bracket_is_the_end_however_long_the_text_goes_on() -> None:
    window = _window(ONE + b"]" + b", " + ONE * 9, size_bytes=len(ONE) + 9)
    found = split(window)
    assert not window.is_last
    assert (_names(found), found.end) == (["one"], "closed")


def test_an_event_that_is_not_whole_yet_is_left() -> None:
    text = ONE + b"," + TWO
    window = _window(text, size_bytes=len(text) - 3)
    found = split(window)
    assert _names(found) == ["one"]
    assert (found.end, found.rest_at) == (None, len(ONE) + 1)
    window.fill()
    found = split(window)
    assert _names(found) == ["two"]
    assert found.end == "unclosed"


@pytest.mark.parametrize(
    "broken",
    [
        b'{"ph": "X", "cat": "kernel", "name": "quo"te", "pid": 0,\n "tid": 7, "ts": 1, "dur": 1}',
        b'{"ph": "X", "cat": "kernel", "name": "open, "pid": 0,\n "tid": 7, "ts": 1, "dur": 1}',
        b'{"ph": "X", "cat": "kernel", "name": "no time", "pid": 0, "tid": 7}',
        b'{"ph": "X", "cat": "kernel" "name": "no comma"}',
        b'{"ph": 5}',
        b"[1, 2]",
        b"nonsense",
        b'{"ph": "X", "args": {"name": "x"}',
    ],
)
@pytest.mark.parametrize("size_bytes", [40, 1 << 16])
def test_what_is_broken_is_passed_over(broken: bytes, size_bytes: int) -> None:
    window = _window(ONE + b"," + broken + b",\n" + TWO + b"]", size_bytes)
    names: list[str] = []
    broken_at: list[int] = []
    end = None
    while end is None:
        found = split(window)
        names += _names(found)
        broken_at += found.broken_at
        end = found.end
        window.fill()
    assert names == ["one", "two"]
    assert broken_at[0] == len(ONE) + 1


def test_a_quotation_mark_too_many_is_told_by_the_end_of_its_line() -> None:
    broken = b'{"ph": "X", "name": "quo"te",\n  "args": {"[": 1},\n  "ts": 1}'
    window = _window(broken + b",\n" + b",\n".join([ONE] * 100) + b"]", size_bytes=512)
    split(window)
    window.fill()
    assert len(window.text) <= 512


def test_a_boundary_is_looked_for_from_the_end() -> None:
    window = _window(ONE + b",\n" + ONE + b" , " + TWO)
    comma = likely_boundary(window)
    assert comma is not None
    assert comma == 2 * len(ONE) + 3
    assert likely_boundary(_window(ONE)) is None
