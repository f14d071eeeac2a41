"""Whether one rank holds the others up, and by what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collectors.traces.ranks.activities import ACTIVITIES
from collectors.traces.ranks.clocks import Alignment
from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.collectives import collectives
from collectors.traces.ranks.impossible import count_impossible
from collectors.traces.ranks.lateness import Lateness
from collectors.traces.ranks.matching import ROOTED
from collectors.traces.ranks.traced_lateness import traced_lateness
from collectors.traces.ranks.verdict import Nobody, Straggler, verdict
from collectors.traces.spans import Timeline
from collectors.traces.table import Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Lateness of every rank, the costliest first, and the verdict.

    straggler: None where lateness is spread evenly, may be luck or costs next to nothing; why_none then says so.
    """

    alignment: Alignment
    ranks: tuple[Lateness, ...]
    straggler: Straggler | None
    why_none: str | None
    notes: tuple[str, ...]

    def tables(self) -> tuple[Table, ...]:
        """The verdict, lateness by rank, who waited for whom, and the clocks behind them, whose notes are ours."""
        one = self.straggler
        return (
            Table(
                name="straggler",
                title="The rank that holds the others up",
                columns=(
                    *(Column(name=name) for name in ("rank", "cause")),
                    Column(name="delay", unit="ns"),
                    *(Column(name=name, unit="ratio") for name in ("of_time", "of_all_delays", "chance")),
                    Column(name="longest_events"),
                ),
                rows=()
                if one is None
                else (
                    (
                        one.rank,
                        one.cause,
                        one.delay_ns,
                        one.cost_ratio,
                        one.delay_ratio,
                        one.chance,
                        ", ".join(one.names),
                    ),
                ),
                notes=() if self.why_none is None else (f"none: {self.why_none}",),
            ),
            Table(
                name="lateness",
                title="How often each rank comes last, what that costs the others, and what it does meanwhile",
                columns=(
                    *(Column(name=name) for name in ("rank", "collectives", "last")),
                    *(Column(name=name, unit="ns") for name in ("delay", "others_wait")),
                    *(Column(name=activity.replace(" ", "_"), unit="ns") for activity in ACTIVITIES),
                    Column(name="longest_events"),
                ),
                rows=tuple(
                    (
                        one.rank,
                        one.collectives,
                        one.last,
                        one.delay_ns,
                        one.others_wait_ns,
                        *(one.doing_ns[activity] for activity in ACTIVITIES),
                        ", ".join(one.names),
                    )
                    for one in self.ranks
                ),
            ),
            Table(
                name="cost",
                title="How long each rank waited in the collectives that another came late to",
                columns=(Column(name="late_rank"), Column(name="waiting_rank"), Column(name="wait", unit="ns")),
                rows=tuple((one.rank, rank, wait_ns) for one in self.ranks for rank, wait_ns in one.waits_ns.items()),
            ),
            *(replace(table, notes=()) for table in self.alignment.tables()),
        )


def stragglers(timelines: Sequence[Timeline]) -> Stragglers:
    """Who holds these ranks up.

    Looked at are collectives that nobody leaves before the last has come, each rank's first left out. A rank is late
    where it comes after all others by more than the ends of a collective lie apart on different clocks, which is how
    well these are known.

    Raises:
        ValueError: two Timelines are of one rank.
    """
    found = collectives(timelines)
    lateness = traced_lateness(found)
    said = verdict([lateness], by="step")
    return Stragglers(
        alignment=found.alignment,
        ranks=tuple(sorted(lateness.ranks, key=lambda one: -one.delay_ns)),
        straggler=said if isinstance(said, Straggler) else None,
        why_none=_why(said) if isinstance(said, Nobody) else None,
        notes=(*_notes(found.times, found.alignment), *found.matching.notes, *found.alignment.notes),
    )


def _why(nobody: Nobody) -> str:
    if nobody.more is None:
        return nobody.why
    return f"{nobody.why}; trace {nobody.more} more whole steps, at least"


def _notes(times: Sequence[CollectiveTime], alignment: Alignment) -> Iterator[str]:
    yield f"late is who comes more than {(alignment.residual_ns or 0) / 1e3:g} us after all others"
    yield (
        "what it does are the parts of its delay: what it did more than the last but one since both left a collective;"
        " below 0 where it did less; to have left later counts as an earlier collective, less what the host idled less"
    )
    counted = [time for time in times if time.matched.collective not in ROOTED and not time.matched.is_first]
    if impossible := count_impossible(counted, alignment.residual_ns or 0):
        yield (
            f"{impossible} of {len(counted)} collectives seem to end on a rank before the last has come: clocks or"
            " groups are not as they are taken to be, and who is late may be another"
        )
    rooted = sum(time.matched.collective in ROOTED for time in times)
    if rooted:
        yield f"{rooted} rooted collectives are left out: in them who waits for whom is not told"
    if not any(timeline.of_kind("step").any() for timeline in alignment.timelines):
        yield "no trace marks steps: all lateness of a rank, until another is late, counts as of one step"
    yield (
        "the chance is that of independent steps of ranks as they were started: whether a rank is late wherever it is"
        " started, only more trials tell"
    )
