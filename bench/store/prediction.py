"""Errors of the prediction that was stored before a run, part by part.

`bench.analysis.prediction.scoring.before_run` makes the prediction. Measured values: the step is the run's median step,
and its parts are the shares of traced steps times that step. In a pipeline, traced communication includes the wait for
a stage that still computes, so its parts come from the timed bubble: the part that messages add is exposed
communication, and the rest is compared with the predicted bubble.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bench.results.pipeline import AXIS
from bench.store.summary import StoredPrediction, Summary
from collectors.metrics import results
from collectors.metrics.metric import Metric

MODEL_VERSION = 3
"""Increased when the same history and case get a different prediction, so that errors of two models are never mixed.

1: FLOPs at the highest ceiling and exposed communication, without the optimizer. 2: the step of `observatory predict`.
3: with the host's time on a CPU.
"""
COVERAGE = 0.8
"""Least share of runs whose measured step should lie within the range."""
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "total")

Part: TypeAlias = Literal["step", "memory", "exposed communication", "bubble"]
"""Parts for which predictions are scored."""
PARTS: tuple[Part, ...] = ("step", "memory", "exposed communication", "bubble")
_MESSAGES = ("transfer", "message")
"""Parts of a bubble that communication adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartError:
    """A part of a prediction. predicted, measured: in its unit; None if absent.

    of: the reference of the error: the measured part itself, or the measured step for parts that may be near 0.
    is_inside: whether the interval of the prediction contains the measured value; None without an interval. why_absent:
    why nothing was predicted.
    """

    name: str
    unit: Literal["seconds", "bytes"]
    predicted: float | None
    measured: float | None
    of: float | None
    is_inside: bool | None = None
    low: float | None = None
    high: float | None = None
    why_absent: str | None = None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / of: positive if too much was predicted; None if a side is absent."""
        if self.predicted is None or self.measured is None or not self.of:
            return None
        return (self.predicted - self.measured) / self.of


def errors_of(summary: Summary) -> tuple[PartError, ...]:
    """Return the parts of the run's prediction with their measured values; empty without a prediction or a trial.

    Times come first, then memory. Parts that were neither predicted nor measured are left out.
    """
    if summary.prediction is None or not summary.trials_done:
        return ()
    parts = (*_times(summary), *_memory(summary))
    return tuple(part for part in parts if part.predicted is not None or part.measured is not None)


def _times(summary: Summary) -> Iterator[PartError]:
    stored = summary.prediction
    assert stored is not None, "the caller looked"
    step_s = _median(summary, results.RUN_STEP_SECONDS)
    low, high = stored.step_low_s, stored.step_high_s
    has_ends = low is not None and high is not None and step_s is not None
    yield PartError(
        name="step",
        unit="seconds",
        predicted=stored.step_s,
        measured=step_s,
        of=step_s,
        is_inside=low <= step_s <= high if has_ends else None,  # type: ignore[operator]  # None has no ends.
        low=low,
        high=high,
        why_absent=stored.absent.get("step_s"),
    )
    exposed, bubble = _exposed(summary), _bubble(summary)
    shares = {
        "compute_s": ("computing", _median(summary, results.RUN_TRACED_RATIO, part="compute")),
        "exposed_s": ("exposed communication", exposed),
        "bubble_s": ("bubble", bubble),
    }
    measured_s = {
        field: (name, None if share is None or step_s is None else share * step_s)
        for field, (name, share) in shares.items()
    }
    measured_s["communication_s"] = (
        "communication",
        _median(summary, results.RUN_COMMUNICATION_SECONDS, account="traced"),
    )
    measured_s["optimizer_s"] = ("optimizer", _median(summary, results.RUN_PHASE_SECONDS, phase="optimizer"))
    for field in ("compute_s", "communication_s", "exposed_s", "bubble_s", "optimizer_s"):
        name, value_s = measured_s[field]
        if field == "bubble_s" and summary.case.spec().pipeline(summary.case) is None:
            continue
        yield PartError(
            name=name,
            unit="seconds",
            predicted=_predicted(stored, field),
            measured=value_s,
            of=step_s,
            why_absent=stored.absent.get(field),
        )
    # A trace has it as computing (slow small operators) and as idle (Python).
    yield PartError(name="host", unit="seconds", predicted=stored.host_s, measured=None, of=step_s)


def _predicted(stored: StoredPrediction, field: str) -> float | None:
    """Return a predicted part; computing includes the optimizer, whose kernels a trace counts as computing."""
    seconds: float | None = getattr(stored, field)
    if field == "compute_s" and seconds is not None and stored.optimizer_s is not None:
        return seconds + stored.optimizer_s
    return seconds


def _exposed(summary: Summary) -> float | None:
    """Return the share of the step in which only communication runs; None if it cannot be separated from waiting.

    For a pipeline, this is possible only if nothing but its stages communicates.
    """
    case = summary.case
    if case.spec().pipeline(case) is None:
        return _median(summary, results.RUN_TRACED_RATIO, part="exposed_communication")
    if any(size > 1 for name, size in case.spec().mesh(case).items() if name != AXIS):
        return None
    parts = [_median(summary, results.RUN_BUBBLE_PART_RATIO, part=part) for part in _MESSAGES]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(_MESSAGES) else None


def _bubble(summary: Summary) -> float | None:
    """Return the share of the step that is bubble for reasons other than messages."""
    whole = _median(summary, results.RUN_BUBBLE_RATIO, account="measured")
    parts = [_median(summary, results.RUN_BUBBLE_PART_RATIO, part=part) for part in _MESSAGES]
    known = [part for part in parts if part is not None]
    return whole - sum(known) if whole is not None and len(known) == len(_MESSAGES) else None


def _memory(summary: Summary) -> Iterator[PartError]:
    stored = summary.prediction
    assert stored is not None, "the caller looked"
    for part in MEMORY_PARTS:
        measured = _median(summary, results.RUN_MEMORY_ACCOUNT_BYTES, part=part, account="measured")
        predicted = stored.memory_bytes.get(part)
        yield PartError(
            name=f"memory: {part}",
            unit="bytes",
            predicted=predicted or None,  # Parts of 0 bytes are left out, as in the measured ones.
            measured=measured,
            of=measured,
            why_absent=stored.absent.get(part),
        )


def _median(summary: Summary, metric: Metric, **labels: str) -> float | None:
    return next(
        (each.median for each in summary.estimates if (each.metric, each.labels) == (metric.name, labels)), None
    )
