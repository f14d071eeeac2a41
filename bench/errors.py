"""The two errors of a command that a person can fix, what their messages quote, and safe printing to standard error.

The command line turns the errors into exit codes.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys


class Misuse(ValueError):
    """The request cannot be met. The message names the thing, what it may be, and the next move. Exit code 2."""


class InfrastructureFailed(RuntimeError):
    """An engine, a node, a disk or a store failed, and not the workload. Exit code 4."""


def size_limit_words() -> str:
    """Return why a file cannot grow, where the system says that it is too large."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes == resource.RLIM_INFINITY:
        return "its file system holds no larger file"
    return f"this process may write files of up to {limit_bytes:,} bytes; raise the limit (`ulimit -f`)"


def open_limit_words() -> str:
    """Return why no more files can be opened, where the system says that too many are open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may open {limit:,} files at once; raise the limit (`ulimit -n`)"


# What messages quote: no more of a user's own words than can be read.

LONGEST_WORD, LONGEST_LINE = 400, 2000
"""Letters of a word and of a line on standard error. A path of ours is shorter; an argument may have 128 kB."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def concise(line: str) -> str:
    """Return the line without the middle of words, and of the whole, that are too long to be read."""
    line = _LONG_WORD.sub(lambda found: _without_middle(found[0], LONGEST_WORD), line)
    return _without_middle(line, LONGEST_LINE)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    left_out = f"... ({len(text):,} letters) ..."
    half = (most - len(left_out)) // 2
    return f"{text[:half]}{left_out}{text[-half:]}"


# Printing to standard error, safe from any thread and when standard error is closed or full.

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal interprets or cannot write: C0 and C1 except newline, other line separators, marks that
change the writing direction, and surrogates (bytes that are no text)."""


def say(text: str, *, is_page: bool = False) -> None:
    """Print the text to standard error in one write. If standard error is closed or full, nothing happens.

    Names in the text may come from anywhere, so control characters, which could move the cursor or change colours, are
    written as escapes; so are newlines, which could begin a line that nobody said, but in a page. Long lines lose their
    middle.
    """
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        lines = printable(text).split("\n") if is_page else [on_one_line(text)]
        sys.stderr.write("\n".join(map(concise, lines)) + "\n")
        sys.stderr.flush()


def on_one_line(text: str) -> str:
    """Return the text with control characters, newlines included, replaced by Python's escapes."""
    return printable(text).replace("\n", "\\n")


def printable(text: str) -> str:
    """Return the text with control characters, newlines excepted, replaced by Python's escapes."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
