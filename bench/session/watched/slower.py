"""Detects with the gate's detector that the steps of a watched job have become slower than its own past.

The job's steps are cut into blocks. A block takes the place of a night, and its three stretches of the trials. A slow
step, a checkpoint every few steps or an evaluation between two steps therefore changes no median, and a change must
last for several blocks before it counts. docs/reference/watched.md has the rule, docs/measured/watched.md its errors.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.gate.detector.detector import judge
from bench.gate.detector.night import Night, trial_sample
from bench.gate.detector.settings import SETTINGS, DetectorSettings
from bench.gate.detector.state import SeriesState
from bench.results.watched.job import WARM_UP
from bench.results.watched.rank_files import MOST_NS, Begin, Steps

BLOCK_NS = 30_000_000_000
"""Least time of a block: long enough that a disturbance of a few seconds is no level of its own."""
LEAST_STEPS = 15
"""Fewest steps of a block: five in each stretch, so that two slow steps do not change its median."""
STRETCHES = 3
LEAST_RATIO = 0.05
"""Smallest slowdown that is worth the cost of a window; the same share as for a late rank."""
OF_BLOCKS: DetectorSettings = replace(
    SETTINGS,
    # A job has 2,880 blocks a day, and its speed seldom changes more than a few times.
    changes_per_night=0.001,
    smallest_change=math.log1p(LEAST_RATIO),
    # One more block costs half a minute, not a day, so the detector can wait until it is sure.
    page_probability=0.95,
    # A larger slowdown needs less, so that a past that is very noisy does not hide it. In a job whose steps resemble
    # the hundred before them, noise moves by a fifth and more for minutes.
    page_change=0.2,
)
"""The gate's settings, adapted to blocks instead of nights."""
SLOWER = "the step became "
"""Beginning of the reason of a window that a slowdown requested."""
_REMEMBERED = 32
"""Blocks whose first step is remembered; a change began in one of the last `window_nights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """The steps became slower. ratio: by how much, 0.23 for 23 %. since: first step of the block where it began.

    per_token: whether the time per token is compared, since the program declares tokens.
    """

    ratio: float
    since: int
    per_token: bool = False

    def words(self) -> str:
        """Return the slowdown in words.

        Example: the step became 23 % slower than its past (since step 1,200)
        """
        per_token = " per token" if self.per_token else ""
        return f"{SLOWER}{100 * self.ratio:.0f} % slower{per_token} than its past (since step {self.since:,})"


class SlowerSteps:
    """Follows the steps of a job: `begin` and `take` receive what its ranks report, `judge` evaluates it.

    block_ns: least time of a block. slowdown: the latest one, until it is traced or the steps become faster again.
    """

    def __init__(self, block_ns: int = BLOCK_NS) -> None:
        self._block_ns = block_ns
        self.slowdown: Slowdown | None = None
        self.world_size = 0
        self._forget()

    def _forget(self) -> None:
        """Discard the past, since the job restarted or its steps are now defined differently."""
        self._steps: dict[int, dict[int, tuple[int, int | None, float]]] = {}
        self._last: dict[int, int] = {}
        self._rules: dict[int, str] = {}
        self._first: int | None = None
        self._block: list[tuple[int, int, float]] = []
        self._per_token: bool | None = None
        self._state: SeriesState | None = None
        self._blocks = 0
        self._since: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self.slowdown = None

    def begin(self, begin: Begin) -> None:
        """Note that a process of a rank begins to report; if the rank reported before, a new past begins."""
        if begin.rank in self._last:
            self._forget()
        self.world_size = begin.world_size
        self._steps[begin.rank] = {}

    def take(self, rank: int, line: Steps) -> None:
        """Take steps of one rank, timed by its device's clock if it has one."""
        if self._rules.get(rank, line.rule) != line.rule:  # Another event ends a step now.
            ranks = list(self._steps)
            self._forget()
            self._steps = {rank: {} for rank in ranks}
        self._rules[rank] = line.rule
        known = self._steps.setdefault(rank, {})
        times_ns = line.step_ns if line.device_ns is None else line.device_ns
        for place, (end_ns, time_ns) in enumerate(zip(line.end_ns, times_ns, strict=True)):
            is_time = time_ns is not None and 0 < time_ns < MOST_NS
            tokens = None if line.tokens is None else line.tokens[place]
            known[line.first + place] = end_ns, time_ns if is_time else None, tokens or 0.0
        self._last[rank] = max(line.first + len(line.end_ns) - 1, self._last.get(rank, 0))

    def judge(self, traced: Iterable[tuple[int, int]] = ()) -> None:
        """Judge the blocks that are complete, and update `slowdown`.

        traced: first and last step of each window that a profiler made slower; left out with a step on either side.
        """
        spans = list(traced)
        for number, end_ns, time_ns in self._common():
            if self._first is None:
                self._first = number
            if number < self._first + WARM_UP or any(first - 1 <= number <= last + 1 for first, last in spans):
                continue
            self._block.append((number, end_ns, time_ns))
            if len(self._block) >= LEAST_STEPS and end_ns - self._block[0][1] >= self._block_ns:
                block, self._block = self._block, []
                self._judge(block)

    def _common(self) -> Iterator[tuple[int, int, float]]:
        """Yield number, end and time (the slowest rank's, ns) of each step that all ranks have reported.

        If all ranks declare tokens in the first step, the time is per token.
        """
        if not self._steps or len(self._last) < len(self._steps):
            return
        until = min(self._last.values())
        ranks = [self._steps[rank] for rank in sorted(self._steps)]
        numbers = sorted(number for number in ranks[0] if number <= until)
        cells = [[rank.get(number) for rank in ranks] for number in numbers]
        for rank in ranks:
            for number in [number for number in rank if number <= until]:
                del rank[number]
        for number, cell in zip(numbers, cells, strict=True):
            whole = [each for each in cell if each is not None]
            times_ns = [time_ns for _, time_ns, _ in whole if time_ns is not None]
            if len(times_ns) < len(ranks):
                continue
            work = sum(tokens for _, _, tokens in whole) if all(tokens > 0 for _, _, tokens in whole) else 0.0
            if self._per_token is None:
                self._per_token = work > 0
            if not self._per_token:
                yield number, whole[0][0], float(max(times_ns))
            elif work > 0:
                yield number, whole[0][0], max(times_ns) / work

    def _judge(self, block: Sequence[tuple[int, int, float]]) -> None:
        times_ns = [time_ns for _, _, time_ns in block]
        trials = tuple(trial_sample(list(map(float, part))) for part in np.array_split(times_ns, STRETCHES))
        self._since.append((self._blocks, block[0][0]))
        judged = judge(self._state, Night(number=self._blocks, trials=trials), OF_BLOCKS)
        self._state = judged.state
        self._blocks += 1
        if judged.verdict not in ("page", "recovered") or judged.alert is None:
            return
        self.slowdown = None
        if judged.verdict == "page" and judged.alert.direction > 0:
            since = dict(self._since)
            self.slowdown = Slowdown(
                ratio=math.expm1(judged.alert.log_change),
                since=since.get(judged.alert.onset, block[0][0]),
                per_token=bool(self._per_token),
            )
