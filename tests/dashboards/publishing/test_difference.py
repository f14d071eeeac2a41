"""What is sent is compared with what a server has, and nothing of what the server adds."""

from __future__ import annotations

from typing import Any

import pytest

from dashboards.publishing.difference import MOST_LINES, covers, difference


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ({"a": 1, "added": 2}, {"a": 1}),
        ({"a": {"b": [1, {"c": 2, "added": 3}]}}, {"a": {"b": [1, {"c": 2}]}}),
        ({}, {"a": None}),
        ([], []),
        ({"a": 1.0}, {"a": 1}),
    ],
)
def test_keys_that_a_server_adds_are_no_difference(present: Any, wanted: Any) -> None:
    assert covers(present, wanted)
    assert covers(wanted, wanted)


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ({}, {"a": 1}),
        ({"a": 2}, {"a": 1}),
        ({"a": None}, {"a": {}}),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([2, 1], [1, 2]),
        ({"a": True}, {"a": 1}),
        ({"a": 0}, {"a": False}),
        ("text", ["text"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}),
    ],
)
def test_what_is_missing_other_or_more_in_a_list_is_a_difference(present: Any, wanted: Any) -> None:
    assert not covers(present, wanted)
    assert difference(present, wanted) != ()


def test_the_difference_shows_what_goes_and_what_comes_and_no_key_of_the_servers() -> None:
    lines = difference(
        {"title": "Mine", "id": 7, "panels": [{"w": 1, "x": 2}]}, {"title": "Ours", "panels": [{"w": 1}]}
    )
    assert [line for line in lines if line[0] in "+-"] == ['- "title": "Mine"', '+ "title": "Ours"']
    assert not any('"id"' in line or '"x"' in line for line in lines)


def test_a_long_difference_is_cut_and_its_rest_counted() -> None:
    lines = difference(list(range(100)), list(range(100, 200)))
    assert len(lines) == MOST_LINES + 1
    # All 100 numbers go and 100 come, beside a heading and the two brackets.
    assert lines[-1] == f"... and {203 - MOST_LINES} lines more"


def test_a_long_line_is_cut() -> None:
    assert max(map(len, difference({"a": "x" * 1000}, {"a": "y" * 1000}))) < 200
