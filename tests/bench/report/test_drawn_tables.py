"""A table is drawn whole, whatever the terminal's width, and says what it does not show."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.analysis.traces.report import blocks, shortens
from bench.report.table import print_page
from collectors.traces.table import Column, Table

WIDE = Table(
    name="steps",
    title="The time of each step",
    columns=(
        Column(name="rank"),
        Column(name="name"),
        *(Column(name=f"exposed_communication_{letter}", unit="ns") for letter in "abcdefgh"),
    ),
    rows=tuple((rank, "gemm" * 20, *(rank * 100 + place for place in range(8))) for rank in range(1, 4)),
    notes=("one thing is not known",),
)


def _drawn(table: Table, *, width: int = 80, is_terminal: bool = True, limit: int = 30) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=is_terminal, color_system=None)
    print_page(blocks(table, console, limit=limit), console)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_a_terminal_gets_lines_that_fit_and_every_figure_whole() -> None:
    lines = _drawn(WIDE)
    assert all(len(line) <= 80 for line in lines)
    for rank in range(1, 4):
        rows = [line for line in lines if line.split()[:1] == [str(rank)]]
        shown = " ".join(" ".join(word for word in line.split()[1:] if "gemm" not in word) for line in rows)
        assert shown == " ".join(f"{rank * 100 + place} ns" for place in range(8))


def test_where_columns_continue_below_each_row_is_named_again() -> None:
    lines = _drawn(WIDE)
    assert len([line for line in lines if line.startswith("   1 ")]) > 1


def test_a_row_is_named_again_by_no_more_than_tells_it_apart() -> None:
    lines = _drawn(WIDE)
    assert sum("gemm" in line for line in lines) == 3  # The names stand once; the rank tells the rows apart.


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_long_sentence_is_broken_between_words_by_a_terminal_alone(is_terminal: bool) -> None:
    note = "what it does are the parts of its delay " * 6
    table = Table(name="a", title="A title " * 20, columns=(Column(name="name"),), rows=(("x",),), notes=(note,))
    lines = _drawn(table, is_terminal=is_terminal)
    assert (max(map(len, lines)) <= 80) == is_terminal
    assert " ".join(" ".join(lines).split()).endswith(" ".join(note.split()))


def test_what_is_said_of_each_rank_is_said_once() -> None:
    notes = ("rank 0: no events", "rank 2: no events", "rank 1: other", "no events")
    table = Table(name="a", title="A", columns=(Column(name="name"),), rows=(), notes=notes)
    assert _drawn(table)[1:] == ["ranks 0, 2: no events", "rank 1: other", "no events"]


def test_a_pipe_gets_a_row_in_one_line() -> None:
    lines = _drawn(WIDE, is_terminal=False)
    assert sum(line.split()[0] == "1" for line in lines) == 1


def test_a_heading_is_no_wider_than_its_words_and_cells() -> None:
    heading = _drawn(WIDE, is_terminal=False)[1:3]
    assert [line.split()[-1] for line in heading] == ["exposed", "communication"]


def test_words_are_left_and_figures_right() -> None:
    table = Table(
        name="a",
        title="A",
        columns=(Column(name="name"), Column(name="time", unit="ns")),
        rows=(("a", 1), ("bbb", 100)),
    )
    assert _drawn(table)[1:] == ["name    time", "a       1 ns", "bbb   100 ns"]


def test_rows_beyond_the_limit_are_counted() -> None:
    lines = _drawn(WIDE, limit=1)
    assert lines[-1] == "2 more rows; --limit 3 shows them"
    assert not any(line.startswith("   2") for line in lines)


def test_notes_stand_below_the_rows() -> None:
    assert _drawn(WIDE)[-1] == "one thing is not known"


def test_a_table_without_rows_gives_its_reason() -> None:
    empty = Table(name="a", title="A", columns=(Column(name="name"),), rows=(), notes=("there is no step",))
    assert _drawn(empty) == ["A", "there is no step"]


def test_a_table_without_rows_or_reason_says_nothing_is_in_it() -> None:
    assert _drawn(Table(name="a", title="A", columns=(Column(name="name"),), rows=())) == ["A: nothing"]


def test_a_table_of_names_alone_is_drawn_once() -> None:
    table = Table(name="a", title="A", columns=(Column(name="rank"), Column(name="cause")), rows=((0, "compute"),))
    assert _drawn(table)[1:] == ["rank  cause", "   0  compute"]


def test_a_reason_is_folded_and_not_shortened() -> None:
    reason = "its process group is not told, and no other rank's trace holds a collective of this name and size"
    table = Table(name="a", title="A", columns=(Column(name="rank"), Column(name="reason")), rows=((0, reason),))
    lines = _drawn(table)[2:]
    assert len(lines) > 1
    assert " ".join(" ".join(lines).split()) == f"0 {reason}"
    assert not shortens(table, Console(file=io.StringIO(), width=80, force_terminal=True), limit=30)
