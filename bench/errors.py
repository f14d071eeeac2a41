"""The two ways in which a command can fail that a person can mend; the command line turns them into exit codes."""

from __future__ import annotations

import contextlib
import re
import sys


class Misuse(ValueError):
    """What was asked for cannot be: the message names the thing, what it may be, and the next move. Exit code 2."""


class InfrastructureFailed(RuntimeError):
    """An engine, a node, a disk or a store failed, and not the workload. Exit code 4."""


# Lines on standard error that may be said from any thread, and whatever became of standard error.

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys or cannot write: C0 and C1 but the end of a line, other ends of lines, the marks that turn the
direction of writing, and bytes that are no text."""


def say(text: str) -> None:
    """Print it in one piece. Where standard error is closed or full nobody can be told, and the work goes on.

    A name in it may come from anywhere, so that control characters, which would move a terminal's cursor or colour
    what follows, are written as escapes.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text)}\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """The text without control characters other than ends of lines, which are written as Python writes them."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
