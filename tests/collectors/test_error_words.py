"""Lines that people read name no class of Python's, unless it is our mistake that they tell of."""

from __future__ import annotations

import pytest

from collectors.files import in_words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "/proc/x"), "/proc/x: No such file or directory"),
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("no such device"), "no such device"),
        (ValueError("rank is -1"), "rank is -1"),
        (RuntimeError("lost my way"), "lost my way"),
        (RuntimeError(), "a bug of ours, RuntimeError: "),
        (KeyError("rank"), "'rank' is missing"),
        (ZeroDivisionError("no"), "a bug of ours, ZeroDivisionError: no"),
    ],
)
def test_an_error_is_told_by_what_it_says(error: Exception, words: str) -> None:
    assert in_words(error) == words
