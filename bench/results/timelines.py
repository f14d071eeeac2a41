"""Timelines on disk: where a run stores its ranks' profiler windows, and how trace files become Timelines.

Large traces are read in separate processes.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from bench.errors import InfrastructureFailed, Misuse
from collectors.files import make_subfolder, open_to_read
from collectors.sample_log import Reading, read
from collectors.traces.timeline import Timeline, load, save

# Profiler windows of a run: trial<t>/rank<k>.timeline.npz, and the newest of each rank next to the ranks' logs


def save_timeline(timeline: Timeline, folder: Path, trial: int) -> None:
    """Write the rank's window of this trial, in place of an earlier one of the trial. folder: the run's.

    Raises:
        OSError: the folder cannot be written.
    """
    path = window_path(folder, trial, timeline.rank)
    make_subfolder(path.parent)
    save(timeline, path)
    newest = folder / path.name
    newest.unlink(missing_ok=True)
    try:
        newest.hardlink_to(path)
    except OSError:  # Not every file system has hard links.
        save(timeline, newest)


def window_path(folder: Path, trial: int, rank: int) -> Path:
    """Return the path of a rank's window of a trial. folder: the run's."""
    return folder / f"trial{trial}" / f"rank{rank}.timeline.npz"


def newest_windows(folder: Path) -> list[Path]:
    """Return the windows of the last trial that has any, even if ranks lack one: windows of two trials never mix.

    folder: the run's. Runs of older versions have no folder for each trial; their windows are next to the logs.
    """
    trials = {
        int(match[1]): path for path in folder.glob("trial*") if (match := re.fullmatch(r"trial(\d+)", path.name))
    }
    for _, path in sorted(trials.items(), reverse=True):
        if windows := list(path.glob("rank*.timeline.npz")):
            return windows
    return list(folder.glob("rank*.timeline.npz"))


OWN = ".timeline.npz"
"""Ending of the file names of our own Timelines."""
APART_FROM_BYTES = 256 << 20
"""Total size from which foreign traces are read in parallel; below it, starting processes costs more than it saves."""
_PACKED = 16
"""Approximate compression ratio of a gzipped trace."""

_BROKEN = (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, msgspec.MsgspecError)
"""Exceptions from reading a damaged Timeline; zipfile raises RuntimeError for an unsupported encryption."""

Answer: TypeAlias = tuple[Literal["read"], Timeline] | tuple[Literal["refused", "broken"], str]


def read_files(
    paths: Sequence[Path], *, rank: int | None = None, apart_from_bytes: int = APART_FROM_BYTES
) -> tuple[Timeline, ...]:
    """Return the Timeline of each file. rank: replaces the rank that the file gives.

    Raises:
        Misuse: a file is missing, not a trace, or broken.
        InfrastructureFailed: a process that read one died.
    """
    contents = read_traces(paths, rank=rank, apart_from_bytes=apart_from_bytes)
    for content in contents:
        if isinstance(content, str):
            raise Misuse(content)
    return tuple(content for content in contents if isinstance(content, Timeline))


def read_traces(
    paths: Sequence[Path], *, rank: int | None = None, apart_from_bytes: int = APART_FROM_BYTES
) -> tuple[Timeline | str, ...]:
    """Return the Timeline of each file, or why there is none. rank: replaces the rank that the file gives.

    Raises:
        InfrastructureFailed: a process that read one died.
    """
    foreign = [path for path in paths if not path.name.endswith(OWN) and not path.is_fifo()]
    cores = len(os.sched_getaffinity(0))
    if min(len(foreign), cores) < 2 or sum(map(_content_bytes, foreign)) < apart_from_bytes:
        answers = {path: _read(path, rank) for path in paths}
    else:
        with ThreadPoolExecutor(cores) as threads:  # Each thread waits for a process that reads one file.
            largest_first = sorted(paths, key=_content_bytes, reverse=True)
            # Another process does not have our pipes open.
            read = threads.map(
                lambda path: _read(path, rank) if path.is_fifo() else _read_apart(path, rank), largest_first
            )
            answers = dict(zip(largest_first, read, strict=True))
    for kind, content in answers.values():
        if kind == "broken":
            raise RuntimeError(content)
    return tuple(answers[path][1] for path in paths)


def _content_bytes(path: Path) -> int:
    try:
        return path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1)
    except OSError:  # Reported when the file is read.
        return 0


def _read_apart(path: Path, rank: int | None) -> Answer:
    """Read the file in a new process."""
    context = multiprocessing.get_context("forkserver")  # A plain fork would copy locks that our threads hold.
    context.set_forkserver_preload([__name__])
    parent_end, child_end = context.Pipe(duplex=False)
    with parent_end:
        reader = context.Process(target=_send, args=(child_end, path, rank), daemon=True)
        reader.start()
        child_end.close()
        try:
            answer: Answer = parent_end.recv()
        except EOFError:
            reader.join()
            raise InfrastructureFailed(
                f"{path}: the process that read it ended with code {reader.exitcode}; perhaps memory is short:"
                " name fewer files at a time"
            ) from None
        reader.join()
    return answer


def _send(to: Connection, path: Path, rank: int | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches both processes; only the parent reports it.
    with to:
        try:
            answer = _read(path, rank)
        except Exception:  # noqa: BLE001  # Our own bug: the parent raises it again and records it.
            answer = "broken", traceback.format_exc()
        to.send(answer)


def _read(path: Path, rank: int | None) -> Answer:
    try:
        if path.name.endswith(OWN):
            return "read", _load(path, rank)
        from collectors.traces.reading.reader import Unreadable, read_trace

        try:
            return "read", read_trace(path, rank=rank)
        except Unreadable as error:
            text = str(error)
            return "refused", text if str(path) in text else f"{path}: {text}"
    except OSError as error:
        return "refused", f"{path} cannot be read: {error.strerror or error}"
    except Misuse as error:
        return "refused", str(error)


def _load(path: Path, rank: int | None) -> Timeline:

    with open_to_read(path) as file:
        is_whole = zipfile.is_zipfile(file)  # Checked first: numpy leaves other files open.
    if not is_whole:
        raise Misuse(f"{path} is not a Timeline of this program, or is incomplete")
    try:
        timeline = load(path)
    except _BROKEN as error:
        names_file = str(error).startswith(str(path))  # For example for a newer schema.
        raise Misuse(
            str(error) if names_file else f"{path} is not a Timeline of this program, or is broken: {error}"
        ) from None
    return timeline if rank is None else replace(timeline, rank=rank)


# Profiler windows in the log of rank 0


def windows_by_trial(folder: Path) -> Counter[int]:
    """Count the profiler windows of each trial in rank 0's log; empty without the log.

    A window is a run of traced steps with consecutive numbers: 5, 6, 7, 20, 21 are two windows.
    folder: the run's.

    Raises:
        NewerSchema: a newer version wrote the log.
        OSError: the log cannot be read.
    """
    path = folder / "rank0.jsonl"
    windows = Counter[int]()
    last: dict[int, int] = {}
    for record in read(path).records if path.exists() else ():
        if isinstance(record, Reading) and record.mark == "traced":
            windows[record.trial] += last.get(record.trial) != record.step - 1
            last[record.trial] = record.step
    return windows
