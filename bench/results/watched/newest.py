"""The newest steps of a running watched job, as a `Job` in which `find_late` can name a late rank."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from bench.results.watched.job import Job
from bench.results.watched.rank_files import OF_A_STEP, Attempt, Begin, Steps

_DECODER = msgspec.json.Decoder(Steps)


class NewestSteps:
    """The last steps that one rank wrote. most: how many to hold. begin: its begin line; None before it was read."""

    def __init__(self, most: int) -> None:
        self.begin: Begin | None = None
        self.of_number: deque[tuple[int, int, dict[str, float], float]] = deque(maxlen=most)
        self._left_out: list[range] = []

    def begins(self, begin: Begin) -> None:
        """Begin again: a process of this rank reports from its first step on."""
        self.begin, self._left_out = begin, []
        self.of_number.clear()

    def leave_out(self, numbers: range) -> None:
        """Leave out the steps of these numbers, which a profiler made slower."""
        self._left_out.append(numbers)
        others = [step for step in self.of_number if step[0] not in numbers]
        self.of_number.clear()
        self.of_number.extend(others)

    def take(self, text: bytes) -> Steps | None:
        """Add the steps of a line, and return them; None if the line is malformed."""
        try:
            line = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        columns = {name: getattr(line, "tokens" if name == "tokens" else f"{name}_ns") for name in OF_A_STEP}
        known = [each for each in (*columns.values(), line.backward_calls) if each is not None]
        if any(len(each) != len(line.end_ns) for each in known):
            return None
        for place, end_ns in enumerate(line.end_ns):
            if any(line.first + place in numbers for numbers in self._left_out):
                continue
            times = {
                name: _value(column, place) * (1.0 if name == "tokens" else 1e-9) for name, column in columns.items()
            }
            self.of_number.append((line.first + place, end_ns, times, _value(line.backward_calls, place)))
        return line


def _value(column: Sequence[float | None] | None, place: int) -> float:
    value = None if column is None else column[place]
    return math.nan if value is None else float(value)


def newest_job(ranks: Sequence[NewestSteps]) -> Job:
    """Return the newest steps that all ranks have, as a job; ranks without a begin line are left out."""
    known = [(rank, rank.begin) for rank in ranks if rank.begin is not None]
    by_number = [{step[0]: step[1:] for step in rank.of_number} for rank, _ in known]
    common = sorted(set.intersection(*map(set, by_number))) if by_number else []
    cells = [[steps[number] for number in common] for steps in by_number]
    shape = (len(known), len(common))
    rank_s = {
        name: np.array([[times[name] for _, times, _ in row] for row in cells]).reshape(shape) for name in OF_A_STEP
    }
    is_device_clock = bool(common) and not np.isnan(rank_s["device"]).any()
    step_s = rank_s["device"] if is_device_clock else rank_s["step"]
    timed = ~np.isnan(step_s).any(axis=0)
    return Job(
        files=(),
        ranks=tuple(begin.rank for _, begin in known),
        attempts=tuple(Attempt(begin=begin) for _, begin in known),
        restarts=0,
        number=0,
        step_s=step_s[:, timed].max(axis=0) if known else np.zeros(0),
        rank_s={name: column[:, timed] for name, column in rank_s.items()},
        end_ns=np.array([[end_ns for end_ns, _, _ in row] for row in cells], dtype=np.int64).reshape(shape)[:, timed],
        calls=np.array([[calls for _, _, calls in row] for row in cells]).reshape(shape)[:, timed],
        common=len(common),
        warm_up=0,
        each=1,
        is_device_clock=is_device_clock,
    )
