"""What an analysis shows: tables of cells with units, which a terminal, JSON and CSV write alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Cell: TypeAlias = str | int | float | None
Unit = Literal["", "ns", "ratio", "bytes", "bytes/s"]
"""Times are kept in whole nanoseconds; "" is a name, a number of things or a number of a thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. name: in snake_case, without its unit."""

    name: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells, one per column; None is what is not known, and a note says why.

    name: in snake_case, one of its kind among an analysis's tables. title: a sentence for people.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
