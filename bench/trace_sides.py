"""The sides of an analysis: each the traces of a run's ranks, one a rank, and what is missing of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from bench.errors import Misuse
from bench.trace_files import TraceFiles, find_files
from bench.trace_reading import read_traces
from collectors.traces.spans import Timeline

RANKS_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """The trace of a rank, and its file."""

    path: Path
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSide:
    """Traces by rank.

    notices: what is missing of them and of the ranks, a line each. folder: of the run that they are of; None of others.
    """

    name: str
    traces: tuple[RankTrace, ...]
    notices: tuple[str, ...]
    folder: Path | None = None

    def timelines(self) -> tuple[Timeline, ...]:
        """The Timelines alone."""
        return tuple(trace.timeline for trace in self.traces)


def read_sides(
    named: Mapping[str, Sequence[str]], *, rank: int | None, runs_folder: Path, store_url: str | None
) -> tuple[TraceSide, ...]:
    """Each side as read from the files, folders and runs that it names. rank: of a lone trace.

    Raises:
        Misuse: a name means nothing, a file is no trace, or two are of one rank.
        InfrastructureFailed: the history could not be asked for a run, or a process that read died.
    """
    files = {side: find_files(names, runs_folder, store_url) for side, names in named.items()}
    most = max(len(found.paths) for found in files.values())
    if rank is not None and most > 1:
        raise Misuse(f"--rank is of a lone trace, and these are {most}; leave it out, or name one file")
    read = iter(read_traces([path for found in files.values() for path in found.paths], rank=rank))
    sides: list[TraceSide] = []
    for name, found in files.items():
        traces, skipped = _told_apart(found, [next(read) for _ in found.paths])
        side = side_of(name, list(traces), list(traces.values()), ranks=found.ranks if rank is None else None)
        sides.append(replace(side, folder=found.folder, notices=(*found.notices, *skipped, *side.notices)))
    return tuple(sides)


def _told_apart(files: TraceFiles, read: Sequence[Timeline | str]) -> tuple[dict[Path, Timeline], list[str]]:
    """The traces, and a line for each file that lies in a folder of traces and is none.

    Raises:
        Misuse: a file that somebody named is no trace, or none of them is.
    """
    found = dict(zip(files.paths, read, strict=True))
    traces = {path: one for path, one in found.items() if isinstance(one, Timeline)}
    refused = {path: one for path, one in found.items() if isinstance(one, str)}
    for path, why in refused.items():
        if path not in files.unsure:
            raise Misuse(why)
    if not traces:
        first = next(iter(refused.values()))
        raise Misuse(first if len(refused) == 1 else f"none of {len(refused)} files is a trace: {first}")
    return traces, [f"skipped: {why}" for why in refused.values()]


def side_of(name: str, paths: Sequence[Path], timelines: Sequence[Timeline], *, ranks: int | None = None) -> TraceSide:
    """The side that these files are. ranks: how many the run had; None where the traces say, or nobody knows.

    Raises:
        Misuse: two files are of one rank.
    """
    traces = [RankTrace(path=path, timeline=timeline) for path, timeline in zip(paths, timelines, strict=True)]
    by_rank: dict[int, RankTrace] = {}
    for trace in traces:
        rank = trace.timeline.rank
        if rank in by_rank:
            raise Misuse(
                f"{by_rank[rank].path} and {trace.path} are both of rank {rank}; name one file of each rank"
                " (where a trace does not tell its rank, a name such as rank1.json does)"
            )
        by_rank[rank] = trace
    ordered = tuple(by_rank[rank] for rank in sorted(by_rank))
    return TraceSide(
        name=name,
        traces=ordered,
        notices=(
            *(f"{trace.path}: left out: {line}" for trace in ordered for line in trace.timeline.about.left_out),
            *_missing(ordered, ranks),
        ),
    )


def _missing(traces: Sequence[RankTrace], ranks: int | None) -> list[str]:
    told = {trace.timeline.about.world_size for trace in traces} - {None} | ({ranks} if ranks else set())
    sizes = sorted(size for size in told if size is not None)
    if len(sizes) > 1:
        return [f"the traces are of worlds of {' and '.join(map(str, sizes))} ranks; are they of one run?"]
    if not sizes:
        return []
    (size,) = sizes
    here = {trace.timeline.rank for trace in traces}
    missing = size - sum(rank < size for rank in here)
    if not missing:
        return []
    # A world may be said to have more ranks than anybody would list.
    first = islice((rank for rank in range(size) if rank not in here), RANKS_NAMED)
    named = ", ".join(map(str, first)) + (", ..." if missing > RANKS_NAMED else "")
    return [
        f"no trace is here of {missing} of {size} ranks ({named}): what ranks do to each other is told of the others"
        " alone"
    ]
