"""The critical path of one step: its parts, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collectors.traces.path.moments import PathKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """One stretch of the path: what a rank did, or the delay before it went on.

    name: of the span. place: the stream or thread it was on; None for a delay.
    """

    rank: int
    kind: PathKind
    name: str
    place: int | None
    start_ns: int
    end_ns: int

    @property
    def lasting_ns(self) -> int:
        """How long the path was there."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPath:
    """The path of one step, or of the whole trace where no step is marked.

    parts: in order, from the step's start to its end, without a gap.
    free_ns: by kind, what the step would cost if all work of that kind, in all steps, took no time, and all else were
    as it was.
    """

    step: str
    start_ns: int
    end_ns: int
    parts: tuple[PathPart, ...]
    free_ns: Mapping[PathKind, int]

    @property
    def step_ns(self) -> int:
        """How long the step took."""
        return self.end_ns - self.start_ns

    def spent_ns(self, kind: PathKind) -> int:
        """The part of the step in which the path is work of this kind."""
        return sum(part.lasting_ns for part in self.parts if part.kind == kind)
