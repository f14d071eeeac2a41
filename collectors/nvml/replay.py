"""NVML without a GPU: a replacement for `pynvml` that answers from a recording, according to the elapsed time."""

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

from collectors.nvml.inventory import number_of
from collectors.nvml.library import Nvml, NVMLError, code_of
from collectors.nvml.recorder import NodeRecording, RecordedGpu, field_question, question_of

_LOOK_S = 0.1
"""Interval at which a hanging call checks the clock."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedHandle:
    """The handle of a GPU or a MIG instance; always the same object. physical: the GPU that contains the instance."""

    index: int
    gpu: RecordedGpu
    physical: RecordedGpu


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedEvents:
    """An event set. passed: number of the recording's events, over all laps, that it has passed."""

    passed: int
    listening: list[RecordedHandle] = field(default_factory=list)


class RecordedNvml:
    """Replays a recording from the first `nvmlInit` on, lap after lap.

    From lap to lap, counters continue to grow, events repeat, and a lost GPU stays lost.
    clock_s: a clock in seconds, of any speed. wait: waits that many seconds.
    """

    def __init__(
        self,
        recording: NodeRecording,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._recording = recording
        self._clock_s, self._wait = clock_s, wait
        self._begun_s: float | None = None
        self._is_open = False
        self._handles = [RecordedHandle(index=place, gpu=gpu, physical=gpu) for place, gpu in enumerate(recording.gpus)]
        self._instances = {
            (handle.index, place): RecordedHandle(index=handle.index, gpu=part, physical=handle.gpu)
            for handle in self._handles
            for place, part in handle.gpu.instances.items()
        }
        self._sampled: dict[int, tuple[RecordedHandle, Any]] = {}
        self._events = sorted(
            ((handle, event) for handle in self._handles for event in handle.gpu.events),
            key=lambda queued: queued[1].at_s,
        )

    @property
    def nvml(self) -> Nvml:
        """This object, typed as `Nvml`, since it has all of its functions."""
        return cast(Nvml, self)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return any NVML function that reads a single value of a GPU."""
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def ask(handle: RecordedHandle, *arguments: object, **_: object) -> Any:
            return self._answer(handle, question_of(name, *arguments))

        return ask

    def nvmlInit(self) -> None:
        """Start the recording from its beginning, or continue it."""
        self._is_open = True
        if self._begun_s is None:
            self._begun_s = self._clock_s()

    def nvmlShutdown(self) -> None:
        """Close NVML; a hanging call then ends with a refusal."""
        self._is_open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        """Return the recorded driver's version."""
        return str(self._of_system("nvmlSystemGetDriverVersion"))

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        """Return the recorded driver's CUDA version, as 1000 major + 10 minor."""
        return int(self._of_system("nvmlSystemGetCudaDriverVersion"))

    def nvmlDeviceGetCount(self) -> int:
        """Return the number of recorded GPUs."""
        return len(self._handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> RecordedHandle:
        """Return the GPU's handle."""
        self._check(self._handles[index])
        return self._handles[index]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: RecordedHandle, index: int) -> RecordedHandle:
        """Return the handle of the MIG instance at a place of the GPU."""
        self._check(handle)
        if (handle.index, str(index)) not in self._instances:
            raise NVMLError(NVML_ERROR_NOT_FOUND)
        return self._instances[handle.index, str(index)]

    def nvmlDeviceGetFieldValues(self, handle: RecordedHandle, fields: list[tuple[int, int]]) -> Any:
        """Return each field's value or error code."""
        self._check(handle)
        values = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for value, (number, scope) in zip(values, fields, strict=True):
            question = field_question(number, scope)
            value.fieldId, value.scopeId = number, scope
            value.latencyUsec = handle.gpu.latencies_us.get(question, 0)
            try:
                raw = self._answer(handle, question)
                if isinstance(raw, int):
                    value.valueType, value.value.sllVal = NVML_VALUE_TYPE_SIGNED_LONG_LONG, raw
                else:
                    value.valueType, value.value.dVal = NVML_VALUE_TYPE_DOUBLE, raw
                value.nvmlReturn = NVML_SUCCESS
            except NVMLError as error:
                value.nvmlReturn = code_of(error)
        return values

    def nvmlDeviceGetGpuFabricInfoV(self, handle: RecordedHandle, info: Any) -> int:
        """Fill the structure that `info` refers to."""
        for name, value in vars(self._answer(handle, "nvmlDeviceGetGpuFabricInfoV")).items():
            setattr(info._obj, name, value)
        return int(NVML_SUCCESS)

    def nvmlDeviceGetProcessUtilization(self, handle: RecordedHandle, newer_than: int) -> Any:
        """Return a sample of each process that is not idle, with the present time; a recording has no sample times."""
        now = 1 + round(self._elapsed_s() * 1e6)
        utilizations = self._answer(handle, "nvmlDeviceGetProcessUtilization") if now > newer_than else []
        if not utilizations:
            raise NVMLError(NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(**vars(utilization), timeStamp=now) for utilization in utilizations]

    def nvmlGpmSampleAlloc(self) -> Any:
        """Return an empty sample."""
        return ctypes.cast(ctypes.create_string_buffer(1), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        """Forget the sample."""
        self._sampled.pop(_address(sample), None)

    def nvmlGpmSampleGet(self, handle: RecordedHandle, sample: Any) -> Any:
        """Mark the sample as taken from the GPU."""
        self._answer(handle, "nvmlGpmSampleGet")
        self._sampled[_address(sample)] = (handle, sample)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        """Fill in the recording's current GPM metrics for the GPU of the newer sample."""
        handle, _ = self._sampled[_address(request.sample2)]
        self._check(handle)
        for answer in request.metrics[: request.numMetrics]:
            try:
                answer.value = self._answer(handle, question_of("gpm", answer.metricId))
                answer.nvmlReturn = NVML_SUCCESS
            except NVMLError as error:
                answer.nvmlReturn = code_of(error)
        return request

    def nvmlDeviceGetSupportedEventTypes(self, handle: RecordedHandle) -> int:
        """Return the bits of the events that the GPU can report."""
        self._check(handle)
        return handle.gpu.event_kinds

    def nvmlEventSetCreate(self) -> RecordedEvents:
        """Return a set that listens to no GPU yet and delivers no event from before its creation."""
        lap, at_s = divmod(self._elapsed_s(), self._recording.duration_s)
        return RecordedEvents(passed=int(lap) * len(self._events) + sum(event.at_s < at_s for _, event in self._events))

    def nvmlEventSetFree(self, events: RecordedEvents) -> None:
        """Stop listening."""
        events.listening.clear()

    def nvmlDeviceRegisterEvents(self, handle: RecordedHandle, kinds: int, events: RecordedEvents) -> None:
        """Listen to the GPU."""
        self._check(handle)
        events.listening.append(handle)

    def nvmlEventSetWait_v2(self, events: RecordedEvents, timeout_ms: int) -> Any:
        """Return the next event, or raise NVML's timeout."""
        event = self._next_event(events)
        if event is None:
            self._wait(timeout_ms / 1e3)
            event = self._next_event(events)
        if event is None:
            raise NVMLError(NVML_ERROR_TIMEOUT)
        return event

    def _next_event(self, events: RecordedEvents) -> Any:
        """Return the next due event of the GPUs in the set, if there is one."""
        while self._events:
            # With 5 events, passed = 12 means 2 whole laps; event 2 of the third lap is next.
            lap, index = divmod(events.passed, len(self._events))
            handle, event = self._events[index]
            at_s = lap * self._recording.duration_s + event.at_s
            if at_s > self._elapsed_s():
                return None
            events.passed += 1
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
        hang = handle.physical.hang
        while hang is not None and hang.from_s <= self._elapsed_s() % self._recording.duration_s < hang.until_s:
            if not self._is_open:
                raise NVMLError(NVML_ERROR_UNINITIALIZED)
            self._wait(_LOOK_S)
        lost_s = handle.physical.lost_from_s
        if lost_s is not None and self._elapsed_s() >= lost_s:
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)

    def _elapsed_s(self) -> float:
        return 0.0 if self._begun_s is None else self._clock_s() - self._begun_s


def _as_nvml(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**value)
    return [_as_nvml(item) for item in value] if isinstance(value, list) else value


def _address(sample: Any) -> int:
    return ctypes.cast(sample, ctypes.c_void_p).value or 0
