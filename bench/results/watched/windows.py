"""Reads the windows in a watched run's folder: the steps that the ranks agreed on, and the results of joined traces.

`windows/<number>/` holds `window.json`, which rank 0 writes when the ranks have agreed or cannot agree; until the
traces are joined, each rank's trace or why it has none; then `result.json`. `bench.analysis.traces.watched_window`
joins them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.results.watched.details import TracedWindow
from collectors.files import open_to_read
from collectors.watch.observatory_watch_window import FOLDER, REQUEST

T = TypeVar("T")
RESULT = "result.json"
MOST_BYTES = 8 << 20
"""Most bytes of a file that are read."""
MOST_WINDOWS = 20
"""Newest windows that a run's summary holds."""


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of window.json. first, last: numbers of the agreed steps. dropped: why none were agreed."""

    id: int
    steps: int
    why: str = ""
    first: int | None = None
    last: int | None = None
    world_size: int | None = None
    unix_s: float | None = None
    dropped: str | None = None


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of rank<k>.missed. why: the reason that the rank traced nothing."""

    why: str


class RankPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The content of rank<k>.phases.json: begins and ends in Unix nanoseconds by the clock of the rank's host.

    steps: the traced steps. phases: by name. cost_ns: time for agreeing and the profiler outside of these steps.
    """

    steps: list[tuple[int, int]] = []
    phases: dict[str, list[tuple[int, int]]] = {}
    cost_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFolder:
    """One window's folder. agreed: None before the ranks have agreed. result: None before the traces are joined."""

    number: int
    path: Path
    agreed: Agreed | None
    result: TracedWindow | None


def window_folders(run: Path) -> list[WindowFolder]:
    """Return the newest `MOST_WINDOWS` windows of a run's folder, oldest first; unreadable files count as absent."""
    return [window_folder(run, number) for number in window_numbers(run)[-MOST_WINDOWS:]]


def window_numbers(run: Path) -> list[int]:
    """Return the numbers of a run's windows, in order."""
    try:
        return sorted(int(path.name) for path in (run / FOLDER).iterdir() if path.name.isdecimal())
    except OSError:
        return []


def window_folder(run: Path, number: int) -> WindowFolder:
    """Return one window of a run's folder."""
    path = run / FOLDER / str(number)
    return WindowFolder(
        number=number, path=path, agreed=_read(path / REQUEST, Agreed), result=_read(path / RESULT, TracedWindow)
    )


def traced_windows(run: Path) -> tuple[TracedWindow, ...]:
    """Return the results of a run's newest windows, oldest first."""
    return tuple(each.result for each in window_folders(run) if each.result is not None)


def missed(window: WindowFolder) -> dict[int, str]:
    """Return why a rank has no trace of a window, by rank."""
    return {
        int(rank): read.why
        for path in window.path.glob("rank*.missed")
        if (rank := path.stem.removeprefix("rank")).isdecimal() and (read := _read(path, Missed)) is not None
    }


def phases_of(window: WindowFolder, rank: int) -> RankPhases:
    """Return the times of a rank's phases, empty if its file cannot be read."""
    return _read(window.path / f"rank{rank}.phases.json", RankPhases) or RankPhases()


def _read(path: Path, type_: type[T]) -> T | None:
    try:
        with open_to_read(path) as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=type_)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
