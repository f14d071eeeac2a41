"""`Absent`: stands in place of a figure that is not known, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    """An unknown figure. reason: why it is unknown, and which figure it is if the context does not show that."""

    reason: str
