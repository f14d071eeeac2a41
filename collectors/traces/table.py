"""Tables that an analysis returns: cells with units, to be written alike to a terminal, JSON or CSV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Cell: TypeAlias = str | int | float | None
Unit = Literal["", "ns", "ratio", "bytes", "bytes/s"]
"""Times are whole nanoseconds; "" is a name, a count, or a number such as that of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. name: in snake_case, without its unit."""

    name: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells, one cell per column; None is an unknown value, and a note says why.

    name: in snake_case, unique among the tables of an analysis. title: a sentence for people.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
