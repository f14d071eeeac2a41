"""The registry of trace analyses and drawings: name, help line, and function.

Each function imports its analyzer when it is called, so that help loads none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bench.errors import Misuse

if TYPE_CHECKING:
    from collectors.traces.analyzers.merge import Merged
    from collectors.traces.perfetto import TraceSpan
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

    name: on the command line. summary: one line of help. sides: the names of its inputs.
    run: takes one `RankTimelines` for each of these names; raises Misuse where the analysis cannot be made of them.
    """

    name: str
    summary: str
    run: Callable[..., Tabled]
    sides: tuple[str, ...] = ("trace",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One way to draw the traces of a run's ranks.

    run: takes a side, and spans with a clock of their own to draw alongside it.
    """

    name: str
    summary: str
    run: Callable[[RankTimelines, Sequence[TraceSpan]], Merged]


def _summary(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.summary import summary

    return summary(side)


def _kernels(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.kernels import kernels

    return kernels(side)


def _idle(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.idle import idle

    return idle(side)


def _collectives(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.collectives import collectives

    return collectives(side)


def _stragglers(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.stragglers import stragglers

    return stragglers(side)


def _critical_path(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.critical_path import critical_path

    return critical_path(side)


def _memory(side: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.memory import held_memory

    return held_memory(side)


def _difference(before: RankTimelines, after: RankTimelines) -> Tabled:
    from collectors.traces.analyzers.diff import NothingToCompare, difference

    try:
        return difference(before, after)
    except NothingToCompare as error:
        raise Misuse(str(error)) from None


def _merge(side: RankTimelines, spans: Sequence[TraceSpan]) -> Merged:
    from collectors.traces.analyzers.merge import merge

    return merge(side, added=spans)


ANALYSES: tuple[Analysis, ...] = (
    Analysis(name="summary", summary="Show where the time of each rank and step went.", run=_summary),
    Analysis(name="kernels", summary="List which kernels ran, how long and how late.", run=_kernels),
    Analysis(name="idle", summary="Explain why devices were idle.", run=_idle),
    Analysis(name="collectives", summary="Show how much of each collective is waiting.", run=_collectives),
    Analysis(name="stragglers", summary="Find the rank that others wait for, and why.", run=_stragglers),
    Analysis(
        name="critical-path", summary="Show the chain over all ranks that sets a step's time.", run=_critical_path
    ),
    Analysis(name="memory", summary="List what held memory at its peak.", run=_memory),
    Analysis(
        name="diff",
        summary="Split a change of the step time into its parts.",
        run=_difference,
        sides=("before", "after"),
    ),
)

DRAWINGS: tuple[Drawing, ...] = (
    Drawing(name="merge", summary="Merge all ranks on one clock, for ui.perfetto.dev.", run=_merge),
)

NAMES = (*(analysis.name for analysis in ANALYSES), *(drawing.name for drawing in DRAWINGS))
