"""NVIDIA's management library: the functions of `pynvml` that we call, error codes, and each GPU's field support."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import pynvml
from pynvml import (
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    NVML_ERROR_DEPRECATED,
    NVML_ERROR_DRIVER_NOT_LOADED,
    NVML_ERROR_FUNCTION_NOT_FOUND,
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_GPU_NOT_FOUND,
    NVML_ERROR_INVALID_ARGUMENT,
    NVML_ERROR_LIBRARY_NOT_FOUND,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_SUPPORTED,
    NVML_ERROR_RESET_REQUIRED,
    NVML_ERROR_TIMEOUT,
    NVML_ERROR_UNINITIALIZED,
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
)

from collectors.nvml.plausible import CheckedNvml, ImplausibleAnswer, checked

NVMLError = cast(type[Exception], pynvml.NVMLError)
"""The exception that NVML raises for every refusal."""

RETRY_S = 30.0
"""Pause before a lost driver or GPU is looked up again."""
_NO_DRIVER = {
    NVML_ERROR_LIBRARY_NOT_FOUND: "NVML library not found",
    NVML_ERROR_DRIVER_NOT_LOADED: "its kernel module is not loaded",
}
_NEVER = frozenset(
    {
        NVML_ERROR_NOT_SUPPORTED,
        NVML_ERROR_FUNCTION_NOT_FOUND,
        NVML_ERROR_INVALID_ARGUMENT,  # Older drivers return it for a field that they do not know.
        NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        NVML_ERROR_DEPRECATED,
        NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    }
)
_LOST = frozenset(
    {
        NVML_ERROR_GPU_IS_LOST,
        NVML_ERROR_GPU_NOT_FOUND,
        NVML_ERROR_RESET_REQUIRED,
        NVML_ERROR_DRIVER_NOT_LOADED,  # It was unloaded while we used it.
        NVML_ERROR_UNINITIALIZED,
    }
)


class Nvml(Protocol):
    """The functions of `pynvml` that we call, so that a recorded NVML can replace it.

    nvmlDeviceGetPcieThroughput is left out on purpose: it blocks for 20 ms per direction.
    """

    def nvmlInit(self) -> None: ...  # noqa: N802  # NVML's own names.
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlSystemGetDriverVersion(self) -> str: ...  # noqa: N802
    def nvmlSystemGetCudaDriverVersion(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...  # noqa: N802
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetIndex(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetName(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetSerial(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetPciInfo_v3(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetVbiosVersion(self, handle: Any) -> str: ...  # noqa: N802
    def nvmlDeviceGetPersistenceMode(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetNumaNodeId(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMemoryAffinity(self, handle: Any, words: int, scope: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetCpuAffinity(self, handle: Any, words: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMigMode(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetNvLinkVersion(self, handle: Any, link: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetEncoderUtilization(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetDecoderUtilization(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetBAR1MemoryInfo(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetMarginTemperature(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int) -> int: ...  # noqa: N802
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetProcessUtilization(self, handle: Any, newer_than: int) -> Any: ...  # noqa: N802
    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any: ...  # noqa: N802
    def nvmlGpmSampleAlloc(self) -> Any: ...  # noqa: N802
    def nvmlGpmSampleFree(self, sample: Any) -> None: ...  # noqa: N802
    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any: ...  # noqa: N802
    def nvmlGpmMetricsGet(self, request: Any) -> Any: ...  # noqa: N802
    def nvmlDeviceGetSupportedEventTypes(self, handle: Any) -> int: ...  # noqa: N802
    def nvmlEventSetCreate(self) -> Any: ...  # noqa: N802
    def nvmlEventSetFree(self, events: Any) -> None: ...  # noqa: N802
    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: Any) -> None: ...  # noqa: N802
    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any: ...  # noqa: N802


def installed_nvml() -> Nvml:
    """Return the module `pynvml`, whose answers are checked."""
    return cast(Nvml, CheckedNvml(pynvml))


class Timed:
    """A wrapper of NVML that checks its answers, and times and counts its calls; for a single thread.

    seconds, calls: by function. requested: number of requested values: each field and each GPM metric counts, even if
    one call requests many; any other call counts once.
    A function that this `pynvml` lacks raises NVML's error "function not found", like one that the driver lacks.
    """

    def __init__(self, nvml: Nvml, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self.requested = 0
        self._nvml = nvml
        self._clock_ns = clock_ns

    @property
    def nvml(self) -> Nvml:
        """This object, typed as `Nvml`, since it has all of its functions."""
        return cast(Nvml, self)

    def go_on_from(self, before: Timed) -> None:
        """Add the counts of a predecessor that is no longer used."""
        for function, spent_s in before.seconds.items():
            self.seconds[function] = self.seconds.get(function, 0.0) + spent_s
            self.calls[function] = self.calls.get(function, 0) + before.calls[function]
        self.requested += before.requested

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._nvml, name, None)
        function = None if function is None else checked(name, function)

        def timed(*arguments: Any, **named: Any) -> Any:
            if function is None:
                raise NVMLError(NVML_ERROR_FUNCTION_NOT_FOUND)
            begun_ns = self._clock_ns()
            try:
                return function(*arguments, **named)
            finally:
                self.calls[name] = self.calls.get(name, 0) + 1
                match name:
                    case "nvmlDeviceGetFieldValues":
                        self.requested += len(arguments[1])
                    case "nvmlGpmMetricsGet":
                        self.requested += int(arguments[0].numMetrics)
                    case _:
                        self.requested += 1
                self.seconds[name] = self.seconds.get(name, 0.0) + (self._clock_ns() - begun_ns) / 1e9

        setattr(self, name, timed)  # The next call bypasses __getattr__.
        return timed


def key_of(handle: Any) -> Hashable:
    """Return a key that identifies a GPU by its handle; NVML always returns the same handle for a GPU.

    Does not call NVML, so it works for a GPU that is lost.
    """
    if isinstance(handle, ctypes._Pointer):
        return ctypes.cast(handle, ctypes.c_void_p).value
    return cast(Hashable, handle)


def missing_driver(error: Exception) -> str | None:
    """Return what is missing if the error means that there is no NVIDIA driver, which is normal; else None."""
    return _NO_DRIVER.get(code_of(error) or 0)


def says_unsupported(error: Exception) -> bool:
    """Return whether this driver will never answer the question for this GPU."""
    return code_of(error) in _NEVER


def says_forbidden(error: Exception) -> bool:
    """Return whether the driver answers other processes, but not this one."""
    return bool(code_of(error) == NVML_ERROR_NO_PERMISSION)


def says_lost(error: Exception) -> bool:
    """Return whether the GPU is gone until it is reset, its driver is loaded again, or the node is restarted."""
    return code_of(error) in _LOST


def says_nothing_yet(error: Exception) -> bool:
    """Return whether a wait for an event timed out."""
    return bool(code_of(error) == NVML_ERROR_TIMEOUT)


def code_of(error: Exception) -> int | None:
    """Return NVML's error code; None for an exception that is not NVML's."""
    return getattr(error, "value", None)


# Field support: whether a GPU answers a question, why not, and the cost of an answer.

SupportState = Literal["answers", "not supported", "not permitted", "not always"]
Value = TypeVar("Value")


class GpuLost(Exception):
    """The GPU no longer answers until it is reset, its driver is reloaded, or the node is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSupport:
    """Whether a GPU answers a question.

    reason: NVML's message, or why its answer is unusable; None if it answers. cost_s: time of the last answer, None if
    there was none; for a field as the driver reports it, for a function as we measure it.
    """

    gpu: str
    question: str
    answer: SupportState
    reason: str | None = None
    cost_s: float | None = None


class FieldSupportTable:
    """A GPU's support of all questions. A question that was refused for good is never asked again.

    "Not supported" is not for good if the question was answered before: a feature may be switched off and on again, for
    example MIG and the fields that it disables.

    implausible: number of impossible answers, by question.
    """

    def __init__(self, gpu: str, *, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._gpu = gpu
        self._clock_ns = clock_ns
        self._by_question: dict[str, FieldSupport] = {}
        self._answering: set[str] = set()
        self.implausible: Counter[str] = Counter()

    def ask(self, question: str, read: Callable[[], Value]) -> Value | None:
        """Return the result of `read`; None if it is refused now or was refused for good before.

        Raises:
            GpuLost: the GPU is gone; further questions are pointless.
        """
        if not self.is_asked(question):
            return None
        begun_ns = self._clock_ns()
        try:
            value = read()
        except NVMLError as error:
            self.refused(question, error)
            return None
        self.answered(question, (self._clock_ns() - begun_ns) / 1e9)
        return value

    def answered(self, question: str, cost_s: float) -> None:
        """Record an answer. A question marked "not always" keeps that mark."""
        self._answering.add(question)
        before = self._by_question.get(question)
        if before is not None and before.answer == "not always":
            self._put(question, "not always", before.reason, cost_s)
        else:
            self._put(question, "answers", None, cost_s)

    def refused(self, question: str, error: Exception) -> bool:
        """Record a refusal; return whether to ask again.

        Raises:
            GpuLost: the GPU is gone; further questions are pointless.
        """
        if says_lost(error):
            raise GpuLost(str(error)) from error
        if isinstance(error, ImplausibleAnswer):
            self.implausible[question] += 1
            if self.implausible[question] == 1:  # Report the first only, since their texts differ.
                self._put(question, "not always", str(error), None)
            return True
        if says_unsupported(error) and question not in self._answering:
            self._put(question, "not supported", str(error), None)
            return False
        if says_forbidden(error):
            self._put(question, "not permitted", str(error), None)
            return False
        self._put(question, "not always", str(error), None)
        return True

    def doubted(self, question: str, reason: str) -> None:
        """Record an answer that cannot be used; the question will be asked again."""
        before = self._by_question.get(question)
        self._put(question, "not always", reason, None if before is None else before.cost_s)

    def is_asked(self, question: str) -> bool:
        """Return whether to ask the question: it has not been refused for good."""
        support = self._by_question.get(question)
        return support is None or support.answer in {"answers", "not always"}

    def all(self) -> tuple[FieldSupport, ...]:
        """Return the support of all questions, in the order in which they were first asked."""
        return tuple(self._by_question.values())

    def _put(self, question: str, answer: SupportState, reason: str | None, cost_s: float | None) -> None:
        self._by_question[question] = FieldSupport(
            gpu=self._gpu, question=question, answer=answer, reason=reason, cost_s=cost_s
        )
