"""Tables of figures are printed whole, or folded at a terminal's edge."""

import io

from rich.console import Console
from rich.table import Table

from bench.reports.console import print_figures

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


def test_a_terminal_gets_lines_that_fit_and_every_digit() -> None:
    lines = _printed(is_terminal=True).splitlines()
    assert len(lines) > 1
    assert all(len(line) <= 20 for line in lines)
    assert sorted("".join("".join(lines).split())) == sorted("".join("".join(WORDS).split()))
