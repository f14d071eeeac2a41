"""Things become numbers of those that are distinct."""

from __future__ import annotations

from collectors.traces.timeline import ABSENT, numbered, numbered_except


def test_the_distinct_are_in_the_order_in_which_they_first_are() -> None:
    distinct, number = numbered(["b", "a", "b", "c"])
    assert distinct == ("b", "a", "c")
    assert number.tolist() == [0, 1, 0, 2]


def test_nothing_has_no_number() -> None:
    distinct, number = numbered_except("", ["b", "", "a", "", "b"])
    assert distinct == ("b", "a")
    assert number.tolist() == [0, ABSENT, 1, ABSENT, 0]
    assert numbered_except("", ["a"])[1].tolist() == [0]
    assert numbered_except("", [])[0] == ()
