"""A table's columns have the names and units of the rows' fields."""

from __future__ import annotations

from dataclasses import dataclass

from collectors.traces.table import Column, Table, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    rank: int
    other: str
    wait_ns: int


def test_the_ending_of_a_field_is_its_unit() -> None:
    table = table_of("all", "All units", "name size_bytes speed_bytes_per_second time_ns share_ratio", [])
    assert table.columns == (
        Column(name="name"),
        Column(name="size", unit="bytes"),
        Column(name="speed", unit="bytes/s"),
        Column(name="time", unit="ns"),
        Column(name="share", unit="ratio"),
    )


def test_a_row_is_a_struct_with_the_fields_or_a_tuple_of_cells() -> None:
    rows = [_Row(rank=3, other="is not asked for", wait_ns=5), (4, 6)]
    columns = (Column(name="rank"), Column(name="wait", unit="ns"))
    expected = Table(name="waits", title="Waits", columns=columns, rows=((3, 5), (4, 6)), notes=("one", "two"))
    assert table_of("waits", "Waits", "rank wait_ns", rows, "one", "two") == expected
