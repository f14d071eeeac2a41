"""Plausibility of NVML's answers: ranges of numbers, relations between them, and texts that may not be UTF-8.

Some drivers return 2^32 - 1 for unknown values, a utilization of 627618 %, or a name in no valid encoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pynvml

from collectors.metrics import gpu as gpu_metrics
from collectors.metrics import gpu_health as gpu_health_metrics
from collectors.metrics.metric import Metric, Sample


class ImplausibleAnswer(pynvml.NVMLError):  # type: ignore[misc]  # pynvml has no types.
    """NVML returned an impossible value; the caller treats it as a refusal until the next reading."""

    def __new__(cls, text: str) -> ImplausibleAnswer:
        """Return the error, with NVML's code for an unknown error."""
        return cast(ImplausibleAnswer, super().__new__(cls, pynvml.NVML_ERROR_UNKNOWN))

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class _Range:
    """The smallest and largest possible value. unit: NVML's."""

    least: float
    most: float
    unit: str = ""

    def check(self, value: float) -> None:
        """Refuse a value outside the range; NaN is outside.

        Raises:
            ImplausibleAnswer: the value is outside.
        """
        if not self.least <= value <= self.most:
            unit = f" {self.unit}" if self.unit else ""
            raise ImplausibleAnswer(f"{value:.10g}{unit} is implausible: {self.least:.10g} to {self.most:.10g}")


# Answers of functions, in NVML's own units.

_BYTES = _Range(0, 1 << 48, "bytes")
_PERCENT = _Range(0, 100, "%")
_POWER = _Range(0, 10_000_000, "mW")
_CLOCK = _Range(0, 20_000, "MHz")
_GENERATION, _LANES, _FLAG = _Range(0, 16), _Range(0, 64), _Range(0, 1)
_ONE_NUMBER = {
    "nvmlSystemGetCudaDriverVersion": _Range(1000, 99_999),
    "nvmlDeviceGetCount": _Range(0, 1024, "GPUs"),
    "nvmlDeviceGetMaxMigDeviceCount": _Range(0, 64, "slices"),
    "nvmlDeviceGetNumaNodeId": _Range(0, 4095),
    "nvmlDeviceGetPowerUsage": _POWER,
    "nvmlDeviceGetEnforcedPowerLimit": _Range(1, _POWER.most, _POWER.unit),
    "nvmlDeviceGetTemperature": _Range(-60, 200, "C"),
    "nvmlDeviceGetMarginTemperature": _Range(-200, 250, "C"),
    "nvmlDeviceGetClockInfo": _CLOCK,
    "nvmlDeviceGetMaxClockInfo": _Range(1, _CLOCK.most, _CLOCK.unit),
    "nvmlDeviceGetCurrPcieLinkGeneration": _GENERATION,
    "nvmlDeviceGetMaxPcieLinkGeneration": _GENERATION,
    "nvmlDeviceGetCurrPcieLinkWidth": _LANES,
    "nvmlDeviceGetMaxPcieLinkWidth": _LANES,
    "nvmlDeviceGetTotalEccErrors": _Range(0, (1 << 32) - 2),
    "nvmlDeviceGetPersistenceMode": _FLAG,
    "nvmlDeviceGetNvLinkState": _FLAG,
    # Drivers have nine reasons; later ones may have a few more.
    "nvmlDeviceGetCurrentClocksEventReasons": _Range(0, (1 << 16) - 1),
}


def check_percent(value: float) -> None:
    """Refuse an impossible percentage.

    Raises:
        ImplausibleAnswer: it is outside 0 to 100.
    """
    _PERCENT.check(value)


def _check_memory(memory: Any) -> None:
    """Refuse memory whose free and reserved bytes exceed its size."""
    _Range(1, _BYTES.most, _BYTES.unit).check(memory.total)
    available = memory.free + getattr(memory, "reserved", 0)
    if not 0 <= available <= memory.total:
        raise ImplausibleAnswer(f"{available} bytes free and reserved of {memory.total} are implausible")


def _check_window(window: Any) -> None:
    _BYTES.check(window.bar1Total)
    _Range(0, window.bar1Total, "bytes mapped").check(window.bar1Used)


def _check_utilization(rates: Any) -> None:
    _PERCENT.check(rates.gpu)
    _PERCENT.check(rates.memory)


_CHECKS: Mapping[str, Callable[[Any], None]] = {
    **{name: limits.check for name, limits in _ONE_NUMBER.items()},
    "nvmlDeviceGetUtilizationRates": _check_utilization,
    "nvmlDeviceGetEncoderUtilization": lambda answer: _PERCENT.check(answer[0]),
    "nvmlDeviceGetDecoderUtilization": lambda answer: _PERCENT.check(answer[0]),
    "nvmlDeviceGetMigMode": lambda answer: _FLAG.check(answer[0]),
    "nvmlDeviceGetMemoryInfo": _check_memory,
    "nvmlDeviceGetBAR1MemoryInfo": _check_window,
}


def lenient(read: Callable[[], Any]) -> Any:
    """Return the result of `read`; in text that is not UTF-8, escape invalid bytes as "\\xff".

    pynvml decodes text when its function returns, and text in a structure when the attribute is read.
    """
    try:
        return read()
    except UnicodeDecodeError as error:
        return error.object.decode(errors="backslashreplace")


def checked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an NVML function that refuses impossible answers, and escapes bytes that are not UTF-8 as "\\xff".

    Raises:
        ImplausibleAnswer: from each call with an impossible answer.
    """
    check = _CHECKS.get(name)

    def call(*arguments: Any, **named: Any) -> Any:
        answer = lenient(lambda: function(*arguments, **named))
        if check is not None:
            check(answer)
        return answer

    return call


class CheckedNvml:
    """The module `pynvml`, or a replacement of it, with checked functions."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._nvml, name)
        return checked(name, attribute) if name.startswith("nvml") and callable(attribute) else attribute


# Values of fields, performance monitors and exported samples, in the units of metrics.

_RATIO = _Range(0, 1.01)
"""Monitors may slightly exceed 1."""
_COUNT = _Range(0, (1 << 32) - 2)
_TOTAL_BYTES = _Range(0, 1 << 63, "bytes")
_WATTS = _Range(0, 10_000, "W")
_BYTES_PER_SECOND = _Range(0, 1e13, "bytes/s")
_RANGES: Mapping[str, _Range] = {
    metric.name: limits
    for limits, metrics in (
        (_WATTS, (gpu_metrics.GPU_POWER_INSTANT_WATTS,)),
        (_Range(1, _WATTS.most, "W"), (gpu_metrics.GPU_POWER_LIMIT_WATTS,)),
        (_Range(0, 1e13, "J"), (gpu_metrics.GPU_ENERGY_JOULES,)),
        (_Range(0, 1e10, "s"), (gpu_metrics.GPU_CLOCK_HELD_SECONDS,)),
        (_Range(-60, 200, "C"), (gpu_metrics.GPU_MEMORY_TEMPERATURE_CELSIUS,)),
        (_Range(0, 1), (gpu_health_metrics.GPU_MEMORY_REPAIR,)),
        (
            _TOTAL_BYTES,
            (
                gpu_health_metrics.GPU_PCIE_BYTES,
                gpu_health_metrics.GPU_NVLINK_BYTES,
                gpu_health_metrics.GPU_NVLINK_LINK_BYTES,
            ),
        ),
        (_BYTES_PER_SECOND, (gpu_health_metrics.GPU_PCIE_RATE, gpu_health_metrics.GPU_NVLINK_RATE)),
        (
            _COUNT,
            (
                gpu_health_metrics.GPU_PCIE_RETRIES,
                gpu_health_metrics.GPU_PCIE_ERRORS,
                gpu_health_metrics.GPU_NVLINK_ERRORS,
                gpu_health_metrics.GPU_ECC_VOLATILE_ERRORS,
                gpu_health_metrics.GPU_ECC_AGGREGATE_ERRORS,
                gpu_health_metrics.GPU_REMAPPED_ROWS,
                gpu_health_metrics.GPU_RETIRED_PAGES,
            ),
        ),
        (
            _RATIO,
            (
                gpu_health_metrics.GPU_GRAPHICS_ACTIVITY,
                gpu_health_metrics.GPU_SM_ACTIVITY,
                gpu_health_metrics.GPU_SM_OCCUPANCY,
                gpu_health_metrics.GPU_TENSOR_ACTIVITY,
                gpu_health_metrics.GPU_PIPE_ACTIVITY,
                gpu_health_metrics.GPU_DRAM_ACTIVITY,
            ),
        ),
    )
    for metric in metrics
}
MOST_STATES = 255
"""Upper limit for codes of states."""


def check_value(metric: Metric, value: float) -> None:
    """Refuse an impossible value of a field or a monitor.

    Raises:
        ImplausibleAnswer: it is outside the metric's range.
    """
    if (limits := _RANGES.get(metric.name)) is not None:
        limits.check(value)


_FASTEST = {gpu_metrics.GPU_ENERGY_JOULES.name: 20e3, gpu_health_metrics.GPU_NVLINK_BYTES.name: 1e13}
"""Maximum growth of a counter per second: watts of the largest boards, bytes over all links."""
_SLACK_S = 1.0
"""Extra time to allow for, since drivers update counters in steps."""


class Growth:
    """Checks a counter's growth: it never falls unless the GPU is lost, and has a maximum rate.

    A value that fails is left out, and the next is compared with it: a wrong value costs two readings, and a counter
    that was reset costs one.
    """

    def __init__(self, metric: Metric) -> None:
        self._most_per_s = _FASTEST.get(metric.name)
        self._before: tuple[int, float] | None = None

    def check(self, value: float, now_ns: int) -> None:
        """Refuse a value that the counter cannot have reached.

        Raises:
            ImplausibleAnswer: the counter fell, or grew faster than possible.
        """
        before, self._before = self._before, (now_ns, value)
        if self._most_per_s is None or before is None:
            return
        most = self._most_per_s * ((now_ns - before[0]) / 1e9 + _SLACK_S)
        if not 0 <= value - before[1] <= most:
            raise ImplausibleAnswer(f"a change by {value - before[1]:.10g} since the last reading is implausible")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    """A value is at most `times` another value of the same GPU. question: the one whose answer is refused otherwise."""

    question: str
    metric: Metric
    labels: Mapping[str, str] = field(default_factory=dict)
    times: float
    of: Metric
    of_labels: Mapping[str, str]


_MOST_POWER = {"limit": "maximum"}
_RELATIONS = (
    # Momentary peaks exceed the limit, which applies to an average.
    _Relation(
        question="power sensor",
        metric=gpu_metrics.GPU_POWER_WATTS,
        times=2,
        of=gpu_metrics.GPU_POWER_LIMIT_WATTS,
        of_labels=_MOST_POWER,
    ),
    _Relation(
        question="instant power",
        metric=gpu_metrics.GPU_POWER_INSTANT_WATTS,
        times=4,
        of=gpu_metrics.GPU_POWER_LIMIT_WATTS,
        of_labels=_MOST_POWER,
    ),
    _Relation(
        question="minimum power limit",
        metric=gpu_metrics.GPU_POWER_LIMIT_WATTS,
        labels={"limit": "minimum"},
        times=1,
        of=gpu_metrics.GPU_POWER_LIMIT_WATTS,
        of_labels=_MOST_POWER,
    ),
    # Owners may raise clocks beyond the limit.
    *(
        _Relation(
            question=f"{clock} clock",
            metric=gpu_metrics.GPU_CLOCK_HERTZ,
            labels={"clock": clock},
            times=1.5,
            of=gpu_metrics.GPU_CLOCK_LIMIT_HERTZ,
            of_labels={"clock": clock},
        )
        for clock in ("sm", "memory", "video")
    ),
    *(
        _Relation(
            question="PCIe link now",
            metric=metric,
            labels={"link": "now"},
            times=1,
            of=metric,
            of_labels={"link": "maximum"},
        )
        for metric in (gpu_metrics.GPU_PCIE_GENERATION, gpu_metrics.GPU_PCIE_LANES, gpu_metrics.GPU_PCIE_LINK)
    ),
)


def related(
    samples: Iterable[Sample], known: Iterable[Sample], on_doubt: Callable[[str, ImplausibleAnswer], object]
) -> list[Sample]:
    """Return a GPU's samples without those that are too large compared with another. known: more samples of the GPU.

    on_doubt: takes the question with the refused answer, and the reason.
    """
    plausible = list(samples)
    for relation in _RELATIONS:
        of = _sample_of([*plausible, *known], relation.of, relation.of_labels)
        value = _sample_of(plausible, relation.metric, relation.labels)
        if of is not None and value is not None and value.value > relation.times * of.value:
            plausible = [sample for sample in plausible if sample is not value]
            words = f"{value.value:.10g} is implausible where {of.value:.10g} is the limit"
            on_doubt(relation.question, ImplausibleAnswer(words))
    return plausible


def _sample_of(samples: Iterable[Sample], metric: Metric, labels: Mapping[str, str]) -> Sample | None:
    return next(
        (sample for sample in samples if sample.metric == metric.name and labels.items() <= sample.labels.items()), None
    )
