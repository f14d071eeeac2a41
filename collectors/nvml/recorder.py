"""Recordings of NVML: their file format, and a recorder of NVML's answers on a real machine.

`collectors/nvml/replay.py` replays recordings without a GPU.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
from pynvml import NVML_ERROR_NOT_FOUND, NVML_SUCCESS

from collectors.files import read_regular, write_named
from collectors.nvml.collector import NvmlCollector
from collectors.nvml.fields import fields_of, raw_of
from collectors.nvml.inventory import instance_of
from collectors.nvml.library import Nvml, NVMLError, code_of, installed_nvml, key_of, says_lost, says_nothing_yet

# The file format.

SCHEMA_VERSION = 1
EIGHT_GPUS = Path(__file__).with_name("recordings") / "eight_gpus.json"
"""The recording that is shipped with the program."""


class AnswerTrack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer over time: each value holds from its time on.

    at_s: increasing, from 0. values: numbers, strings, structures as dictionaries, or lists of them.
    is_line: values between two times are interpolated, for example energy. is_counter: it continues to grow from lap to
    lap.
    """

    at_s: list[float]
    values: list[Any]
    is_line: bool = False
    is_counter: bool = False

    def at(self, at_s: float, *, lap: int = 0) -> Any:
        """Return the answer at a time of a lap."""
        index = max(0, bisect_right(self.at_s, at_s) - 1)
        value = self.values[index]
        if self.is_line and index + 1 < len(self.values):
            begun_s, ended_s = self.at_s[index], self.at_s[index + 1]
            share = min(1.0, max(0.0, (at_s - begun_s) / (ended_s - begun_s)))
            between = value + (self.values[index + 1] - value) * share
            value = round(between) if isinstance(value, int) else between
        if self.is_counter:
            value += lap * (self.values[-1] - self.values[0])
        return value


class DriverEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error that the driver reported.

    kind: NVML's bit. data: an XID's number. gpu_instance, compute_instance: of its MIG instance, if any.
    """

    at_s: float
    kind: int
    data: int
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """An interval of each lap in which no call to the GPU returns."""

    from_s: float
    until_s: float


class RecordedGpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU, or a MIG instance.

    tracks: by question, see `question_of`. refusals: NVML's code, by question. A question in neither is not supported.
    latencies_us: time to read a field, by question. instances: by place.
    event_kinds: the bits of events that it can report. lost_from_s: time from which it never answers again.
    hang: only in handmade recordings; the end of a real driver's hang cannot be recorded.
    """

    tracks: dict[str, AnswerTrack]
    refusals: dict[str, int] = {}
    latencies_us: dict[str, int] = {}
    instances: dict[str, RecordedGpu] = {}
    event_kinds: int = 0
    events: list[DriverEvent] = []
    lost_from_s: float | None = None
    hang: Hang | None = None


class NodeRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A node's recording. note: its origin. system: answers that belong to no GPU."""

    note: str
    duration_s: float
    system: dict[str, AnswerTrack]
    gpus: list[RecordedGpu]
    schema_version: int = SCHEMA_VERSION


class BadRecording(ValueError):
    """The file is not a recording that this program can read."""


def question_of(function: str, *arguments: object) -> str:
    """Return a question's name in a recording: the function, and its arguments other than the GPU."""
    return f"{function}({', '.join(map(str, arguments))})" if arguments else function


def field_question(number: int, scope: int) -> str:
    """Return a field's name in a recording."""
    return question_of("field", number, scope) if scope else question_of("field", number)


def encode(recording: NodeRecording) -> bytes:
    """Return the recording as the content of a JSON file."""
    return msgspec.json.encode(recording) + b"\n"


def save(recording: NodeRecording, path: Path) -> None:
    """Write the recording as a JSON file.

    Raises:
        OSError: the file cannot be written.
    """
    write_named(path, encode(recording))


def load(path: Path) -> NodeRecording:
    """Read a recording.

    Raises:
        BadRecording: the file is not a recording, or a newer version wrote it.
        OSError: the file cannot be read.
    """
    try:
        recording = msgspec.json.decode(read_regular(path), type=NodeRecording)
    except msgspec.DecodeError as error:
        raise BadRecording(
            f"{path}: not a recording of NVML ({error}); write one with `observatory doctor --record`"
        ) from None
    if recording.schema_version > SCHEMA_VERSION:
        raise BadRecording(
            f"{path}: written with schema version {recording.schema_version}, this program reads up to"
            f" {SCHEMA_VERSION}; use the version that wrote it"
        )
    return recording


_FIELDS = "nvmlDeviceGetFieldValues"
_SHARES = "nvmlDeviceGetProcessUtilization"
_FIND = "nvmlDeviceGetHandleByIndex"
_HIDDEN = {
    "nvmlDeviceGetUUID": "{kind}-00000000-0000-0000-0000-{place:012d}",
    "nvmlDeviceGetSerial": "{place:013d}",
}
"""Answers that would identify the machine, with their replacements by the GPU's place."""


def record(
    nvml: Nvml | None = None,
    *,
    seconds: float,
    beat_s: float = 1.0,
    note: str,
    per_link: bool = False,
    clock_s: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> NodeRecording:
    """Record on this machine exactly what the collector queries at each beat.

    UUIDs and serial numbers are replaced; process numbers are not. note: the recording's origin, for readers.
    """
    listener = _Listener(installed_nvml() if nvml is None else nvml, clock_s)
    collector = NvmlCollector(cast(Nvml, listener), per_link=per_link, clock_ns=lambda: round(clock_s() * 1e9))
    try:
        for beat in range(1 + int(seconds / beat_s)):
            wait(max(0.0, listener.begun_s + beat * beat_s - clock_s()))
            collector.read()
    finally:
        collector.close()
    return listener.recording(note=note, duration_s=seconds)


@dataclass(slots=True)
class _Run:
    """An answer that stayed the same between two times."""

    begun_s: float
    ended_s: float
    value: Any


@dataclass(slots=True, kw_only=True)
class _GpuAnswers:
    """The answers so far of a GPU or a MIG instance."""

    runs: dict[str, list[_Run]] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    latencies_us: dict[str, int] = field(default_factory=dict)
    instances: dict[str, _GpuAnswers] = field(default_factory=dict)
    event_kinds: int = 0
    events: list[DriverEvent] = field(default_factory=list)
    lost_from_s: float | None = None

    def answer(self, question: str, at_s: float, value: Any) -> None:
        runs = self.runs.setdefault(question, [])
        if runs and runs[-1].value == value:
            runs[-1].ended_s = at_s
        else:
            runs.append(_Run(at_s, at_s, value))

    def refuse(self, question: str, at_s: float, error: Exception) -> None:
        if says_lost(error):
            self.lost_from_s = at_s if self.lost_from_s is None else self.lost_from_s
        elif question not in self.runs:
            self.refusals[question] = code_of(error) or 0

    def recorded(self, counters: frozenset[str]) -> RecordedGpu:
        return RecordedGpu(
            tracks={question: _track(runs, is_counter=question in counters) for question, runs in self.runs.items()},
            refusals={question: code for question, code in self.refusals.items() if question not in self.runs},
            latencies_us=self.latencies_us,
            instances={place: answers.recorded(counters) for place, answers in self.instances.items()},
            event_kinds=self.event_kinds,
            events=self.events,
            lost_from_s=self.lost_from_s,
        )


class _Listener:
    """A wrapper of NVML that records every answer.

    For each GPU one thread may query and another listen, as in the collector. In the recording, a GPU that was lost
    stays lost, even if it came back.
    """

    def __init__(self, nvml: Nvml, clock_s: Callable[[], float]) -> None:
        self.begun_s = clock_s()
        self._nvml = nvml
        self._clock_s = clock_s
        self._system = _GpuAnswers()
        self._gpus: dict[int, _GpuAnswers] = {}
        self._by_handle: dict[Hashable, tuple[_GpuAnswers, int]] = {}
        self._by_sample: dict[Hashable, _GpuAnswers] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._nvml, name)

        def ask(*arguments: Any, **named: Any) -> Any:
            try:
                answer = function(*arguments, **named)
            except NVMLError as error:
                if name == _SHARES and code_of(error) == NVML_ERROR_NOT_FOUND:  # No process was busy.
                    self._record(name, arguments, [])
                elif name != _FIELDS and not says_nothing_yet(error):
                    gpu, _, rest = self._gpu_and_place(name, arguments)
                    gpu.refuse(question_of(name, *rest), self._now_s(), error)
                raise
            self._record(name, arguments, answer)
            return answer

        return ask

    def recording(self, *, note: str, duration_s: float) -> NodeRecording:
        """Return the recording so far."""
        drivers = self._system.runs.get("nvmlSystemGetDriverVersion")
        driver = "" if drivers is None else drivers[0].value
        counters = frozenset(
            field_question(field.number, field.scope)
            for field in fields_of(driver, per_link=36)
            if field.metric.kind == "counter"
        )
        return NodeRecording(
            note=note,
            duration_s=duration_s,
            system=self._system.recorded(frozenset()).tracks,
            gpus=[answers.recorded(counters) for _, answers in sorted(self._gpus.items())],
        )

    def _gpu_and_place(self, name: str, arguments: tuple[Any, ...]) -> tuple[_GpuAnswers, int, tuple[Any, ...]]:
        """Return the GPU that was queried, its place, and the other arguments."""
        if name == _FIND:
            (index,) = arguments
            return self._gpus.setdefault(index, _GpuAnswers()), index, ()
        if name == "nvmlGpmMetricsGet":  # Its structure names no GPU, only a GPU's samples.
            return self._by_sample[key_of(arguments[0].sample2)], 0, ()
        track = self._by_handle.get(key_of(arguments[0])) if arguments else None
        rest = () if name == _SHARES else arguments[1:]  # Its argument is only a time.
        return (self._system, 0, arguments) if track is None else (*track, rest)

    def _record(self, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        gpu, place, rest = self._gpu_and_place(name, arguments)
        match name:
            case "nvmlDeviceGetHandleByIndex":
                self._by_handle[key_of(answer)] = (gpu, place)
            case "nvmlDeviceGetMigDeviceHandleByIndex":
                (index,) = rest
                instance = gpu.instances.setdefault(str(index), _GpuAnswers())
                # Instance 2 of GPU 0 has place 1002, and of GPU 1 2002, so replaced UUIDs stay unique.
                self._by_handle[key_of(answer)] = (instance, 1000 * (place + 1) + index)
            case "nvmlDeviceGetFieldValues":
                for value in answer:
                    question = field_question(value.fieldId, value.scopeId)
                    if value.nvmlReturn == NVML_SUCCESS:
                        gpu.answer(question, self._now_s(), raw_of(value))
                        gpu.latencies_us[question] = value.latencyUsec
                    else:
                        gpu.refuse(question, self._now_s(), NVMLError(value.nvmlReturn))
            case "nvmlDeviceGetGpuFabricInfoV":
                info = rest[0]._obj
                gpu.answer(name, self._now_s(), {"state": info.state, "cliqueId": info.cliqueId})
            case "nvmlDeviceGetProcessUtilization":  # Without the time, which makes every answer differ.
                gpu.answer(
                    name,
                    self._now_s(),
                    [{"pid": utilization.pid, "smUtil": utilization.smUtil} for utilization in answer],
                )
            case "nvmlGpmSampleGet":
                self._by_sample[key_of(answer)] = gpu
                gpu.answer(name, self._now_s(), 0)
            case "nvmlGpmMetricsGet":
                for metric in answer.metrics[: answer.numMetrics]:
                    question = question_of("gpm", metric.metricId)
                    if metric.nvmlReturn == NVML_SUCCESS:
                        gpu.answer(question, self._now_s(), metric.value)
                    else:
                        gpu.refuse(question, self._now_s(), NVMLError(metric.nvmlReturn))
            case "nvmlDeviceGetSupportedEventTypes":
                gpu.event_kinds = answer
            case "nvmlEventSetWait_v2":
                self._record_event(answer)
            case _:
                value = _plain(answer)
                if name in _HIDDEN:
                    value = _HIDDEN[name].format(place=place, kind=answer.partition("-")[0])  # GPU or MIG.
                if not isinstance(answer, ctypes._Pointer) and value is not None:
                    gpu.answer(question_of(name, *rest), self._now_s(), value)

    def _record_event(self, event: Any) -> None:
        track = self._by_handle.get(key_of(event.device))
        if track is not None:
            track[0].events.append(
                DriverEvent(
                    at_s=self._now_s(),
                    kind=event.eventType,
                    data=event.eventData,
                    gpu_instance=instance_of(event.gpuInstanceId),
                    compute_instance=instance_of(event.computeInstanceId),
                )
            )

    def _now_s(self) -> float:
        return round(self._clock_s() - self.begun_s, 3)


def _track(runs: list[_Run], *, is_counter: bool) -> AnswerTrack:
    """Return the runs as a track; a counter that also falls, for example a wrapping one, stays as recorded."""
    if is_counter and len(runs) > 1 and all(later.value > earlier.value for earlier, later in pairwise(runs)):
        # Both ends of each run: 5 at 0 to 2 s and 9 at 3 s become (0, 5), (2, 5), (3, 9).
        points = [(at_s, run.value) for run in runs for at_s in sorted({run.begun_s, run.ended_s})]
        points[0] = (0.0, points[0][1])
        times, values = zip(*points, strict=True)
        return AnswerTrack(at_s=list(times), values=list(values), is_line=True, is_counter=True)
    return AnswerTrack(at_s=[0.0, *(run.begun_s for run in runs[1:])], values=[run.value for run in runs])


def _plain(answer: Any) -> Any:
    """Return the answer as JSON values; None for values that JSON cannot represent."""
    if isinstance(answer, bytes):
        return answer.decode(errors="replace")
    if isinstance(answer, (int, float, str)):
        return answer
    if isinstance(answer, (list, tuple)):
        return [_plain(item) for item in answer]
    if isinstance(answer, ctypes.Structure):
        members: Mapping[str, Any] = {name: getattr(answer, name) for name, *_ in answer._fields_}
    else:
        members = getattr(answer, "__dict__", {})
    plain = {name: _plain(member) for name, member in members.items()}
    return {name: value for name, value in plain.items() if value is not None or members[name] is None} or None
