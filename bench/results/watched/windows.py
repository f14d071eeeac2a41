"""Windows of a watched run as its folder keeps them: what was asked for, and what the joined traces said.

`windows/<number>/` holds `window.json`, which rank 0 writes when the ranks have agreed or cannot, each rank's trace, or
why it has none, until they are joined, and then `result.json`. `bench.analysis.traces.watched_window` joins them.
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
"""Of a file that is read."""
MOST_WINDOWS = 20
"""Windows that a run's summary has; the newest of more."""


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of window.json. first, last: numbers of the steps. dropped: why there is none."""

    id: int
    steps: int
    why: str = ""
    first: int | None = None
    last: int | None = None
    world_size: int | None = None
    unix_s: float | None = None
    dropped: str | None = None


class Missed(msgspec.Struct, frozen=True, kw_only=True):
    """The content of rank<k>.missed. why: the rank traced nothing."""

    why: str


class RankPhases(msgspec.Struct, frozen=True, kw_only=True):
    """The content of rank<k>.phases.json: begins and ends in Unix nanoseconds of the rank's host.

    steps: of the traced ones. phases: by name. cost_ns: time that the profiler took the rank outside of these steps.
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
    """Return the windows of a run's folder, oldest first; files of any content have an answer."""
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
    """Return what the joined windows of a run said, oldest first."""
    return tuple(each.result for each in window_folders(run) if each.result is not None)


def missed(window: WindowFolder) -> dict[int, str]:
    """Return why ranks have no trace of a window, by rank."""
    return {
        int(rank): read.why
        for path in window.path.glob("rank*.missed")
        if (rank := path.stem.removeprefix("rank")).isdecimal() and (read := _read(path, Missed)) is not None
    }


def phases_of(window: WindowFolder, rank: int) -> RankPhases:
    """Return the times of a rank's phases; none where its file cannot be read."""
    return _read(window.path / f"rank{rank}.phases.json", RankPhases) or RankPhases()


def _read(path: Path, type_: type[T]) -> T | None:
    try:
        with open_to_read(path) as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=type_)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
