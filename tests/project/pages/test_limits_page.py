"""The page of limits has what the registry has, in the same words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.machine.limits.registry import LIMITS

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "limits.md").read_text()


def _rows(heading: str) -> list[str]:
    """Return the rows of the table below a heading row."""
    return PAGE.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()[1:]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def test_each_limit_has_a_row() -> None:
    rows = [_row((limit.name, limit.why, limit.next_step)) for limit in LIMITS]
    assert _rows("| limit | what happens | what to do |") == rows
