"""One hostile command line, and what must come of it."""

from __future__ import annotations

from typing import NamedTuple


class Line(NamedTuple):
    """words: as a shell takes them, run in the folder that `files` makes, and refused.

    code: the exit code. says: a part of the line on standard error. before: how many lines come before that one.
    """

    words: str
    code: int
    says: str
    before: int = 0
