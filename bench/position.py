"""Where a rank is, for whoever must say where it failed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Position:
    """The step that a rank is in; of a probe, the measurement."""

    step: int = 0
