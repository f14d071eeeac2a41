"""How many windows of the profiler each trial of a run had, by what its first rank logged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from collectors.log_reader import read
from collectors.sample_log import Reading


def windows_by_trial(folder: Path) -> Counter[int]:
    """By trial the windows of which rank 0 logged a step, between which it measured; empty without its log.

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
