"""Shows the progress of a watched job from its ranks' files: a live line, and a table at the end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

import msgspec

from bench.errors import plural, say
from bench.report.format import digits, readable
from bench.report.table import Block, Table
from bench.results.watched.late import find_late
from bench.results.watched.newest import NewestSteps, newest_job
from bench.results.watched.rank_files import Begin, Still
from bench.results.watched.still import StillRank, duration_words, phase_words, still_words
from bench.session.watched.slower import SlowerSteps
from collectors.files import open_to_read

RECENT = 200
"""Newest steps of a rank that the live line describes."""
MOST_RANKS = 64
"""Most ranks that the live line reads; the table shows at most `MOST_ROWS`."""
MOST_ROWS = 16
MOST_BYTES = 4 << 20
"""Most bytes of a rank's file that are read at once."""
QUIET_S = 60.0
"""Time between two lines that are not redrawn in place."""
PHASES = ("data", "forward", "backward", "optimizer", "own")
NO_PROCESS = (
    "no process reported a step: the command starts no Python with torch, or its Python reads no PYTHONPATH (-I, -E,"
    " -S), or it ended or became another user before its first step, or its whole step is compiled; mark such steps"
)


class _Line(msgspec.Struct, frozen=True):
    """One line of a rank's file; see `bench.results.watched.rank_files`."""

    kind: str
    rule: str | None = None
    last: int = 0
    step_ns: list[int | None] = []
    data_ns: list[int | None] | None = None
    forward_ns: list[int | None] | None = None
    backward_ns: list[int | None] | None = None
    optimizer_ns: list[int | None] | None = None
    tokens: list[float | None] | None = None
    own_ns: list[int] | None = None
    first: int = 0
    text: str = ""


class _Timed(NamedTuple):
    """A step. phases_ns: of those in `PHASES` that the rank has."""

    number: int
    step_ns: int
    phases_ns: dict[str, int]
    tokens: float


class RankProgress:
    """What one rank has written so far.

    script: path of its program on its node, once it has begun. steps: number of its steps so far. timed: steps that it
    wrote with a time, without the traced ones and their neighbours. still: where it stands, if it reported no step
    since then. newest: its newest steps, for naming a late rank. slower: also receives its steps.
    """

    def __init__(self, path: Path, slower: SlowerSteps | None = None) -> None:
        self.rank = int(path.stem.removeprefix("watch_rank"))
        self.script: str | None = None
        self.steps = 0
        self.rules: list[str] = []
        self.notes: list[str] = []
        self.timed: list[_Timed] = []
        self._begun = 0  # Place of the first timed step since the rank last began.
        self._traced: list[range] = []
        self.still: StillRank | None = None
        self.newest = NewestSteps(RECENT)
        self._path, self._offset, self._slower = path, 0, slower

    @property
    def step_ns(self) -> list[int]:
        """Times of the timed steps."""
        return [step.step_ns for step in self.timed]

    @property
    def phases_ns(self) -> dict[str, int]:
        """Sums of the phases over the timed steps; without those that no step has."""
        sums: Counter[str] = Counter()
        for step in self.timed:
            sums.update(step.phases_ns)
        return dict(sums)

    @property
    def recent(self) -> list[_Timed]:
        """The newest timed steps."""
        return self.timed[-RECENT:]

    def read(self) -> None:
        """Read what was appended since the last call; lines that are not ours are skipped."""
        try:
            with open_to_read(self._path) as file:
                file.seek(self._offset)
                data = file.read(MOST_BYTES)
        except OSError:  # Removed meanwhile.
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == MOST_BYTES:
            whole = len(data)
        self._offset += whole
        for text in data[:whole].splitlines():
            try:
                self._take(_DECODER.decode(text), text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue

    def _take(self, line: _Line, text: bytes) -> None:
        if line.kind == "note":
            self.notes.append(line.text)
        elif line.kind == "still":
            self.still = StillRank.of(self.rank, msgspec.json.decode(text, type=Still))
        elif line.kind == "begin":
            begin = msgspec.json.decode(text, type=Begin)
            self.script = self.script or begin.script
            self.newest.begins(begin)
            self._begun, self._traced = len(self.timed), []
            if self._slower is not None and begin.rank == self.rank:
                self._slower.begin(begin)
        elif line.kind == "window":
            # Leave out its steps, some of which are written after it.
            traced = range(line.first - 1, line.last + 2)
            self._traced.append(traced)
            self.newest.leave_out(traced)
            since = [step for step in self.timed[self._begun :] if step.number not in traced]
            self.timed[self._begun :] = since
        elif line.kind == "end":
            self.still = None
        if line.kind != "steps":
            return
        self.still = None
        steps = self.newest.take(text)
        if steps is not None and self._slower is not None:
            self._slower.take(self.rank, steps)
        if line.rule is not None and line.rule not in self.rules:
            self.rules.append(line.rule)
        self.steps = line.first + len(line.step_ns)
        columns: dict[str, Sequence[int | None] | None] = {name: getattr(line, f"{name}_ns") for name in PHASES}
        for place, step_ns in enumerate(line.step_ns):
            number = line.first + place
            if step_ns is None or any(number in traced for traced in self._traced):
                continue
            phases = {name: column[place] for name, column in columns.items() if column and place < len(column)}
            known = {name: phase_ns for name, phase_ns in phases.items() if phase_ns is not None}
            tokens = line.tokens[place] if line.tokens is not None and place < len(line.tokens) else None
            self.timed.append(_Timed(number, step_ns, known, tokens or 0))


_DECODER = msgspec.json.Decoder(_Line)


class JobProgress:
    """Follows the ranks of a watched run. folder: of the run. clock_s: monotonic.

    slower: also receives the ranks' steps, to judge whether they become slower.
    """

    def __init__(
        self, folder: Path, clock_s: Callable[[], float] = time.monotonic, slower: SlowerSteps | None = None
    ) -> None:
        self._folder, self._clock_s, self._slower = folder, clock_s, slower
        self._steps, self._stepped_s = 0, clock_s()
        self.ranks: dict[str, RankProgress] = {}

    def read(self, *, most_ranks: int | None = MOST_RANKS) -> None:
        """Read what the ranks have written since the last call."""
        for path in sorted(self._folder.glob("watch_rank*.jsonl")):
            if path.name not in self.ranks and path.stem.removeprefix("watch_rank").isdecimal():
                if most_ranks is not None and len(self.ranks) >= most_ranks:
                    break
                self.ranks[path.name] = RankProgress(path, self._slower)
        for rank in self.ranks.values():
            rank.read()
        if (steps := sum(rank.steps for rank in self.ranks.values())) != self._steps:
            self._steps, self._stepped_s = steps, self._clock_s()

    @property
    def script(self) -> str | None:
        """Path of the program of the first rank that has begun, on its node."""
        return next((rank.script for rank in self.ranks.values() if rank.script is not None), None)

    def line(self) -> str | None:
        """Return the newest steps in one line; None before a step has a time.

        Example: step 1,234   p50 52.1 ms   p99 60.4 ms   12,300 tokens/s   waiting for data 3 % (rank 1)
        With a late rank it ends with: rank 1 late in data, 12 % of the step
        If steps have stopped: step 1,234   no step for 4 min: rank 1 in backward at train.py:31 in main
        """
        ranks = [rank for rank in self.ranks.values() if rank.recent]
        if still := {rank.rank: rank.still for rank in self.ranks.values() if rank.still is not None}:
            begins = [rank.newest.begin for rank in self.ranks.values() if rank.newest.begin is not None]
            world_size = max((begin.world_size for begin in begins), default=len(self.ranks))
            places = still_words(still, world_size=world_size)
            quiet = duration_words(self._clock_s() - self._stepped_s)
            counts = [each.steps for each in still.values()] + [rank.steps for rank in self.ranks.values()]
            return f"step {max(counts):,}   no step for {quiet}: {places}"
        if not ranks:
            return None
        times_ns = [step.step_ns for rank in ranks for step in rank.recent]
        words = [f"step {max(rank.steps for rank in ranks):,}", f"p50 {_seconds(_quantile(times_ns, 50))}"]
        words.append(f"p99 {_seconds(_quantile(times_ns, 99))}")
        tokens = sum(
            1e9 * sum(step.tokens for step in rank.recent) / max(1, sum(step.step_ns for step in rank.recent))
            for rank in ranks
        )
        if tokens:
            words.append(f"{digits(tokens)} tokens/s")
        # The share of each rank's steps that it spent waiting for data.
        waits = {
            rank.rank: sum(step.phases_ns.get("data", 0) for step in rank.recent)
            / max(1, sum(step.step_ns for step in rank.recent))
            for rank in ranks
        }
        most = max(waits, key=lambda rank: waits[rank])
        rank_words = f" (rank {most})" if len(ranks) > 1 and waits[most] >= 0.01 else ""
        if waits[most]:  # Else no DataLoader of torch gives the batches, and the wait for them is unknown.
            words.append(f"waiting for data {waits[most]:.0%}{rank_words}".replace("%", " %"))
        late = find_late(newest_job([rank.newest for rank in ranks]))
        if late.rank is not None and late.phase is not None and late.step_ratio is not None:
            words.append(f"rank {late.rank} late {phase_words(late.phase)}, {100 * late.step_ratio:.0f} % of the step")
        return "   ".join(words)

    def page(self) -> Iterator[Block]:
        """Yield the table of the job's ranks, and the ranks' notes."""
        ranks = sorted(self.ranks.values(), key=lambda rank: rank.rank)
        timed = [rank for rank in ranks if rank.timed]
        if timed:
            columns = ("rank", "steps", "p50", "p99", "data", "forward", "backward", "optimizer", "watch itself")
            yield Table(columns, [_row(rank) for rank in timed[:MOST_ROWS]], words=(), keys=1)
            if len(timed) > MOST_ROWS:
                yield f"{plural(len(timed) - MOST_ROWS, 'more rank')} in the run's folder"
            rules = dict.fromkeys(RULE_WORDS.get(rule, rule) for rank in timed for rule in rank.rules)
            yield f"steps are {', '.join(rules)}; phases are shares of the step, by the host's clock"
        elif not ranks:
            yield NO_PROCESS
        elif (steps := max(rank.steps for rank in ranks)) or not any(rank.notes for rank in ranks):
            yield f"{plural(steps, 'step')} reported; a step time needs two"
        if any(rank.still is not None for rank in ranks) and (line := self.line()) is not None:
            yield line
        yield from dict.fromkeys(f"rank {rank.rank}: {note}" for rank in ranks[:MOST_RANKS] for note in rank.notes)


RULE_WORDS = {
    "mark": "those that the script marks",
    "deepspeed": "those of DeepSpeed's engine",
    "optimizer": "those of the optimizer",
}
"""Words for the rule that ends steps."""


def _row(rank: RankProgress) -> list[str]:
    step_ns, phases_ns = rank.step_ns, rank.phases_ns
    total_ns = sum(step_ns)
    if not phases_ns.get("data"):  # No DataLoader of torch gives the batches: the wait for them is unknown, not 0.
        phases_ns.pop("data", None)
    shares = [phases_ns.get(name) for name in PHASES]
    return [
        *(str(rank.rank), f"{rank.steps:,}"),
        *(_seconds(_quantile(step_ns, 50)), _seconds(_quantile(step_ns, 99))),
        *("-" if share is None else _percent(share / max(1, total_ns)) for share in shares),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share < 0.01 else f"{100 * share:.1f} %"


def _seconds(value_ns: float) -> str:
    return readable(value_ns, "ns")


def _quantile(values: Sequence[int], percent: int) -> float:
    return float(values[0]) if len(values) == 1 else quantiles(values, n=100, method="inclusive")[percent - 1]


class LiveLine:
    """Prints a line a minute on standard error, or redraws one line in place on a terminal.

    The command writes to the same terminal, and a redrawn line could overwrite its progress bar, which we cannot
    detect, so a line a minute is the default.
    is_drawn: redraw in place; only on a terminal. is_terminal: whether standard error is a terminal; None checks it.
    clock_s: monotonic.
    """

    def __init__(
        self,
        *,
        is_drawn: bool = False,
        is_terminal: bool | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        is_capable = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._is_terminal = is_capable if is_terminal is None else is_terminal
        self._is_drawn = is_drawn and self._is_terminal
        self._clock_s, self._shown_s = clock_s, clock_s()
        self._is_shown = False

    def is_due(self) -> bool:
        """Whether a line would be shown now."""
        return self._is_drawn or self._clock_s() - self._shown_s >= QUIET_S

    def show(self, line: str | None) -> None:
        """Show the line if it is due."""
        if line is None or not self.is_due():
            return
        self._shown_s = self._clock_s()
        if self._is_drawn:  # The cursor returns to the left, where the command's next output starts.
            width = shutil.get_terminal_size().columns - 1
            _write(f"\r{line[:width]}\x1b[K\r")
            self._is_shown = True
            return
        if self._is_terminal:  # The command's progress bar may be on this line.
            _write("\n")
        say(line)

    def close(self) -> None:
        """Remove a redrawn line."""
        if self._is_shown:
            _write("\r\x1b[K")


def _write(text: str) -> None:
    try:
        os.write(2, text.encode())
    except OSError:  # The terminal is gone.
        return
