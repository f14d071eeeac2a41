"""Sample logs: measurements as JSON lines of a file, with functions to append, read and follow them.

The file is the interface between measuring and everything after it. Each line is a record and is written by a single
system call, so a process that dies loses at most its last line.
A node's log has all samples only at every `WHOLE_EACH`th beat; the other beats hold changes.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from collectors.files import open_to_append, open_to_read, schema_version_of
from collectors.metrics.metric import Sample
from collectors.metrics.rank import ALLOCATED_BYTES, STEP_SECONDS
from workloads.cost_models.schedules import ActionKind, MessageEnd

SCHEMA_VERSION = 4
"""Version 2: a node's log holds changes between whole lines. Version 3: the marks `probe` and `nccl_log` were `probed`
and `told`. Version 4: the marks `checkpoint` and `saving`."""
Mark = Literal["warm_up", "measured", "memory", "traced", "probe", "nccl_log", "checkpoint", "saving"]


class Opened(msgspec.Struct, frozen=True, tag="opened", kw_only=True):
    """A rank began a trial. The new processes of each trial append to the same file.

    gpu_uuid: of the GPU or MIG instance that the rank computes on, as CUDA reports it: without NVML's "GPU-" or
    "MIG-". None on a CPU, and if unknown.
    cpus: the CPUs that all threads of the rank are bound to, for example "0-31,64-95"; None if it is not bound.
    """

    run: str
    trial: int
    rank: int
    time_ns: int
    pid: int
    host: str
    gpu_uuid: str | None = None
    cpus: str | None = None
    schema_version: int = SCHEMA_VERSION


class Reading(msgspec.Struct, frozen=True, tag="reading", kw_only=True, omit_defaults=True):
    """Samples taken together.

    mark: only `measured` readings count for speed. `probe` belongs to a probe, and step then counts its measurements;
    so does `nccl_log`, taken while NCCL logged its choices, which slows the calls. `checkpoint` belongs to a save, and
    `saving` to a step during which a checkpoint was written in the background.
    step: counts from 0 with the first warm-up.
    begun_ns: time from which a probe's device did only the measured work; None if nothing needs it.
    """

    trial: int
    time_ns: int
    mark: Mark
    step: int
    begun_ns: int | None = None
    samples: list[Sample]


class TimedAction(msgspec.Struct, frozen=True, array_like=True):
    """A pipeline stage's action for one microbatch, with its times in nanoseconds since the step began."""

    kind: ActionKind
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int


class TimedMessage(msgspec.Struct, frozen=True, array_like=True):
    """When a stage sent an action's output or requested its input, in nanoseconds since the step began."""

    end: MessageEnd
    kind: ActionKind
    stage: int
    microbatch: int
    time_ns: int


class TimedActions(msgspec.Struct, frozen=True, tag="performed", kw_only=True):
    """The actions of a rank's pipeline stages in one instrumented step, in order; the step does not count for speed.

    begun_ns: when the step began, by the host's monotonic clock.
    clock: identifies that clock: equal in all ranks that read the same clock; None if unknown.
    messages: in order; None if their host times are meaningless, as on a GPU.
    core_waits_ns: for each action, the time that the rank's thread had waited for a core since the step began, at the
        action's start and at its end; None if the system does not report it, or a device computes.
    """

    trial: int
    time_ns: int
    step: int
    begun_ns: int
    clock: str | None
    actions: list[TimedAction]
    messages: list[TimedMessage] | None = None
    core_waits_ns: list[tuple[int, int]] | None = None


class Note(msgspec.Struct, frozen=True, tag="note", kw_only=True):
    """What is absent or was skipped in this trial, and why."""

    trial: int
    time_ns: int
    text: str


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """A rank's own report of how its trial ended; a rank without one was killed or exited by itself.

    step: the step that the rank was in. error_type, error: of the exception; None on success.
    """

    trial: int
    time_ns: int
    step: int
    error_type: str | None = None
    error: str | None = None


class NodeOpened(msgspec.Struct, frozen=True, tag="node_opened", kw_only=True):
    """The agent of a node began to poll for a run."""

    run: str
    node: int
    time_ns: int
    host: str
    schema_version: int = SCHEMA_VERSION


class Polled(msgspec.Struct, frozen=True, tag="polled", kw_only=True):
    """All samples of a node's collectors at one beat."""

    time_ns: int
    samples: list[Sample]


class Changed(msgspec.Struct, frozen=True, tag="changed", kw_only=True):
    """The values that changed since the previous beat, which had the same series.

    since_ns: the time of the `Polled` that lists the series. values: (index in its samples, new value).
    """

    time_ns: int
    since_ns: int
    values: list[tuple[int, float]]


Record = Opened | Reading | TimedActions | Note | Ended | NodeOpened | Polled | Changed


class LogUnwritable(OSError):
    """A log cannot be opened or written: the disk is full, or the folder is gone."""


class SampleLog:
    """A log, open for appending.

    Raises:
        LogUnwritable: from each call that writes.
    """

    def __init__(self, path: Path) -> None:
        self._encoder = msgspec.json.Encoder()
        with _as_unwritable(path):
            self._fd = open_to_append(path)
            # End a partial line that a dead writer left, so that the next record does not continue it.
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                os.write(self._fd, b"\n")
        self._path = path

    def write(self, record: Record) -> None:
        """Append the record as one line."""
        line = self._encoder.encode(record) + b"\n"
        with _as_unwritable(self._path):
            written = os.write(self._fd, line)
            if written != len(line):  # The disk filled up in the middle; the next call says so.
                os.write(self._fd, line[written:])

    def close(self, *, durable: bool = False) -> None:
        """Close the file; with `durable`, flush it to disk first."""
        with _as_unwritable(self._path):
            if durable:
                os.fsync(self._fd)
            os.close(self._fd)


@contextmanager
def _as_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogUnwritable(error.errno, error.strerror, str(path)) from error


# Reading: a whole log, the records appended since the last read, or only the newest records.


class NewerSchema(ValueError):
    """A log was written by a newer version of this program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The records of a log, and a message for each line that could not be read."""

    records: list[Record]
    left_out: list[str] = field(default_factory=list)


def read(path: Path) -> Contents:
    """Read all records of a log; report the lines that cannot be read in `left_out`.

    Raises:
        NewerSchema: a newer version wrote the log.
        OSError: the file cannot be read.
    """
    follower = Follower(path)
    records = follower.new()
    if follower.unfinished:
        follower.left_out.append(f"{path.name}: the last line is cut off; {follower.unfinished} bytes left out")
    return Contents(records=records, left_out=follower.left_out)


class LoggedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up or measured step of a rank. step_s: None for an untimed step, for example of a convergence check."""

    mark: Mark
    trial: int
    step: int
    time_ns: int
    step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """New content of a log: its newest records, and each step.

    is_anew: the log became shorter and was read again from its beginning, so earlier steps no longer count.
    """

    records: list[Record]
    steps: list[LoggedStep]
    is_anew: bool


class Follower:
    """Reads the records appended to a log since the last read. A file that does not exist yet counts as empty."""

    def __init__(self, path: Path) -> None:
        self.left_out: list[str] = []
        self._path = path
        self._decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
        self._position = 0
        self._line = 0
        self._rest = b""
        self._restarts = 0

    @property
    def unfinished(self) -> int:
        """Bytes after the last complete line."""
        return len(self._rest)

    def new(self) -> list[Record]:
        """Return the records of all lines completed since the last call.

        Raises:
            NewerSchema: a newer version wrote the log.
        """
        return [record for number, line in self._lines() if (record := self._decode(number, line)) is not None]

    def newest(self) -> list[Record]:
        """Return the records of `new`, but only the last reading of each mark, and the last `Polled` and its changes.

        Older records are not decoded, so this is several times cheaper for callers that need only the present.

        Raises:
            NewerSchema: a newer version wrote the log.
        """
        return self._newest(self._lines())

    def newest_and_steps(self) -> Newest:
        """Return the records of `newest`, and each warm-up or measured step of all lines, in order.

        For a step that is not among the newest records, only the start of its line and its time are parsed.

        Raises:
            NewerSchema: a newer version wrote the log.
        """
        restarts = self._restarts
        lines = self._lines()
        records = self._newest(lines)
        steps = [step for _, line in lines if (step := _step_of(line)) is not None]
        return Newest(records=records, steps=steps, is_anew=restarts != self._restarts)

    def _newest(self, lines: list[tuple[int, bytes]]) -> list[Record]:
        kinds: set[tuple[bytes, ...]] = set()
        newest: list[tuple[int, bytes]] = []
        # From the newest line backwards: take the first line of each kind, and changes only until a `polled`.
        for number, line in reversed(lines):
            kind = _kind(line)
            if kind in kinds or (kind == _CHANGED and _POLLED in kinds):
                continue
            if kind not in (None, _CHANGED):
                kinds.add(kind)
            newest.append((number, line))
        return [record for number, line in reversed(newest) if (record := self._decode(number, line)) is not None]

    def _lines(self) -> list[tuple[int, bytes]]:
        """Return the complete lines appended since the last call, with their numbers."""
        if self._path.is_symlink() or not self._path.is_file():  # Also refuses a device, which may have no end.
            return []
        with open_to_read(self._path) as file:
            if file.seek(0, os.SEEK_END) < self._position:
                self.left_out.append(f"{self._path.name}: it became shorter and is read again from its beginning")
                self._position, self._line, self._rest = 0, 0, b""
                self._restarts += 1
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        numbered = list(enumerate(lines, start=self._line + 1))
        self._line += len(lines)
        return numbered

    def _decode(self, number: int, line: bytes) -> Record | None:
        if not line:
            return None
        try:
            record: Record = self._decoder.decode(_with_new_mark(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._refuse_newer(line)
            self.left_out.append(f"{self._path.name}: line {number} cannot be read and is left out ({error})")
            return None
        self._refuse_newer(line)
        return record

    def _refuse_newer(self, line: bytes) -> None:
        if b'"schema_version"' not in line:
            return
        try:
            version = schema_version_of(line)
        except msgspec.DecodeError:
            return
        if version > SCHEMA_VERSION:
            raise NewerSchema(
                f"{self._path}: written with schema version {version}, but this program reads up to {SCHEMA_VERSION};"
                " use the version that wrote it"
            )


_NEW_MARKS = {b"probed": b"probe", b"told": b"nccl_log"}
_OLD_MARK = re.compile(rb'\{"type":"reading","trial":\d+,"time_ns":\d+,"mark":"(probed|told)"')


def _with_new_mark(line: bytes) -> bytes:
    """Return the line with the old mark of schema version 2 or older replaced by its new name."""
    old = _OLD_MARK.match(line)
    return line if old is None else line[: old.start(1)] + _NEW_MARKS[old[1]] + line[old.end(1) :]


_REPLACED = re.compile(rb'\{"type":"(reading|polled|changed)",(?:"trial":\d+,)?"time_ns":\d+,(?:"mark":"([a-z_]+)",)?')
"""Start of a line that a later line of its kind supersedes; a later `polled` also supersedes changes."""
_POLLED = (b"polled", b"")
_CHANGED = (b"changed", b"")
_ACCOUNT = f'"{ALLOCATED_BYTES.name}"'.encode()
"""Marks readings with memory samples; a later reading without them does not supersede one with them."""


def _kind(line: bytes) -> tuple[bytes, ...] | None:
    """Return the key that a later line must share to supersede this line; None for a line that must be decoded."""
    match = _REPLACED.match(line)
    # A complete line ends with its list of values, and "]}" occurs nowhere else in it, so this detects truncation.
    if match is None or not line.endswith(b"]}"):
        return None
    kind = match.groups(b"")
    return (*kind, _ACCOUNT) if _ACCOUNT in line else kind


_STEP = re.compile(rb'\{"type":"reading","trial":(\d+),"time_ns":(\d+),"mark":"(warm_up|measured)","step":(\d+),')
_STEP_MARKS: dict[bytes, Mark] = {b"warm_up": "warm_up", b"measured": "measured"}
_STEP_SECONDS = re.compile(rb'\["' + STEP_SECONDS.name.encode() + rb'",(-?[0-9][-+.0-9eE]*)[,\]]')
"""Matches nowhere else: within a label's value, the quotes would be escaped."""


def _step_of(line: bytes) -> LoggedStep | None:
    """Return the step that a line records; None for other lines and for truncated lines."""
    match = _STEP.match(line)
    if match is None or not line.endswith(b"]}"):
        return None
    trial, time_ns, mark, step = match.groups()
    timed = _STEP_SECONDS.search(line, match.end())
    step_s = None if timed is None else float(timed[1])
    return LoggedStep(mark=_STEP_MARKS[mark], trial=int(trial), step=int(step), time_ns=int(time_ns), step_s=step_s)


WHOLE_EACH = 60
"""The first of this many beats is written whole, so that readers soon recover from a lost line."""


def open_node_log(path: Path, *, run: str, node: int, now_ns: Callable[[], int] = time.time_ns) -> SampleLog:
    """Open a node's log and write the record that names its run and node. Trials of a run append to the same file.

    Raises:
        LogUnwritable: the log cannot be opened or written.
    """
    log = SampleLog(path)
    try:
        log.write(NodeOpened(run=run, node=node, time_ns=now_ns(), host=socket.gethostname()))
    except LogUnwritable:
        log.close()
        raise
    return log


class NodeLogWriter:
    """Writes beats into a log that the caller opens and closes; the first beat is written whole.

    A beat with a new or missing series is also written whole, which is how readers learn of it.

    Raises:
        LogUnwritable: from each call.
    """

    def __init__(self, log: SampleLog) -> None:
        self._log = log
        self._last: Sequence[Sample] = ()
        self._whole_ns = 0
        self._changes_left = 0

    def write(self, samples: list[Sample], *, time_ns: int) -> None:
        """Append a beat."""
        series, last_series = ([(sample.metric, sample.labels) for sample in beat] for beat in (samples, self._last))
        if self._changes_left == 0 or series != last_series:
            self._log.write(Polled(time_ns=time_ns, samples=samples))
            self._whole_ns, self._changes_left = time_ns, WHOLE_EACH
        else:
            values = [
                (index, now.value)
                for index, (now, before) in enumerate(zip(samples, self._last, strict=True))
                if now.value != before.value
            ]
            self._log.write(Changed(time_ns=time_ns, since_ns=self._whole_ns, values=values))
        self._last = samples
        self._changes_left -= 1


class NodeState:
    """The newest state of a node, from the records of its log, passed to `take` in order.

    Changes to a whole beat that was lost are ignored until the next whole beat.
    host: the node's name; "" until a record names it. time_ns: of the last beat, by the node's clock; None before the
    first.
    """

    def __init__(self) -> None:
        self.host = ""
        self.time_ns: int | None = None
        self.samples: list[Sample] = []
        self._whole_ns: int | None = None

    def take(self, record: Record) -> bool:
        """Apply a record; return whether it was a beat."""
        match record:
            case NodeOpened():
                self.host = record.host
                return False
            case Polled():
                self.samples = list(record.samples)
                self._whole_ns = record.time_ns
            case Changed() if record.since_ns == self._whole_ns:
                for index, value in record.values:
                    before = self.samples[index]
                    self.samples[index] = Sample(before.metric, value, before.labels)
            case _:
                return False
        self.time_ns = record.time_ns
        return True
