"""Cells are shown in a unit of their size, and nothing but 0 as 0."""

from __future__ import annotations

import pytest

from bench.report.format import NAME_WIDTH, readable, shortened
from collectors.traces.table import Cell, Unit


@pytest.mark.parametrize(
    ("cell", "unit", "text"),
    [
        (1, "ns", "1 ns"),
        (999, "ns", "999 ns"),
        (1_500, "ns", "1.50 us"),
        (84_100_000, "ns", "84.1 ms"),
        (-2_000_000_000, "ns", "-2.00 s"),
        (0, "ns", "0"),
        (0.25, "ns", "0.250 ns"),
        (0.965, "ratio", "96.5 %"),
        (1.0, "ratio", "100 %"),
        (0.00001, "ratio", "0.0010 %"),
        (3 << 29, "bytes", "1.50 GiB"),
        (512, "bytes", "512 B"),
        (2.5e9, "bytes/s", "2.50 GB/s"),
        (12345, "", "12345"),
        (1.5, "", "1.50"),
        ("gemm", "", "gemm"),
        (None, "ns", "-"),
    ],
)
def test_a_cell_is_shown_in_a_unit_of_its_size(cell: Cell, unit: Unit, text: str) -> None:
    assert readable(cell, unit) == text


def test_of_a_long_name_both_ends_are_kept() -> None:
    name = f"begin{'x' * 300}end"
    short = shortened([name])[name]
    assert len(short) == NAME_WIDTH
    assert (short[:5], short[-3:]) == ("begin", "end")


def test_names_that_differ_in_the_middle_alone_stay_apart() -> None:
    one, other, third = (f"{'a' * 100}{middle}{'b' * 100}" for middle in ("float", "double", "half"))
    short = shortened([one, other, third])
    assert len(set(short.values())) == 3
    assert len(shortened([one])[one]) == NAME_WIDTH


def test_names_that_differ_in_what_cannot_be_printed_alone_end_the_search() -> None:
    assert shortened(["a\n", "a\t"]) == {"a\n": "a?", "a\t": "a?"}


def test_a_name_cannot_write_on_the_terminal_what_it_likes() -> None:
    assert readable("a\x1b[2Jb\nc", "") == "a?[2Jb?c"
    assert list(shortened(["a\x1b[2Jb\nc"]).values()) == ["a?[2Jb?c"]
