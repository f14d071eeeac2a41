"""The one type of a figure that is not known: it stands in the figure's place, and says why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Absent:
    """What cannot be known here. reason: names it where it is not clear from the place, and says why."""

    reason: str
