"""The two errors of a command that a person can fix, and safe printing to standard error.

The command line turns the errors into exit codes.
"""

from __future__ import annotations

import contextlib
import re
import sys


class Misuse(ValueError):
    """The request cannot be met. The message names the thing, what it may be, and the next move. Exit code 2."""


class InfrastructureFailed(RuntimeError):
    """An engine, a node, a disk or a store failed, and not the workload. Exit code 4."""


# Printing to standard error, safe from any thread and when standard error is closed or full.

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal interprets or cannot write: C0 and C1 except newline, other line separators, marks that
change the writing direction, and surrogates (bytes that are no text)."""


def say(text: str, *, is_page: bool = False) -> None:
    """Print the text to standard error in one write. If standard error is closed or full, nothing happens.

    Names in the text may come from anywhere, so control characters, which could move the cursor or change colours, are
    written as escapes; so are newlines, which could begin a line that nobody said, but in a page.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text) if is_page else on_one_line(text)}\n")
        sys.stderr.flush()


def on_one_line(text: str) -> str:
    """Return the text with control characters, newlines included, replaced by Python's escapes."""
    return printable(text).replace("\n", "\\n")


def printable(text: str) -> str:
    """Return the text with control characters, newlines excepted, replaced by Python's escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
