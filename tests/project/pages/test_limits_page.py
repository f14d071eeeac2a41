"""The page of limits and known messages has what the registries have, in the same words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench.engines.node.known_messages import read_table
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


def test_each_known_message_has_a_row() -> None:
    rows = [_row((message.means, message.cause, message.next)) for message in read_table().messages]
    assert _rows("| what it means | cause | what to do |") == rows


def test_each_xid_has_a_row() -> None:
    assert _rows("| XID | what it is, and what to do |") == [_row(pair) for pair in read_table().xids.items()]
