"""Where the windows of a run's ranks stay: those of each trial in a folder, and the newest beside the ranks' logs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from collectors.traces.spans import Timeline
from collectors.traces.timeline_file import save


def keep(timeline: Timeline, folder: Path, trial: int) -> None:
    """Write the rank's window of this trial, in place of an earlier one of the same. folder: the run's.

    Raises:
        OSError: the folder cannot be written.
    """
    path = window_path(folder, trial, timeline.rank)
    path.parent.mkdir(exist_ok=True)
    save(timeline, path)
    newest = folder / path.name
    newest.unlink(missing_ok=True)
    try:
        newest.hardlink_to(path)
    except OSError:  # Not every file system gives a file two names.
        shutil.copyfile(path, newest)


def window_path(folder: Path, trial: int, rank: int) -> Path:
    """Where a rank's window of a trial is. folder: the run's."""
    return folder / f"trial{trial}" / f"rank{rank}.timeline.npz"


def newest_windows(folder: Path) -> list[Path]:
    """The windows of the last trial that kept any, though not of all ranks: those of two trials never met.

    folder: the run's; one of before each trial had a folder of its own has them beside the ranks' logs.
    """
    trials = {
        int(found[1]): path for path in folder.glob("trial*") if (found := re.fullmatch(r"trial(\d+)", path.name))
    }
    for _, path in sorted(trials.items(), reverse=True):
        if windows := list(path.glob("rank*.timeline.npz")):
            return windows
    return list(folder.glob("rank*.timeline.npz"))
