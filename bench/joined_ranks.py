"""The windows of one trial's ranks, joined: who waited for whom in which collective, as samples of the run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from collectors.catalogue import joined_ranks as metrics
from collectors.metric import Sample
from collectors.traces.ranks.clocks import Alignment
from collectors.traces.ranks.collective_times import CollectiveTime
from collectors.traces.ranks.collectives import Collectives, collectives
from collectors.traces.ranks.matching import Matching
from collectors.traces.ranks.traced_lateness import TracedLateness, traced_lateness
from collectors.traces.spans import Timeline
from workloads.laws.terms import Collective

_REASONS_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One trial. samples: of the run. notes: what they leave out and what was assumed, each once."""

    samples: tuple[Sample, ...]
    lateness: TracedLateness
    notes: tuple[str, ...]


def join_ranks(timelines: Sequence[Timeline]) -> Joined:
    """What the windows of all ranks of a trial say together.

    Raises:
        ValueError: two Timelines are of one rank.
    """
    found = collectives(timelines)
    lateness = traced_lateness(found)
    samples = (*_of_collectives(found), *_of_lateness(lateness))
    notes = (
        *_left_out(found.matching, timelines),
        *_without_bandwidth(samples),
        *found.notes,
        *found.matching.notes,
        *found.alignment.notes,
    )
    return Joined(
        samples=samples,
        lateness=lateness,
        notes=tuple(dict.fromkeys(notes)),
    )


def _left_out(matching: Matching, timelines: Sequence[Timeline]) -> Iterator[str]:
    if not matching.unmatched:
        return
    events = sum(int(timeline.of_kind("communication").sum()) for timeline in timelines)
    counts = sorted(Counter(one.reason for one in matching.unmatched).items(), key=lambda found: (-found[1], found[0]))
    told = [f"{count} ({reason})" for reason, count in counts[:_REASONS_TOLD]]
    if rest := sum(count for _, count in counts[_REASONS_TOLD:]):
        told.append(f"{rest} (for other reasons; `observatory analyse collectives` lists them)")
    yield f"waits leave out {len(matching.unmatched)} of {events} events of communication: {', '.join(told)}"


def _without_bandwidth(samples: Sequence[Sample]) -> Iterator[str]:
    """What is said of collectives that move data, and of which the samples lack a bandwidth."""
    timed, known = (
        {one.labels["collective"] for one in samples if one.metric == metric.name}
        for metric in (metrics.RUN_COLLECTIVE_TRANSFER_SECONDS, metrics.RUN_TRACED_BUS_BANDWIDTH)
    )
    if absent := sorted((timed - known) & set(get_args(Collective))):
        yield f"traced bus bandwidth of {', '.join(absent)} is left out; `observatory analyse collectives` tells why"


def _of_collectives(found: Collectives) -> Iterator[Sample]:
    if found.waiting_ratio is not None:
        yield metrics.RUN_WAITING_RATIO.at(found.waiting_ratio)
    by_name: dict[str, list[CollectiveTime]] = defaultdict(list)
    for time in found.times:
        if not time.matched.is_first:
            by_name[time.matched.collective].append(time)
    for name, times in sorted(by_name.items()):
        wait_ns = fmean(ns for time in times for ns in time.wait_ns)
        transfer_ns = fmean(ns for time in times for ns in time.transfer_ns)
        yield metrics.RUN_COLLECTIVE_WAIT_SECONDS.at(wait_ns / 1e9, collective=name)
        yield metrics.RUN_COLLECTIVE_TRANSFER_SECONDS.at(transfer_ns / 1e9, collective=name)
        if (bandwidth := _bus_bandwidth(times)) is not None:
            yield metrics.RUN_TRACED_BUS_BANDWIDTH.at(bandwidth, collective=name)
    if (residual_ns := _residual_ns(found.alignment)) is not None:
        yield metrics.RUN_CLOCK_RESIDUAL_SECONDS.at(residual_ns / 1e9)


def _residual_ns(alignment: Alignment) -> int | None:
    """How far times of different clocks may be off; None where none is known, or the ranks share one clock."""
    host_of = {timeline.rank: timeline.about.host for timeline in alignment.timelines}
    known = []
    for one in alignment.agreements:
        hosts = {host_of[rank] for rank in one.ranks}
        # Within one host it is 0 by definition, no measurement; more where its ranks turn out to have several clocks.
        if one.residual_ns is not None and (one.residual_ns or None in hosts or len(hosts) > 1):
            known.append(one.residual_ns)
    return max(known, default=None)


def _bus_bandwidth(times: Sequence[CollectiveTime]) -> float | None:
    """That of all calls together, which weighs each by its time; None where that of one is not known."""
    elapsed_ns = [max(time.end_ns) - max(time.arrival_ns) for time in times]
    speeds = [time.bus_bandwidth for time in times]
    known = [speed * ns for speed, ns in zip(speeds, elapsed_ns, strict=True) if speed is not None]
    return sum(known) / sum(elapsed_ns) if len(known) == len(times) else None


def _of_lateness(lateness: TracedLateness) -> Iterator[Sample]:
    for one in lateness.ranks:
        rank = str(one.rank)
        yield metrics.RUN_LAST_RATIO.at(one.last / one.collectives, rank=rank)
        if lateness.traced_ns:
            yield metrics.RUN_HELD_UP_RATIO.at(min(1.0, one.delay_ns / lateness.traced_ns), rank=rank)
