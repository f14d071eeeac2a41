"""Samples as lines of a file that is appended to: the interface between measuring and all that follows.

Each line is one JSON record, written whole by one system call, so that a process that dies loses at most its last line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from collectors.metric import Sample
from workloads.laws.schedules import ActionKind, MessageEnd

SCHEMA_VERSION = 2
"""Since 2 a node's log holds changes between whole lines."""
Mark = Literal["warm_up", "measured", "memory", "traced", "probed", "told"]


class Opened(msgspec.Struct, frozen=True, tag="opened", kw_only=True):
    """A rank began a trial. Fresh ranks of one run append to the same file, trial after trial.

    gpu_uuid: of the GPU, or part of one, that it computes on, as CUDA tells it: without NVML's "GPU-" or "MIG-". None
    on a CPU, and where it is not known.
    """

    run: str
    trial: int
    rank: int
    time_ns: int
    pid: int
    host: str
    gpu_uuid: str | None = None
    schema_version: int = SCHEMA_VERSION


class Reading(msgspec.Struct, frozen=True, tag="reading", kw_only=True, omit_defaults=True):
    """Samples taken together. step counts from 0 with the first warm-up; only marks of `measured` are speed.

    probed: of a probe, whose measurements are counted in place of steps. told: the same, while NCCL logged its choices,
    which slows them.
    begun_ns: since when a probe's device did nothing but what was measured; None where nobody asks.
    """

    trial: int
    time_ns: int
    mark: Mark
    step: int
    begun_ns: int | None = None
    samples: list[Sample]


class TimedAction(msgspec.Struct, frozen=True, array_like=True):
    """What a pipeline stage computed for a microbatch, and when: nanoseconds since its step began."""

    kind: ActionKind
    stage: int
    microbatch: int
    start_ns: int
    end_ns: int


class TimedMessage(msgspec.Struct, frozen=True, array_like=True):
    """When a stage handed over what an action made, or asked for what one needs: nanoseconds since its step began."""

    end: MessageEnd
    kind: ActionKind
    stage: int
    microbatch: int
    time_ns: int


class Performed(msgspec.Struct, frozen=True, tag="performed", kw_only=True):
    """The actions of a rank's pipeline stages in one step of their own, in order; such a step is no part of speed.

    begun_ns: when the step began, by the host's monotonic clock.
    clock: the same in all ranks that read the same such clock; None where nobody can tell.
    messages: in order; None where a host's times of them say nothing, as on a GPU.
    core_waits_ns: of each action, what the rank's thread had waited for a core since the step began, at the action's
        start and at its end; None where the system does not tell, or a device computes.
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
    """Something that is absent or was skipped in this trial, and why."""

    trial: int
    time_ns: int
    text: str


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """A rank's own account of how its trial ended; a rank without one was killed or left on its own.

    step: the step it was in. error: the exception's type and message, None where all went well.
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
    """All that a node's collectors gave at one beat."""

    time_ns: int
    samples: list[Sample]


class Changed(msgspec.Struct, frozen=True, tag="changed", kw_only=True):
    """What changed at a beat since the beat before, of the same series.

    since_ns: the time of the `Polled` whose series these are. values: places in its samples, and what is there now.
    """

    time_ns: int
    since_ns: int
    values: list[tuple[int, float]]


Record = Opened | Reading | Performed | Note | Ended | NodeOpened | Polled | Changed


class LogUnwritable(OSError):
    """A log cannot be opened or written: the disk is full, or the folder is gone."""


class SampleLog:
    """A log to append to.

    Raises:
        LogUnwritable: from each call that writes.
    """

    def __init__(self, path: Path) -> None:
        self._encoder = msgspec.json.Encoder()
        with _refusing(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _end_broken_line(path, self._fd)
        self._path = path

    def write(self, record: Record) -> None:
        """Append the record as one line."""
        line = self._encoder.encode(record) + b"\n"
        with _refusing(self._path):
            written = os.write(self._fd, line)
            if written != len(line):  # The disk filled up in the middle; the next call says so.
                os.write(self._fd, line[written:])

    def close(self, *, durable: bool = False) -> None:
        """Close the file; with `durable` only after its bytes are on the disk."""
        with _refusing(self._path):
            if durable:
                os.fsync(self._fd)
            os.close(self._fd)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LogUnwritable(error.errno, error.strerror, str(path)) from error


def _end_broken_line(path: Path, fd: int) -> None:
    """A writer that died may have left half a line, which must not swallow the first line of the next."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            os.write(fd, b"\n")
