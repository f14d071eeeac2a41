"""Tables that an analysis returns: cells with units, for a terminal, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Cell: TypeAlias = str | int | float | None
Unit = Literal["", "ns", "ratio", "bytes", "bytes/s"]
"""Times are whole nanoseconds; "" stands for a name, a count, or the number of a rank and the like."""

UNIT_OF_ENDING: Mapping[str, Unit] = {
    "_bytes_per_second": "bytes/s",
    "_bytes": "bytes",
    "_ratio": "ratio",
    "_ns": "ns",
}
"""The unit of a field by the ending of its name; names in CSV have the same endings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column. name: in snake_case, without its unit."""

    name: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells, one cell per column; None is an unknown value, which a note explains.

    name: in snake_case, unique among the tables of an analysis. title: a sentence for people.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


def table_of(name: str, title: str, fields: str, rows: Iterable[object], *notes: str) -> Table:
    """Return the rows as a table.

    fields: the columns, as names of fields that end in their unit: "rank wait_ns" defines the columns `rank`, and
    `wait` in nanoseconds. rows: structs with these fields, or tuples of cells in this order.
    """
    names = fields.split()
    columns = []
    for field in names:
        ending = next((ending for ending in UNIT_OF_ENDING if field.endswith(ending)), "")
        columns.append(Column(name=field.removesuffix(ending), unit=UNIT_OF_ENDING.get(ending, "")))
    cells = (row if isinstance(row, tuple) else tuple(getattr(row, field) for field in names) for row in rows)
    return Table(name=name, title=title, columns=tuple(columns), rows=tuple(cells), notes=notes)
