"""The registry of trace analyses: name, help line, and the function as "module:name", so that help imports none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bench.errors import Misuse

if TYPE_CHECKING:
    from collectors.traces.table import Table
    from collectors.traces.timeline import Timeline

RankTimelines: TypeAlias = "Sequence[Timeline]"
"""The traces of the ranks of one run."""


class Tabled(Protocol):
    """The result of an analysis. notes: what its figures mean and what is unknown, for all its tables."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    def tables(self) -> tuple[Table, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One analysis of traces.

    name: on the command line. summary: one line of help. function: takes one `RankTimelines` for each side.
    """

    name: str
    summary: str
    function: str
    sides: tuple[str, ...] = ("trace",)

    def run(self, *sides: RankTimelines) -> Tabled:
        """Analyse the traces.

        Raises:
            Misuse: the traces hold nothing to compare.
        """
        from collectors.traces.analyzers.diff import NothingToCompare  # Loads numpy, like every analysis.

        try:
            tabled: Tabled = resolve_name(self.function)(*sides)
        except NothingToCompare as error:
            raise Misuse(str(error)) from None
        return tabled


ANALYSES: tuple[Analysis, ...] = (
    Analysis(
        name="summary",
        summary="Show where the time of each rank and step went.",
        function="collectors.traces.analyzers.summary:summary",
    ),
    Analysis(
        name="kernels",
        summary="List which kernels ran, how long, and how late after launch.",
        function="collectors.traces.analyzers.kernels:kernels",
    ),
    Analysis(
        name="idle",
        summary="Explain why devices were idle.",
        function="collectors.traces.analyzers.idle:idle",
    ),
    Analysis(
        name="collectives",
        summary="Show how much of each collective is waiting for other ranks.",
        function="collectors.traces.analyzers.collectives:collectives",
    ),
    Analysis(
        name="stragglers",
        summary="Find the rank that others wait for, and why.",
        function="collectors.traces.analyzers.stragglers:stragglers",
    ),
    Analysis(
        name="critical-path",
        summary="Show the chain of work over all ranks that sets a step's time.",
        function="collectors.traces.analyzers.critical_path:critical_path",
    ),
    Analysis(
        name="memory",
        summary="List what held memory at its peak.",
        function="collectors.traces.analyzers.memory:held_memory",
    ),
    Analysis(
        name="diff",
        summary="Split a change of the step time into its parts.",
        function="collectors.traces.analyzers.diff:difference",
        sides=("before", "after"),
    ),
)
