"""In which numbered step of its rank each collective was asked for."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from collectors.traces.spans import ABSENT, Timeline
from collectors.traces.steps.launches import launch_of

_NUMBER = re.compile(r"#(\d+)$")


def step_numbers(timeline: Timeline, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of these rows the number in the name of the step; `ABSENT` outside of steps, and where steps have no number.

    A device runs behind its host: what it runs belongs to the step in which the host launched it, if that is told.
    """
    marked = np.flatnonzero(timeline.of_kind("step"))
    numbers = numbers_of_marks(timeline)
    absent = np.full(rows.size, ABSENT, dtype=np.int64)
    if not (numbers != ABSENT).any():
        return absent
    launch = launch_of(timeline)[rows]
    asked_ns = timeline.start_ns[np.where(launch == ABSENT, rows, launch)]
    place = np.searchsorted(timeline.start_ns[marked], asked_ns, side="right") - 1
    is_inside = (place >= 0) & (asked_ns <= timeline.end_ns[marked][place])
    found: NDArray[np.int64] = np.where(is_inside, numbers[place], absent)
    return found


def numbers_of_marks(timeline: Timeline) -> NDArray[np.int64]:
    """Of each marked step, in order, the number in its name; `ABSENT` where it has none."""
    names = timeline.name[timeline.of_kind("step")]
    return np.array([_number(timeline.names[name]) for name in names], dtype=np.int64)


def _number(name: str) -> int:
    found = _NUMBER.search(name)
    return int(found[1]) if found else ABSENT
