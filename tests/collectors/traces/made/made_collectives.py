"""Timelines of collectives that are written by hand."""

from __future__ import annotations

from collections.abc import Iterable

from collectors.traces.timeline import About, Call, Timeline
from tests.support.timelines import Span, timeline_of

ALL_REDUCE = Call(collective="all_reduce", group="0")


def ran(
    start_ns: int, end_ns: int, call: Call | None = ALL_REDUCE, sequence: int | None = None, name: str = "nccl"
) -> Span:
    """A collective on one rank."""
    return Span(
        name=name,
        kind="communication",
        start_ns=start_ns,
        end_ns=end_ns,
        stream=20,
        call=call,
        sequence=sequence,
    )


def rank_of(rank: int, spans: Iterable[Span], about: About | None = None) -> Timeline:
    """One rank's Timeline."""
    return timeline_of(spans, rank=rank, is_device=True, about=about)


def ranks_of(*spans: Iterable[Span]) -> list[Timeline]:
    """Timelines of ranks 0, 1, ..."""
    return [rank_of(rank, of_rank) for rank, of_rank in enumerate(spans)]
