"""Tables of figures are printed whole, or folded at a terminal's edge."""

import io
import re

import pytest
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from bench.errors import printable
from bench.report.table import Block, Table, indented, markdown, print_csv, print_json, print_page

WORDS = ("algorithm", "123 [100, 150]", "456 [400, 500]")


def _printed(*page: Block, width: int = 20, is_terminal: bool = True) -> str:
    text = io.StringIO()
    print_page(page, Console(file=text, width=width, force_terminal=is_terminal, color_system=None))
    return text.getvalue()


def test_a_pipe_gets_a_row_in_one_line_however_long() -> None:
    (line,) = _printed(Table(("", "", ""), [WORDS], has_heading=False), is_terminal=False).splitlines()
    assert line.split() == " ".join(WORDS).split()


def test_on_a_narrow_terminal_columns_continue_below_their_keys_and_no_word_is_cut() -> None:
    rows = [("recursive", "123 [100, 150]", "456 [400, 500]"), ("ring", "7 [6, 8]", "9 [8, 10]")]
    table = Table(("algorithm", "time", "busbw"), rows, words=range(3), keys=1)
    lines = [line.rstrip() for line in _printed(table, width=26).splitlines()]
    assert all(len(line) <= 26 for line in lines)
    for algorithm, *figures in rows:
        assert [line.removeprefix(algorithm).strip() for line in lines if line.startswith(f"{algorithm} ")] == figures


def test_columns_that_continue_below_keep_the_colour_of_their_row() -> None:
    table = Table(("case", "change", "verdict"), [("ddp", "+8.3 %", "worse")], keys=1, styles=["red"])
    text = io.StringIO()
    print_page([table], Console(file=text, width=12, force_terminal=True, color_system="standard"))
    assert [line for line in text.getvalue().splitlines() if "\x1b[31m" in line and "worse" in line]


def test_a_single_row_is_named_again_where_its_columns_continue_below() -> None:
    table = Table(("run", "started", "took"), [("run-a", "2026-11-01", "2 min")], keys=1)
    assert sum("run-a" in line for line in _printed(table, width=18).splitlines()) == 2


def test_a_terminal_gets_lines_that_fit_and_every_digit() -> None:
    lines = _printed(Table(("", "", ""), [WORDS], has_heading=False)).splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 20 for line in lines)
    assert sorted("".join("".join(lines).split())) == sorted("".join("".join(WORDS).split()))


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\rb", "a\x9b1mb", "a\u202eb", "a\tb", "a\udcffb", "a\x00b"])
def test_no_name_moves_the_cursor_or_colours_what_follows(name: str, *, is_terminal: bool) -> None:
    text = io.StringIO()
    console = Console(file=text, width=40, force_terminal=is_terminal)
    print_page([Table(("name",), [(name,)]), name, Text(name)], console)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()  # The heading's own colours.
    shown_names = [line.strip() for line in lines if line.strip() != "name"]
    assert len(shown_names) == 3
    assert all(printable(one) == one and one.startswith("a") and one.endswith("b") for one in shown_names)
    assert "\x1b[31m" not in text.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_name_begins_a_line_or_a_row_of_its_own(*, is_terminal: bool) -> None:
    forged = "ddp\nfsdp on 8   12.3 ms"
    page: list[Block] = [
        Table(("run", "step"), [(forged, "1 ms")]),
        Table(("run",), [(Text(forged),)]),
        forged,
        Text(forged),
        Padding(Text(forged)),
        indented(forged),
    ]
    printed = _printed(*page, width=60, is_terminal=is_terminal)
    assert not any(line.strip().startswith("fsdp") for line in printed.splitlines())
    assert printed.count("ddp?fsdp on 8   12.3 ms") == 6


def test_a_field_of_csv_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv([{"run": "a\nb,1", "step": 2}], ("run", "step"))
    assert capsys.readouterr().out.splitlines() == ["run,step", '"a\\nb,1",2']


def test_what_json_has_no_form_for_is_what_python_writes(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"rate": float("nan"), "most": float("inf"), "name": "\udcff\u00e9"})
    assert capsys.readouterr().out == ('{\n  "rate": NaN,\n  "most": Infinity,\n  "name": "\\udcff\\u00e9"\n}\n')


def test_a_table_of_markdown_shows_each_cell_as_it_is() -> None:
    table = Table(("case", "change"), [("ddp|wide", "+8 % [*]"), ("a\nb", "-")])
    assert markdown(table) == [
        "| case | change |",
        "|---|--:|",
        r"| ddp\|wide | +8 % \[\*\] |",
        "| a b | - |",
    ]


@pytest.mark.parametrize("name", ["[red]a", "a[/b]", ":smile:", "[link=x]"])
def test_brackets_and_colons_of_a_name_are_its_own(name: str) -> None:
    text = io.StringIO()
    print_page([Table((name,), [(name,)]), name, indented(name)], Console(file=text, width=40))
    assert [line.strip() for line in text.getvalue().splitlines()] == [name] * 4
