"""How often and how long each name and each kind ran, over several ranks' traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.traces.intervals import Times, union
from collectors.traces.spans import KINDS, Kind, Timeline
from collectors.traces.steps.durations import Durations, durations
from collectors.traces.steps.launches import is_at_work


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """What bears one name, over all ranks; where the name is None, all of one kind on one rank.

    union_ns: the time in which at least one ran on a rank, added up over the ranks. share: of the sum of durations of
    all that ran there.
    """

    rank: int | None
    kind: Kind
    name: str | None
    durations: Durations
    union_ns: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTimes:
    """by_name: over all ranks, the greatest sum first. by_kind: rank by rank."""

    by_name: tuple[KernelTime, ...]
    by_kind: tuple[KernelTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """All spans at work, as columns. name: a number over all ranks. place: the place of the rank's Timeline."""

    name: NDArray[np.int64]
    kind: NDArray[np.int64]
    place: NDArray[np.int64]
    start_ns: Times
    end_ns: Times


def kernel_times(timelines: Sequence[Timeline]) -> KernelTimes:
    """The times of what computes, communicates and copies; of a trace without a device, of the host's operators."""
    names: dict[str, int] = {}
    spans = _spans(timelines, names)
    words, kinds = tuple(names), len(KINDS)
    named = _grouped(spans, spans.name * kinds + spans.kind)
    total_ns = sum(found.total_ns for _, found, _ in named)
    by_name = [
        KernelTime(
            rank=None,
            kind=KINDS[number % kinds],
            name=words[number // kinds],
            durations=found,
            union_ns=union_ns,
            share=_share(found.total_ns, total_ns),
        )
        for number, found, union_ns in named
    ]
    grouped = _grouped(spans, spans.place * kinds + spans.kind)
    totals_ns = [
        sum(found.total_ns for number, found, _ in grouped if number // kinds == place)
        for place in range(len(timelines))
    ]
    by_kind = [
        KernelTime(
            rank=timelines[number // kinds].rank,
            kind=KINDS[number % kinds],
            name=None,
            durations=found,
            union_ns=union_ns,
            share=_share(found.total_ns, totals_ns[number // kinds]),
        )
        for number, found, union_ns in grouped
    ]
    return KernelTimes(
        by_name=tuple(sorted(by_name, key=lambda time: (-time.durations.total_ns, time.kind, time.name))),
        by_kind=tuple(by_kind),
    )


def _spans(timelines: Sequence[Timeline], names: dict[str, int]) -> _Spans:
    """The columns; `names` is filled with the number of each name."""
    parts = []
    for place, timeline in enumerate(timelines):
        rows = np.flatnonzero(is_at_work(timeline))
        numbers = np.array([names.setdefault(name, len(names)) for name in timeline.names], dtype=np.int64)
        parts.append(
            np.stack(
                (
                    numbers[timeline.name[rows]],
                    timeline.kind[rows],
                    np.full(rows.size, place),
                    timeline.start_ns[rows],
                    timeline.end_ns[rows],
                )
            )
        )
    name, kind, place, start_ns, end_ns = np.concatenate([np.empty((5, 0), dtype=np.int64), *parts], axis=1)
    return _Spans(name=name, kind=kind, place=place, start_ns=start_ns, end_ns=end_ns)


def _grouped(spans: _Spans, group: NDArray[np.int64]) -> list[tuple[int, Durations, int]]:
    """Per group its number, its durations and its union: that of each rank, added up."""
    if not group.size:
        return []
    found = durations(spans.end_ns - spans.start_ns, group)
    numbers, which = np.unique(group * (1 + spans.place.max()) + spans.place, return_inverse=True)
    # Each group on each rank is put into a stretch of its own, so that one union serves for all; of places among all
    # edges and not of times, since one wrong time makes a trace last for years, and so many of them exceed 64 bits.
    edges_ns = np.sort(np.concatenate((spans.start_ns, spans.end_ns)))
    shift = which.ravel() * edges_ns.size
    together = union(np.searchsorted(edges_ns, spans.start_ns) + shift, np.searchsorted(edges_ns, spans.end_ns) + shift)
    owner = numbers[together[:, 0] // edges_ns.size] // (1 + spans.place.max())
    places = np.searchsorted(np.array(list(found)), owner)
    lasting_ns = np.diff(edges_ns[together % edges_ns.size], axis=1).ravel()
    unions_ns = np.zeros(len(found), dtype=np.int64)
    np.add.at(unions_ns, places, lasting_ns)
    return [(number, times, int(unions_ns[place])) for place, (number, times) in enumerate(found.items())]


def _share(part_ns: int, whole_ns: int) -> float:
    return part_ns / whole_ns if whole_ns else 0.0
