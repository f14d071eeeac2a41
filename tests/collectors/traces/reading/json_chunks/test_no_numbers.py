"""What is no number becomes null where it stands, and no other letter of the text changes."""

from __future__ import annotations

import pytest

from collectors.traces.reading.json_chunks import write_null


def _written(text: bytes) -> tuple[bool, bytes]:
    mended = bytearray(text)
    return write_null(mended, 0, len(mended)), bytes(mended)


@pytest.mark.parametrize("bad", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("behind", [",", "}", "\n"])
def test_what_is_no_number_becomes_null_of_the_same_length(bad: str, behind: str) -> None:
    is_changed, text = _written(f'[{{"a": {bad}{behind}'.encode())
    assert is_changed
    assert text == b'[{"a":' + b"null".ljust(len(bad) + 1) + behind.encode()


def test_a_string_keeps_its_letters() -> None:
    for text in (rb'{"a": ": inf, b"}', rb'{"a": "\": inf, b"}', b'{"a": "inf", "info": infer}'):
        assert _written(text) == (False, text)
    assert _written(rb'{"a": "\": inf, ", "b": inf}') == (True, rb'{"a": "\": inf, ", "b":null}')


def test_what_has_no_room_or_a_string_that_hides_its_end_is_left_to_others() -> None:
    for text in (b'{"a":inf}', rb'{"a": "\\", "b": inf}'):
        assert _written(text) == (False, text)


def test_nothing_outside_the_bounds_is_changed() -> None:
    text = bytearray(b'{"a": inf}, {"a": inf}')
    assert write_null(text, 0, 10)
    assert text == b'{"a":null}, {"a": inf}'
