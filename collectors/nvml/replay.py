"""NVML without a GPU: its functions, answering what a recording holds at the time that has passed."""

# ruff: noqa: N802  # NVML's own names.

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pynvml
from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_TIMEOUT,
    NVML_ERROR_UNINITIALIZED,
    NVML_SUCCESS,
    NVML_VALUE_TYPE_DOUBLE,
    NVML_VALUE_TYPE_SIGNED_LONG_LONG,
)

from collectors.nvml.library import Nvml, NVMLError, code_of
from collectors.nvml.mig import number_of
from collectors.nvml.recorder import RecordedGpu, Recording, field_question, question_of

_LOOK_S = 0.1
"""Between looks at the clock of a question that hangs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedHandle:
    """What stands for a GPU, or for an instance of one; the same one each time it is asked for."""

    index: int
    gpu: RecordedGpu
    whole: RecordedGpu


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedEvents:
    """A set of events. told: how many of the recording's, lap after lap, it has passed."""

    told: int
    listening: list[RecordedHandle] = field(default_factory=list)


class RecordedNvml:
    """Replays from the first `nvmlInit` on, lap after lap: counters grow on, events come again, and what is lost stays
    lost.

    clock_s: what time it is; handed in, it may run as fast as one likes. wait: until told, or for so many seconds.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._recording = recording
        self._clock_s, self._wait = clock_s, wait
        self._begun_s: float | None = None
        self._is_open = False
        self._handles = [RecordedHandle(index=place, gpu=gpu, whole=gpu) for place, gpu in enumerate(recording.gpus)]
        self._parts = {
            (handle.index, place): RecordedHandle(index=handle.index, gpu=part, whole=handle.gpu)
            for handle in self._handles
            for place, part in handle.gpu.instances.items()
        }
        self._sampled: dict[int, tuple[RecordedHandle, Any]] = {}
        self._events = sorted(
            ((handle, event) for handle in self._handles for event in handle.gpu.events), key=lambda one: one[1].at_s
        )

    @property
    def nvml(self) -> Nvml:
        """Itself: it has whatever functions NVML has."""
        return cast(Nvml, self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Any function that asks a GPU one thing."""
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def ask(handle: RecordedHandle, *arguments: object, **_: object) -> Any:
            return self._answer(handle, question_of(name, *arguments))

        return ask

    def nvmlInit(self) -> None:
        """Begin at the recording's beginning, or go on."""
        self._is_open = True
        if self._begun_s is None:
            self._begun_s = self._clock_s()

    def nvmlShutdown(self) -> None:
        """A question that hangs is let go, and refused."""
        self._is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        """The recorded driver's."""
        return str(self._of_system("nvmlSystemGetDriverVersion"))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        """The recorded driver's, as 1000 major + 10 minor."""
        return int(self._of_system("nvmlSystemGetCudaDriverVersion"))

    def nvmlDeviceGetCount(self) -> int:
        """How many GPUs were recorded."""
        return len(self._handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> RecordedHandle:
        """What stands for the GPU."""
        self._check(self._handles[index])
        return self._handles[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: RecordedHandle, index: int) -> RecordedHandle:
        """What stands for the instance at a place of the GPU."""
        self._check(handle)
        if (handle.index, str(index)) not in self._parts:
            raise NVMLError(NVML_ERROR_NOT_FOUND)
        return self._parts[handle.index, str(index)]

    def nvmlDeviceGetFieldValues(self, handle: RecordedHandle, fields: list[tuple[int, int]]) -> Any:
        """Each field's value, or why there is none."""
        self._check(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, (number, scope) in zip(values, fields, strict=True):
            question = field_question(number, scope)
            value.fieldId, value.scopeId = number, scope
            value.latencyUsec = handle.gpu.latencies_us.get(question, 0)
            try:
                _fill(value, self._answer(handle, question))
            except NVMLError as error:
                value.nvmlReturn = code_of(error)
        return values

    def nvmlDeviceGetGpuFabricInfoV(self, handle: RecordedHandle, info: Any) -> int:
        """Fills the structure that `info` refers to."""
        for name, value in vars(self._answer(handle, "nvmlDeviceGetGpuFabricInfoV")).items():
            setattr(info._obj, name, value)
        return int(NVML_SUCCESS)

    def nvmlGpmSampleAlloc(self) -> Any:
        """A sample that holds nothing yet."""
        return ctypes.cast(ctypes.create_string_buffer(1), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        """The sample is not asked about again."""
        self._sampled.pop(_address(sample), None)

    def nvmlGpmSampleGet(self, handle: RecordedHandle, sample: Any) -> Any:
        """A sample of the GPU."""
        self._answer(handle, "nvmlGpmSampleGet")
        self._sampled[_address(sample)] = (handle, sample)
        return sample

    def nvmlGpmMetricsGet(self, wanted: Any) -> Any:
        """What the monitors of the sampled GPU see now."""
        handle, _ = self._sampled[_address(wanted.sample2)]
        self._check(handle)
        for answer in wanted.metrics[: wanted.numMetrics]:
            try:
                answer.value = self._answer(handle, question_of("gpm", answer.metricId))
                answer.nvmlReturn = NVML_SUCCESS
            except NVMLError as error:
                answer.nvmlReturn = code_of(error)
        return wanted

    def nvmlDeviceGetSupportedEventTypes(self, handle: RecordedHandle) -> int:
        """The bits of what the GPU can report."""
        self._check(handle)
        return handle.gpu.event_kinds

    def nvmlEventSetCreate(self) -> RecordedEvents:
        """A set that listens to nothing yet, and is told nothing that was before it."""
        lap, at_s = divmod(self._elapsed_s(), self._recording.duration_s)
        return RecordedEvents(told=int(lap) * len(self._events) + sum(event.at_s < at_s for _, event in self._events))

    def nvmlEventSetFree(self, events: RecordedEvents) -> None:
        """The set listens no more."""
        events.listening.clear()

    def nvmlDeviceRegisterEvents(self, handle: RecordedHandle, kinds: int, events: RecordedEvents) -> None:
        """Listen to the GPU."""
        self._check(handle)
        events.listening.append(handle)

    def nvmlEventSetWait_v2(self, events: RecordedEvents, timeout_ms: int) -> Any:
        """The next event, or NVML's timeout."""
        event = self._next_event(events)
        if event is None:
            self._wait(timeout_ms / 1e3)
            event = self._next_event(events)
        if event is None:
            raise NVMLError(NVML_ERROR_TIMEOUT)
        return event

    def _next_event(self, events: RecordedEvents) -> Any:
        """The next that is due of a GPU that is listened to, if there is one."""
        while self._events:
            lap, place = divmod(events.told, len(self._events))
            handle, event = self._events[place]
            at_s = lap * self._recording.duration_s + event.at_s
            if at_s > self._elapsed_s():
                return None
            events.told += 1
            lost_s = handle.gpu.lost_from_s
            if handle in events.listening and (lost_s is None or at_s <= lost_s):
                return SimpleNamespace(
                    device=handle,
                    eventType=event.kind,
                    eventData=event.data,
                    gpuInstanceId=number_of(event.gpu_instance),
                    computeInstanceId=number_of(event.compute_instance),
                )
        return None

    def _answer(self, handle: RecordedHandle, question: str) -> Any:
        self._check(handle)
        if question in handle.gpu.refusals:
            raise NVMLError(handle.gpu.refusals[question])
        if question not in handle.gpu.tracks:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        lap, at_s = divmod(self._elapsed_s(), self._recording.duration_s)
        return _as_nvml(handle.gpu.tracks[question].at(at_s, lap=int(lap)))

    def _of_system(self, question: str) -> Any:
        track = self._recording.system.get(question)
        if track is None:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return track.at(0.0)

    def _check(self, handle: RecordedHandle) -> None:
        hang = handle.whole.hang
        while hang is not None and hang.from_s <= self._elapsed_s() % self._recording.duration_s < hang.until_s:
            if not self._is_open:
                raise NVMLError(NVML_ERROR_UNINITIALIZED)
            self._wait(_LOOK_S)
        lost_s = handle.whole.lost_from_s
        if lost_s is not None and self._elapsed_s() >= lost_s:
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)

    def _elapsed_s(self) -> float:
        return 0.0 if self._begun_s is None else self._clock_s() - self._begun_s


def _as_nvml(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**value)
    return [_as_nvml(one) for one in value] if isinstance(value, list) else value


def _fill(value: Any, raw: float) -> None:
    value.nvmlReturn = NVML_SUCCESS
    if isinstance(raw, int):
        value.valueType, value.value.sllVal = NVML_VALUE_TYPE_SIGNED_LONG_LONG, raw
    else:
        value.valueType, value.value.dVal = NVML_VALUE_TYPE_DOUBLE, raw


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
