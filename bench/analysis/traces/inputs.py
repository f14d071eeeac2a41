"""Inputs of trace analyses: resolves names of files, folders and runs to the traces of each rank.

A side is one trace for each rank of a run; an analysis takes one side or two (before and after).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec

from bench.errors import InfrastructureFailed, Misuse
from bench.results.timelines import OWN, newest_windows, read_traces
from bench.store.active_runs import is_running
from bench.store.files import read_small
from collectors.traces.reading.json_chunks import STANDARD_INPUT, is_own_drawing
from collectors.traces.reading.reader import RANK_UNKNOWN
from collectors.traces.timeline import Timeline

OPEN_FILES = ("/dev/fd", "/proc/self/fd")
"""Where a shell's `<(...)` appears: a pipe that is already open."""

ENDINGS = (OWN, ".json", ".json.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFiles:
    """Files of one side.

    unsure: files from a named folder, some of which may not be traces. folder, ranks: the run's folder and number of
    ranks; None if the user did not name a run.
    notices: a line for each file of a folder that was skipped.
    """

    paths: tuple[Path, ...]
    unsure: frozenset[Path] = frozenset()
    folder: Path | None = None
    ranks: int | None = None
    notices: tuple[str, ...] = ()


def find_files(names: Sequence[str], runs_folder: Path, store_url: str | None) -> TraceFiles:
    """Return the files for these names: all traces of a folder, or the profiler windows of a run's ranks.

    Raises:
        Misuse: a name is unknown, holds no trace, or cannot be read.
        InfrastructureFailed: the history could not be searched for a run.
    """
    inputs = []
    for name in names:
        with _refusing(name):
            files = _on_disk(name, runs_folder, store_url)
        if files is None:
            folder = _folder_in_history(name, runs_folder, store_url)
            with _refusing(str(folder)):
                files = _of_run(folder)
        inputs.append(files)
    if len(inputs) == 1:
        return inputs[0]
    return TraceFiles(
        paths=tuple(dict.fromkeys(path for files in inputs for path in files.paths)),
        unsure=frozenset(path for files in inputs for path in files.unsure) - {Path(name) for name in names},
        notices=tuple(dict.fromkeys(line for files in inputs for line in files.notices)),
    )


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Turn an OSError into Misuse."""
    try:
        yield
    except OSError as error:
        raise Misuse(f"{error.filename or name} cannot be read: {error.strerror or error}") from None


def _on_disk(name: str, runs_folder: Path, store_url: str | None) -> TraceFiles | None:
    """Return the files of this path or of the run with this name; None if only the history may know the run."""
    path = STANDARD_INPUT if name == "-" else Path(name)
    if path == STANDARD_INPUT and os.isatty(0):
        raise Misuse(
            "standard input is a terminal; pipe a trace into it, for example `zcat rank0.json.gz | observatory ... -`"
        )
    if path.is_dir() and _is_run(path):
        return _of_run(path)
    if path.is_dir() and _is_of_traces(path, name, store_url):
        return _of_folder(path)
    if path.is_fifo() and path != STANDARD_INPUT and str(path.parent) not in OPEN_FILES:
        raise Misuse(f"{path} is a named pipe and may have no writer; use `... | observatory analyse ... -`, or a file")
    if path.exists() and not path.is_dir() and not _hides_job(path, name, store_url):
        if _is_drawing(path):
            raise Misuse(f"{path} is a drawing by this program, not a trace; name the traces that it was drawn from")
        return TraceFiles(paths=(path,))
    if name.endswith(ENDINGS) or path.name != name:
        raise Misuse(f"{name} does not exist; name a trace (.json, .json.gz, {OWN}), a folder of traces or a run")
    if (runs_folder / name / "case.json").exists():
        return _of_run(runs_folder / name)
    return None


def _is_of_traces(folder: Path, name: str, store_url: str | None) -> bool:
    """Whether a folder without a run is meant: it holds traces, or it shares its name with no watched job."""
    if any(each.name.endswith(ENDINGS) for each in folder.iterdir()):
        return True
    from bench.store.history import means_folder  # Loads SQLAlchemy.

    return means_folder(name, store_url)


def _hides_job(file: Path, name: str, store_url: str | None) -> bool:
    """Whether a file is no trace and shares its name with a watched job, as the program `train` does with its job."""
    if file.name != name or name.endswith(ENDINGS) or not file.is_file():
        return False
    from bench.store.history import is_job  # Loads SQLAlchemy.

    return is_job(name, store_url) and isinstance(read_traces((file,))[0], str)


def _is_run(folder: Path) -> bool:
    """Whether this is the folder of a run, not a folder of traces in which another program put a case.json."""
    case = folder / "case.json"
    if not case.is_file():
        return False
    try:
        content = msgspec.json.decode(read_small(case))
    except (Misuse, OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        content = None
    is_ours = isinstance(content, dict) and "schema_version" in content
    return is_ours or not any(path.name.endswith(ENDINGS) and path != case for path in folder.iterdir())


def _folder_in_history(run: str, runs_folder: Path, store_url: str | None) -> Path:
    from bench.store.history import find_run
    from bench.store.run_dir import found_again

    try:
        summary = find_run(run, store_url)
    except Misuse as error:
        raise Misuse(f'"{run}" is neither a file nor a folder, and {error}') from None
    except InfrastructureFailed as error:
        raise InfrastructureFailed(
            f'"{run}" is neither a file nor a folder, and no run can be looked up: {error}'
        ) from None
    folder = found_again(summary.run, summary.folder, runs_folder) or Path(summary.folder)
    with _refusing(str(folder)):
        is_gone = not folder.is_dir()
    if is_gone:
        raise Misuse(
            f"{folder} no longer exists, so the traces of run {run} are gone; give the folder that the runs were moved"
            " to with --runs, run the case again, or name files that you kept"
        )
    return folder


def _of_run(folder: Path) -> TraceFiles:
    from bench.store.run_dir import case_file

    if is_running(folder):
        raise Misuse(f"{folder} is still active; try again when the run is done")
    case = case_file(folder).case
    paths = sorted(newest_windows(folder), key=_rank_in_name)
    if not paths:
        trace = f"`observatory run {case.strategy} --trace-steps {max(1, case.trace_steps)}` makes new traces"
        if case.watched_name is not None:
            trace = f"while it runs, `observatory watch --attach {case.watched_name}` traces its steps"
        raise Misuse(f"{folder} holds no rank<k>{OWN}: no rank's profiler window was traced completely; {trace}")
    return TraceFiles(paths=tuple(paths), folder=folder, ranks=case.ranks)


def _rank_in_name(path: Path) -> tuple[int, str]:
    match = re.match(r"rank(\d+)\.", path.name)
    return (int(match[1]) if match else 0, path.name)


def _of_folder(folder: Path) -> TraceFiles:
    named = sorted(path for path in folder.iterdir() if path.name.endswith(ENDINGS) and path.is_file())
    drawings = []
    for path in named:
        with suppress(OSError):  # An unreadable file is skipped later, with the reason.
            drawings += [path] if _is_drawing(path) else []
    paths = tuple(path for path in named if path not in drawings)
    if not paths:
        raise Misuse(f"{folder} holds no trace; a trace's name ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return TraceFiles(
        paths=paths,
        unsure=frozenset(paths),
        notices=tuple(f"{path}: skipped: it is a drawing by this program, not a trace" for path in drawings),
    )


def _is_drawing(path: Path) -> bool:
    """Whether this program drew the file. Input that can be read only once, for example a pipe, is not checked."""
    return not path.name.endswith(OWN) and path.is_file() and is_own_drawing(path)


# Sides: traces by rank, and missing ranks

RANKS_NAMED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """A rank's trace and its file."""

    path: Path
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSet:
    """The traces of one run's ranks, by rank.

    notices: a line for each missing rank or part of a trace. folder: the run's; None if the user did not name a run.
    """

    name: str
    traces: tuple[RankTrace, ...]
    notices: tuple[str, ...]
    folder: Path | None = None

    def timelines(self) -> tuple[Timeline, ...]:
        """Return the Timelines without their files."""
        return tuple(trace.timeline for trace in self.traces)


def read_sides(
    named: Mapping[str, Sequence[str]], *, ranks: Sequence[int] = (), runs_folder: Path, store_url: str | None
) -> tuple[TraceSet, ...]:
    """Read each side from the files, folders and runs named for it.

    ranks: the rank of each trace of a side, in the order of the traces; empty to take ranks from the traces and their
        file names.

    Raises:
        Misuse: a name is unknown, a file is not a trace, or two files belong to one rank.
        InfrastructureFailed: the history could not be searched for a run, or a process that read a trace died.
    """
    files = {side: find_files(names, runs_folder, store_url) for side, names in named.items()}
    paths = [path for side_files in files.values() for path in side_files.paths]
    if repeated := next((path for path in paths if path.is_fifo() and paths.count(path) > 1), None):
        raise Misuse(f"{repeated} is a pipe, which can be read only once, but is named twice; write it to a file first")
    read = iter(read_traces(paths))
    sides: list[TraceSet] = []
    for name, side_files in files.items():
        traces, skipped = _separate(side_files, [next(read) for _ in side_files.paths])
        ranked = with_ranks(traces, ranks)
        side = side_of(name, list(ranked), list(ranked.values()), ranks=None if ranks else side_files.ranks)
        sides.append(replace(side, folder=side_files.folder, notices=(*side_files.notices, *skipped, *side.notices)))
    return tuple(sides)


def _separate(files: TraceFiles, read: Sequence[Timeline | str]) -> tuple[dict[Path, Timeline], list[str]]:
    """Separate the traces from other files; return a line for each other file in a named folder.

    Raises:
        Misuse: a file that was named directly is not a trace, or no file is a trace.
    """
    by_path = dict(zip(files.paths, read, strict=True))
    traces = {path: timeline for path, timeline in by_path.items() if isinstance(timeline, Timeline)}
    refused = {path: why for path, why in by_path.items() if isinstance(why, str)}
    # Another program's JSON file may have a list like a trace's, but no event of a profiler in it.
    if foreign := {
        path
        for path, timeline in traces.items()
        if path in files.unsure
        and not (timeline.kind.size or timeline.allocations.time_ns.size)
        and timeline.about.world_size is None
    }:
        refused |= {path: f"{path}: it holds no event that torch.profiler writes" for path in foreign}
        traces = {path: timeline for path, timeline in traces.items() if path not in foreign}
    for path, why in refused.items():
        if path not in files.unsure:
            raise Misuse(why)
    if not traces:
        first = next(iter(refused.values()))
        raise Misuse(first if len(refused) == 1 else f"none of the {len(refused)} files is a trace: {first}")
    return traces, [f"skipped: {why}" for why in refused.values()]


_DEGREE = re.compile(r"(?<![a-z0-9])(tp|pp|dp|ep|cp|sp|local)(?:[-_.]?rank)?[-_=]?(\d{1,9})(?![a-z0-9])", re.IGNORECASE)
"""A rank's position along an axis of parallelism, as in 1760000000-TP-1-DP-0.trace.json, or within the node."""


def with_ranks(traces: Mapping[Path, Timeline], ranks: Sequence[int]) -> dict[Path, Timeline]:
    """Return the traces with these ranks, in order. Without `ranks`, they come from the traces or their file names.

    Raises:
        Misuse: the numbers of ranks and traces differ, a rank occurs twice, or the ranks of several traces are unknown.
    """
    order = ", ".join(path.name for path in traces)
    if ranks:
        if len(ranks) != len(traces):
            raise Misuse(
                f"--rank is given {_times(len(ranks))} for {len(traces)} trace{'s' * (len(traces) > 1)} ({order}); give"
                " it once for each, in this order"
            )
        if len(set(ranks)) < len(ranks):
            raise Misuse(f"--rank {max(ranks, key=ranks.count)} is given twice; give each trace a different rank")
        return {path: _ranked(timeline, rank) for (path, timeline), rank in zip(traces.items(), ranks, strict=True)}
    unknown = [path for path, timeline in traces.items() if RANK_UNKNOWN in timeline.about.left_out]
    if len(unknown) < 2:
        return dict(traces)
    if (ranks_in_names := _ranks_in_names(unknown)) is None:
        example = " ".join(f"--rank {number}" for number in range(min(len(traces), RANKS_NAMED)))
        raise Misuse(
            f"{len(unknown)} traces contain no rank, nor do their file names{_local(unknown)}; give the"
            f" rank of each, in this order ({order}): {example}{' ...' if len(traces) > RANKS_NAMED else ''}"
        )
    return {
        path: _ranked(timeline, ranks_in_names[path]) if path in ranks_in_names else timeline
        for path, timeline in traces.items()
    }


def _local(paths: Sequence[Path]) -> str:
    """Return a remark on local ranks if the file names contain them."""
    is_local = any(axis.lower() == "local" for path in paths for axis, _ in _DEGREE.findall(path.name))
    return " (a local rank occurs on each node)" if is_local else ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ranked(timeline: Timeline, rank: int) -> Timeline:
    about = timeline.about
    left_out = tuple(line for line in about.left_out if line != RANK_UNKNOWN)
    return replace(timeline, rank=rank, about=replace(about, left_out=left_out))


def _ranks_in_names(paths: Sequence[Path]) -> dict[Path, int] | None:
    """Return each file's position along the only axis of parallelism on which all differ; None without such an axis.

    Example: TP-0-DP-0 and TP-1-DP-0 differ along TP alone, and are ranks 0 and 1.
    """
    places = [{axis.lower(): int(number) for axis, number in _DEGREE.findall(path.name)} for path in paths]
    candidates = {tuple(of_path.get(axis, -1) for of_path in places) for axis in set().union(*places)}
    distinct = [numbers for numbers in candidates if len(set(numbers)) == len(paths) and min(numbers) >= 0]
    return dict(zip(paths, distinct[0], strict=True)) if len(distinct) == 1 else None


def side_of(name: str, paths: Sequence[Path], timelines: Sequence[Timeline], *, ranks: int | None = None) -> TraceSet:
    """Make a side from these files. ranks: the run's number of ranks; None to take it from the traces.

    Raises:
        Misuse: two files belong to one rank.
    """
    traces = [RankTrace(path=path, timeline=timeline) for path, timeline in zip(paths, timelines, strict=True)]
    by_rank: dict[int, RankTrace] = {}
    for trace in traces:
        rank = trace.timeline.rank
        if rank in by_rank:
            raise Misuse(
                f"{by_rank[rank].path} and {trace.path} both belong to rank {rank}; name one file for each rank,"
                " or give the rank of each with --rank, in their order"
            )
        by_rank[rank] = trace
    ordered = tuple(by_rank[rank] for rank in sorted(by_rank))
    return TraceSet(
        name=name,
        traces=ordered,
        notices=(
            *(f"{trace.path}: left out: {line}" for trace in ordered for line in trace.timeline.about.left_out),
            *_missing(ordered, ranks),
        ),
    )


def _missing(traces: Sequence[RankTrace], ranks: int | None) -> list[str]:
    claimed = [ranks or None, *(trace.timeline.about.world_size for trace in traces)]
    sizes = sorted({size for size in claimed if size is not None})
    if len(sizes) > 1:
        return [f"the traces report world sizes of {' and '.join(map(str, sizes))}; they may belong to different runs"]
    if not sizes:
        return []
    (size,) = sizes
    traced_ranks = {trace.timeline.rank for trace in traces}
    missing = size - sum(rank < size for rank in traced_ranks)
    if not missing:
        return []
    # A trace may claim a world of very many ranks, so only the first missing ranks are named.
    first = islice((rank for rank in range(size) if rank not in traced_ranks), RANKS_NAMED)
    numbers = ", ".join(map(str, first)) + (", ..." if missing > RANKS_NAMED else "")
    return [f"{missing} of {size} ranks have no trace ({numbers}): waiting between ranks is known only for the others"]
