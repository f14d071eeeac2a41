"""Tables of figures are printed whole, or folded at a terminal's edge."""

import io
import re

import pytest
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.errors import printable
from bench.reports.format import PlainConsole, print_csv, print_figures, print_words, table_of

WORDS = ("algorithm", "123 [100, 150]", "456 [400, 500]")


def _printed(*, is_terminal: bool) -> str:
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in WORDS:
        table.add_column(overflow="fold")
    table.add_row(*WORDS)
    text = io.StringIO()
    print_figures(Console(file=text, width=20, force_terminal=is_terminal, color_system=None), table)
    return text.getvalue()


def test_a_pipe_gets_a_row_in_one_line_however_long() -> None:
    (line,) = _printed(is_terminal=False).splitlines()
    assert line.split() == " ".join(WORDS).split()


def test_on_a_narrow_terminal_columns_continue_below_their_keys_and_no_word_is_cut() -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("algorithm", "time", "busbw"):
        table.add_column(name, overflow="fold")
    rows = [("recursive", "123 [100, 150]", "456 [400, 500]"), ("ring", "7 [6, 8]", "9 [8, 10]")]
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    print_figures(Console(file=text, width=26, force_terminal=True, color_system=None), table, keys=1)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert all(len(line) <= 26 for line in lines)
    for algorithm, *figures in rows:
        assert [line.removeprefix(algorithm).strip() for line in lines if line.startswith(f"{algorithm} ")] == figures


def test_a_terminal_gets_lines_that_fit_and_every_digit() -> None:
    lines = _printed(is_terminal=True).splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 20 for line in lines)
    assert sorted("".join("".join(lines).split())) == sorted("".join("".join(WORDS).split()))


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("name", ["a\x1b[31mb", "a\rb", "a\x9b1mb", "a\u202eb", "a\tb", "a\udcffb", "a\x00b"])
def test_no_name_moves_the_cursor_or_colours_what_follows(name: str, *, is_terminal: bool) -> None:
    text = io.StringIO()
    console = PlainConsole(text, width=40, force_terminal=is_terminal)
    table = Table("name", box=None)
    table.add_row(name)
    for shown in (table, name, Text(name)):
        console.print(shown)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text.getvalue()).splitlines()  # The heading's own colours.
    shown_names = [line.strip() for line in lines if line.strip() != "name"]
    assert len(shown_names) == 3
    assert all(printable(one) == one and one.startswith("a") and one.endswith("b") for one in shown_names)
    assert "\x1b[31m" not in text.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_no_name_begins_a_line_or_a_row_of_its_own(*, is_terminal: bool) -> None:
    text = io.StringIO()
    console = PlainConsole(text, width=60, force_terminal=is_terminal)
    forged = "ddp\nfsdp on 8   12.3 ms"
    print_figures(console, table_of(("run", "step"), [(forged, "1 ms")]))
    for shown in (forged, Text(forged), Padding(Text(forged)), table_of(("run",), [(forged,)])):
        console.print(shown)
    print_words(console, forged)
    assert not any(line.strip().startswith("fsdp") for line in text.getvalue().splitlines())
    assert text.getvalue().count("ddp?fsdp on 8   12.3 ms") == 6


def test_a_field_of_csv_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv([{"run": "a\nb,1", "step": 2}], ("run", "step"))
    assert capsys.readouterr().out.splitlines() == ["run,step", '"a\\nb,1",2']


@pytest.mark.parametrize("name", ["[red]a", "a[/b]", ":smile:", "[link=x]"])
def test_brackets_and_colons_of_a_name_are_its_own(name: str) -> None:
    text = io.StringIO()
    table = Table(box=None, show_header=False)
    table.add_row(name)
    for shown in (table, name):
        PlainConsole(text, width=40).print(shown)
    assert [line.strip() for line in text.getvalue().splitlines()] == [name, name]
