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
