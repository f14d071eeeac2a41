"""Exit codes, the two errors that a user can fix, Ctrl-C, and printing to standard error."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from types import FrameType

FINE, MISUSE, CASE_FAILED, INFRASTRUCTURE, REGRESSION, OUR_BUG, INTERRUPTED = 0, 2, 3, 4, 5, 70, 130
"""Exit codes of `observatory`."""


class Misuse(ValueError):
    """The request cannot be met. The message names the thing, the allowed values and the next step. Exit code 2."""


class InfrastructureFailed(RuntimeError):
    """An engine, a node, a disk or a store failed, not the workload. Exit code 4."""


def size_limit_words() -> str:
    """Return why a file cannot grow when the system calls it too large."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit_bytes == resource.RLIM_INFINITY:
        return "its file system allows no larger file"
    return f"this process may write files of up to {limit_bytes:,} bytes; raise the limit (`ulimit -f`)"


def open_limit_words() -> str:
    """Return why no more files can be opened when the system reports too many open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may open {limit:,} files at once; raise the limit (`ulimit -n`)"


# Words in messages: counts, and the user's own words, shortened if they are too long.


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return `1 figure`, `3 figures`; nouns is an irregular plural."""
    return f"{count} {noun if count == 1 else nouns or f'{noun}s'}"


LONGEST_WORD, LONGEST_LINE = 400, 2000
"""Longest word and line on standard error, in characters. Our paths are shorter, but an argument can have 128 kB."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def concise(line: str) -> str:
    """Return the line with the middle of overlong words, and of an overlong line, cut out."""
    line = _LONG_WORD.sub(lambda match: _without_middle(match[0], LONGEST_WORD), line)
    return _without_middle(line, LONGEST_LINE)


def _without_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    left_out = f"... ({len(text):,} characters) ..."
    half = (most - len(left_out)) // 2
    return f"{text[:half]}{left_out}{text[-half:]}"


# Printing to standard error, safe from any thread and when standard error is closed or full.

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that a terminal interprets or cannot write: C0 and C1 except newline, other line separators, marks that
change the writing direction, and surrogates (bytes that could not be decoded)."""


def say(text: str, *, is_page: bool = False) -> None:
    """Print the text to standard error in one write; do nothing if standard error is closed or full.

    Names in the text may come from anywhere, so control characters are escaped: they could move the cursor or change
    colours. Newlines, which could forge a line of output, are also escaped, except in a page. Long lines lose their
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
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def interrupt_in_order(effect: str = "; completed work is kept") -> None:
    """Make the first Ctrl-C or SIGTERM stop the work in order, and the second one immediately.

    Each raises KeyboardInterrupt: the first in the work, the second in the clean-up after the first. effect: ends the
    sentence "Stopping", which is printed at the first.
    """
    is_first = True
    message = f"\nStopping{effect}. Press Ctrl-C again to stop now.\n".encode()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            with contextlib.suppress(OSError):  # Not through `say`, which the signal may have interrupted.
                os.write(2, message)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # Shells ignore it for background jobs.
        signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def end_signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal (SIGHUP) interrupt like Ctrl-C, unless they are ignored, as under nohup."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    former = {
        number: signal.signal(number, interrupt) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
