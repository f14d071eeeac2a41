"""What is said on standard error is text, whatever names stand in it."""

from __future__ import annotations

import pytest

from bench.errors import printable, say


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("back\rwards\t", "back\\rwards\\t"),
        ("\x9b1A\x7f", "\\x9b1A\\x7f"),
        ("turned \u202e round", "turned \\u202e round"),
        ("\u00fcml\u00e4ut \u6f22", "\u00fcml\u00e4ut \u6f22"),
    ],
)
def test_control_characters_are_written_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_what_is_said_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say("rank\x1b]0;title\x07 0")
    assert capsys.readouterr().err == "rank\\x1b]0;title\\x07 0\n"


def test_no_name_begins_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    say("run a\nobservatory: all is well")
    assert capsys.readouterr().err == "run a\\nobservatory: all is well\n"
    say("a page\nof two lines", is_page=True)
    assert capsys.readouterr().err == "a page\nof two lines\n"
