"""Values that are inf or nan become null, and no string changes."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.traces.reading.json_chunks import null_for_inf_and_nan

EXACT = re.compile(rb'("[^"\\\n]*(?:\\.[^"\\\n]*)*")|:\s*[+-]?(?:inf(?:inity)?|nan)\b', re.IGNORECASE)


@pytest.mark.parametrize("bad", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("before", ["", " ", "\n  "])
@pytest.mark.parametrize("behind", [",", "}", "\n"])
def test_inf_and_nan_become_null(bad: str, before: str, behind: str) -> None:
    assert null_for_inf_and_nan(f'[{{"a":{before}{bad}{behind}'.encode()) == b'[{"a": null' + behind.encode()


@pytest.mark.parametrize(
    "text",
    [rb'{"a": ": inf, b"}', rb'{"a": "\": inf, b"}', b'{"a": "inf", "info": infer}', rb'{"a": "\\", "b": "nan"}'],
)
def test_a_string_keeps_its_letters(text: bytes) -> None:
    assert null_for_inf_and_nan(text) == text


def test_behind_a_string_with_backslashes_a_value_is_found() -> None:
    assert null_for_inf_and_nan(rb'{"a": "\": inf, ", "b": inf}') == rb'{"a": "\": inf, ", "b": null}'
    assert null_for_inf_and_nan(rb'{"a": "\\", "b": inf}') == rb'{"a": "\\", "b": null}'


@given(
    st.lists(st.sampled_from(['{"a"', ": inf", ":nan", ', "b\\"', '"', '": inf"', "\n", " x", "\\", "}"]), max_size=30)
)
def test_it_is_as_if_all_of_the_text_were_divided_into_strings_and_values(pieces: list[str]) -> None:
    # Each line is closed, as in JSON no string goes on behind its line.
    lines = "".join(pieces).encode().split(b"\n")
    text = b"\n".join(line for line in lines if EXACT.sub(b"", line).count(b'"') == 0)
    assert null_for_inf_and_nan(text) == EXACT.sub(lambda found: found[1] or b": null", text)
