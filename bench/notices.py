"""Lines on standard error that may be said from any thread, and whatever became of standard error."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """One line, in one piece. Where standard error is closed or full nobody can be told, and the work goes on."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
