"""Reads the files of a watched run's ranks: what each process reported, and its steps as columns.

The user's process writes them and may die at any byte, so every line is checked, and unusable lines are left out with
a line that says so. Computes no figures from the steps.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collectors.files import open_to_read
from collectors.watch.observatory_watch import RUN

VERSION = 1
LONGEST_LINE = 8 << 20
"""Most bytes of a line that is read; the hook's lines of some hundred steps have about ten thousand."""
MOST_PROBLEMS = 5
"""Most lines on the problems of one file; further problems are counted."""
MOST_RANKS = 1 << 20
MOST_NS = 2**60
"""Times from here on (36 years) are invalid."""
PHASES = ("data", "forward", "backward", "optimizer")
"""In the order of a step."""
OF_A_STEP = ("step", "device", *PHASES, "own", "tokens")
_FILE = re.compile(r"watch_rank(0|[1-9][0-9]{0,6})\.jsonl", re.ASCII)

Whole = int | None
Numbers = list[Whole] | None


class Begin(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="begin"):
    """First line of a rank's process; the lines up to the next one of this kind belong to it."""

    version: int
    rank: int
    world_size: int
    local_rank: int | None = None
    local_world_size: int | None = None
    host: str = ""
    pid: int | None = None
    unix_s: float = 0.0
    monotonic_ns: int = 0
    torch: str | None = None
    python: str | None = None
    backend: str | None = None
    device: str = "cpu"
    device_name: str | None = None
    device_uuid: str | None = None
    groups: list[list[int]] = []
    script: str | None = None


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="steps"):
    """A batch of consecutive steps; every list has an entry for each step, or is null.

    backward_calls: calls of `torch.autograd.backward` in the step; more than one means gradient accumulation.
    peak_bytes, reserved_bytes, peak_reserved_bytes: of torch's caching allocator. rss_bytes: of the process.
    """

    rule: str
    first: int
    end_ns: list[int]
    step_ns: list[Whole]
    device_ns: Numbers = None
    data_ns: Numbers = None
    forward_ns: Numbers = None
    backward_ns: Numbers = None
    optimizer_ns: Numbers = None
    backward_calls: Numbers = None
    tokens: list[float | None] | None = None
    own_ns: Numbers = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    rss_bytes: int | None = None


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="note"):
    """A plain line of text from the hook."""

    text: str


class Window(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="window"):
    """A traced window."""

    first: int
    last: int
    trace: str


class Still(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="still"):
    """The rank stands still: no step and no batch for `still_ns`. See `bench.results.watched.still.StillRank`."""

    unix_s: float
    still_ns: int
    limit_ns: int
    steps: int
    phase: str = "before backward"
    backward_calls: int = 0
    where: str | None = None


class Active(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="active"):
    """The rank is active but writes no steps, as in an evaluation. monotonic_ns: time of its last activity."""

    monotonic_ns: int
    steps: int = 0


class Quantiles(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="quantiles"):
    """Steps of a minute or more, replaced by quantiles; see `bench.results.watched.compact`."""

    rule: str
    first: int
    steps: int
    begin_ns: int
    end_ns: int
    quantiles: tuple[float, ...]
    figures: dict[str, Any]
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    rss_bytes: int | None = None


class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The rank's process ended normally."""

    unix_s: float = 0.0
    steps: int = 0


Line = Begin | Steps | Quantiles | Note | Window | Still | Active | End
_LINE: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What one process of a rank reported, without its steps.

    steps: number of usable steps. first, last: their first and last number. rules: what ended its steps.
    peak_bytes, peak_reserved_bytes, rss_bytes: the largest of any batch. notes: the hook's.
    windows: first and last number of the traced steps of each window.
    still: the last time that it stood still. has_gone_on: whether a step came after that, or the process ended.
    has_ended: whether it wrote an end line; if not, its process died or still runs.
    """

    begin: Begin
    steps: int = 0
    first: int | None = None
    last: int | None = None
    rules: list[str] = field(default_factory=list)
    peak_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    rss_bytes: int | None = None
    notes: list[str] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)
    still: Still | None = None
    has_gone_on: bool = False
    has_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """A rank's file. attempts: one for each process, oldest first. problems: what was left out of it, and why."""

    rank: int
    path: Path
    attempts: tuple[Attempt, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Chosen steps of one rank, in order; each column has an entry for each step.

    numbers: of the steps. end_ns: on the rank's monotonic clock. seconds: a column for each name of `OF_A_STEP`, NaN if
    unknown; tokens are counts. calls: calls of backward; NaN if unknown.
    """

    numbers: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    seconds: dict[str, NDArray[np.float64]]
    calls: NDArray[np.float64]


def rank_paths(folder: Path) -> dict[int, Path]:
    """Return the ranks' files in the folder, ordered by rank."""
    paths = {int(match[1]): path for path in folder.iterdir() if (match := _FILE.fullmatch(path.name))}
    return dict(sorted(paths.items()))


def scan(rank: int, path: Path) -> RankFile:
    """Return what a rank's file reports, without its steps; any content gives a result."""
    attempts: list[Attempt] = []
    problems = _Problems(path.name)
    for line in _lines(path, problems):
        if isinstance(line, Begin):
            if line.version != VERSION:
                problems.add(f"a process wrote version {line.version}, and this program reads {VERSION}")
                return RankFile(rank=rank, path=path, attempts=(), problems=problems.lines())
            if line.rank != rank or not line.rank < line.world_size <= MOST_RANKS:
                problems.add(f"a process says that it is rank {line.rank} of {line.world_size}")
                return RankFile(rank=rank, path=path, attempts=(), problems=problems.lines())
            attempts.append(Attempt(begin=line))
        elif not attempts:
            problems.add("it does not begin with a process's begin line")
        else:
            _take(attempts[-1], line, problems)
    if not attempts:
        problems.add("no process reported")
    return RankFile(rank=rank, path=path, attempts=tuple(attempts), problems=problems.lines())


def _take(
    attempt: Attempt, line: Steps | Quantiles | Note | Window | Still | Active | End, problems: _Problems
) -> None:
    if isinstance(line, Steps | Quantiles | End):
        attempt.has_gone_on = True
    if isinstance(line, Steps):
        if (why := _unusable(line, attempt.last)) is not None:
            problems.add(f"steps from {line.first} on are left out: {why}")
            return
        attempt.steps += len(line.end_ns)
        attempt.first = line.first if attempt.first is None else attempt.first
        attempt.last = line.first + len(line.end_ns) - 1
        if line.rule not in attempt.rules:
            attempt.rules.append(line.rule)
        attempt.peak_bytes = _most(attempt.peak_bytes, line.peak_bytes)
        attempt.peak_reserved_bytes = _most(attempt.peak_reserved_bytes, line.peak_reserved_bytes)
        attempt.rss_bytes = _most(attempt.rss_bytes, line.rss_bytes)
    elif isinstance(line, Quantiles):
        problems.add("its steps are kept as quantiles only, and the run's own summary.json has its figures")
    elif isinstance(line, Note):
        attempt.notes.append(line.text)
    elif isinstance(line, Window):
        attempt.windows.append((line.first, line.last))
    elif isinstance(line, Still):
        attempt.still, attempt.has_gone_on = line, False
    elif isinstance(line, End):
        attempt.has_ended = True


def read_columns(file: RankFile, attempt: int, *, first: int, each: int) -> Columns:
    """Return the steps of one attempt from number `first` on: one in `each` runs of `RUN` steps.

    Memory grows with the chosen steps, not with those in the file.
    """
    numbers, ends = array("q"), array("q")  # 8 bytes each; a list of a million floats would take 32 MB.
    values = {name: array("d") for name in (*OF_A_STEP, "calls")}
    number_of_attempt, last = -1, None
    for line in _lines(file.path, _Problems("")):
        if isinstance(line, Begin):
            number_of_attempt, last = number_of_attempt + 1, None
        elif isinstance(line, Steps) and number_of_attempt == attempt and _unusable(line, last) is None:
            last = line.first + len(line.end_ns) - 1
            chosen = [
                number - line.first for number in range(max(first, line.first), last + 1) if number // RUN % each == 0
            ]
            numbers.extend(line.first + place for place in chosen)
            ends.extend(line.end_ns[place] for place in chosen)
            for name in OF_A_STEP:
                scale = 1.0 if name == "tokens" else 1e-9
                values[name].extend(_floats(_list_of(line, name), chosen, scale))
            values["calls"].extend(_floats(line.backward_calls, chosen, 1.0))
    return Columns(
        numbers=np.array(numbers, dtype=np.int64),
        end_ns=np.array(ends, dtype=np.int64),
        seconds={name: np.array(values[name]) for name in OF_A_STEP},
        calls=np.array(values["calls"]),
    )


def _floats(column: Sequence[float | None] | None, chosen: Sequence[int], scale: float) -> Iterator[float]:
    for place in chosen:
        value = None if column is None else column[place]
        yield float("nan") if value is None else scale * value


def _list_of(line: Steps, name: str) -> Sequence[float | None] | None:
    column: Sequence[float | None] | None = line.tokens if name == "tokens" else getattr(line, f"{name}_ns")
    return column


def _unusable(line: Steps, last: int | None) -> str | None:
    """Return why a batch of steps cannot be used; None if it can. last: number of the last step before it."""
    length = len(line.end_ns)
    columns = {name: _list_of(line, name) for name in OF_A_STEP} | {"backward_calls": line.backward_calls}
    if not length:
        return "the batch is empty"
    if line.first < 0 or (last is not None and line.first <= last):
        return f"its first number is {line.first}, and the last before it {last}"
    for name, column in columns.items():
        if column is not None and len(column) != length:
            return f"{len(column)} values of {name} for {length} steps"
        if column is not None and any(value is not None and not 0 <= value < MOST_NS for value in column):
            return f"a value of {name} is negative or too large"
    if not all(0 <= end < MOST_NS for end in line.end_ns):
        return "an end lies outside the clock"
    if any(later <= earlier for earlier, later in zip(line.end_ns, line.end_ns[1:], strict=False)):
        return "the clock went backwards"
    if any(value == 0 for value in line.step_ns):
        return "a step took no time"
    return None


def _most(*values: int | None) -> int | None:
    return max((value for value in values if value is not None and value >= 0), default=None)


class _Problems:
    """Lines on the problems of a file, `MOST_PROBLEMS` at most."""

    def __init__(self, name: str) -> None:
        self._name, self._lines, self._number = name, dict[str, None](), 0

    def add(self, text: str) -> None:
        """Add a line, once."""
        self._number += 1
        if len(self._lines) < MOST_PROBLEMS:
            self._lines[f"{self._name}: {text}"] = None

    def lines(self) -> tuple[str, ...]:
        """Return the lines, and a line with the number of further problems."""
        more = self._number - len(self._lines)
        return (*self._lines, *([f"{self._name}: {more} more lines like these"] if more else []))


def _lines(path: Path, problems: _Problems) -> Iterator[Line]:
    """Yield the readable lines of a file; a last line without a newline is a write that was cut off."""
    try:
        file: IO[bytes] = open_to_read(path)
    except OSError as error:
        problems.add(f"it cannot be read: {error.strerror}")
        return
    with file:
        number = 0
        while data := file.readline(LONGEST_LINE):
            number += 1
            if not data.endswith(b"\n"):
                if len(data) < LONGEST_LINE:
                    problems.add(f"line {number} is cut off; its process probably died while writing")
                    return
                problems.add(f"line {number} is longer than {LONGEST_LINE >> 20} MiB")
                while (rest := file.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                    pass
                continue
            try:
                yield _LINE.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                problems.add(f"line {number} is not a line of a watched rank ({error})")


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the readable lines of a rank's file, without checking their values."""
    return _lines(path, _Problems(path.name))


def hosts_of(begins: Sequence[Begin]) -> tuple[str, ...]:
    """Return the hosts, each once, in the order of the ranks."""
    return tuple(dict.fromkeys(begin.host for begin in begins))


def device_words(begins: Sequence[Begin]) -> str | None:
    """Return the GPUs that the ranks use, in the words of `Machine.hardware`: "8 x NVIDIA H100"; None on a CPU.

    A GPU that several ranks share counts once; without a UUID, its host and device identify it.
    """
    names: dict[Any, str] = {
        begin.device_uuid or (begin.host, begin.device): begin.device_name or "unnamed GPU"
        for begin in begins
        if begin.device.startswith("cuda")
    }
    counts = {name: list(names.values()).count(name) for name in sorted(set(names.values()))}
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or None
