"""What NVML answered over a stretch of time, as a file."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path
from typing import Any

import msgspec

SCHEMA_VERSION = 1
EIGHT_GPUS = Path(__file__).with_name("recordings") / "eight_gpus.json"
"""The recording that comes with the program; `made_recording` wrote it."""


class Track(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer over time: each value holds from its time on.

    at_s: increasing, from 0. values: numbers, words, structures as dictionaries, lists of them.
    is_line: the way from one number to the next is straight, as energy grows. is_counter: begun anew, it grows on.
    """

    at_s: list[float]
    values: list[Any]
    is_line: bool = False
    is_counter: bool = False

    def at(self, at_s: float, *, lap: int = 0) -> Any:
        """The answer at a time of a lap."""
        place = max(0, bisect_right(self.at_s, at_s) - 1)
        value = self.values[place]
        if self.is_line and place + 1 < len(self.values):
            begun_s, ended_s = self.at_s[place], self.at_s[place + 1]
            share = min(1.0, max(0.0, (at_s - begun_s) / (ended_s - begun_s)))
            between = value + (self.values[place + 1] - value) * share
            value = round(between) if isinstance(value, int) else between
        if self.is_counter:
            value += lap * (self.values[-1] - self.values[0])
        return value


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver reported.

    kind: NVML's bit. data: an XID's number. gpu_instance, compute_instance: of MIG, to which it was put down, if any.
    """

    at_s: float
    kind: int
    data: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of each lap in which the driver returns from no question to the GPU."""

    from_s: float
    until_s: float


class RecordedGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU, or one instance of one.

    tracks: by question, see `question_of`. refusals: NVML's code, by question. A question in neither is not supported.
    latencies_us: what reading a field took. instances: by place.
    event_kinds: the bits that it can report. lost_from_s: from when on it answered nothing, for good. hang: of a
    recording that was made by hand; a recorded driver's has no end that one could know.
    """

    tracks: dict[str, Track]
    refusals: dict[str, int] = {}
    latencies_us: dict[str, int] = {}
    instances: dict[str, RecordedGpu] = {}
    event_kinds: int = 0
    events: list[Event] = []
    lost_from_s: float | None = None
    hang: Hang | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A node. note: where it comes from. system: answers that belong to no GPU."""

    note: str
    duration_s: float
    system: dict[str, Track]
    gpus: list[RecordedGpu]
    schema_version: int = SCHEMA_VERSION


class BadRecording(ValueError):
    """The file is no recording that this program can read."""


def question_of(function: str, *arguments: object) -> str:
    """How a question is called in a recording: the function, and its arguments beside the GPU."""
    return f"{function}({', '.join(map(str, arguments))})" if arguments else function


def field_question(number: int, scope: int) -> str:
    """How a field is called in a recording."""
    return question_of("field", number, scope) if scope else question_of("field", number)


def save(recording: Recording, path: Path) -> None:
    """Write the recording as a file of JSON.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(msgspec.json.encode(recording) + b"\n")


def load(path: Path) -> Recording:
    """The recording that a file holds.

    Raises:
        BadRecording: it holds none, or one of a newer program.
        OSError: it cannot be read.
    """
    try:
        recording = msgspec.json.decode(path.read_bytes(), type=Recording)
    except msgspec.DecodeError as error:
        raise BadRecording(
            f"{path}: no recording of NVML ({error}); write one with `observatory doctor --record`"
        ) from None
    if recording.schema_version > SCHEMA_VERSION:
        raise BadRecording(
            f"{path}: written with schema version {recording.schema_version}, this program reads up to"
            f" {SCHEMA_VERSION}; use the version that wrote it"
        )
    return recording
