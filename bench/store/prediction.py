"""What the cost models predict of a run before its first trial, stored with it, and how far it was off afterwards.

The step is that of `predicted_step`, and the memory that of the strategy's spec. The step's interval comes from the
history: how far the ceilings of comparable `matmul` runs, and the links of comparable sweeps, differ from run to run.
Not covered by it: what the cost models leave out, such as the optimizer. `observatory predict --score` shows how far
steps are off, and how often the interval holds them.

Errors: the step is the run's median step, and parts of it are the shares of traced steps, taken of that step. In a
pipeline, traced communication includes the wait for a stage that still computes, so its parts come from the timed
bubble: what messages add is exposed communication, and the rest is compared with the predicted bubble.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Literal, TypeAlias

from bench.case import Case
from bench.machine.preflight import PARTS_JUDGED
from bench.results.estimate import Estimate
from bench.results.pipeline import AXIS
from bench.results.results import predicted_memory
from bench.store.hardware_baselines import PredictedStep, comparable_ceilings, predicted_step
from bench.store.history import History
from bench.store.links import MeasuredLinks, done_sweeps
from bench.store.summary import StoredPrediction, Summary
from collectors.files import in_words
from collectors.metrics import results
from collectors.metrics.metric import Metric
from collectors.metrics.probes import RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect, NetworkLevel
from workloads.options import microbatch_count
from workloads.pipeline_parallel.expected_step import expected_step

MODEL_VERSION = 1
"""Raised when the same history and case get another prediction, so that errors of two models are never mixed."""
COVERAGE = 0.8
"""Share of runs whose measured step the interval should hold."""
LEAST_RUNS = 3
"""Comparable calibration runs from which their scatter is known; below, the interval of the run itself stands in."""
_TIMES = ("step_s", "step_low_s", "step_high_s", "compute_s", "communication_s", "exposed_s", "bubble_s", "optimizer_s")
MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "other", "total")
_NO_OPTIMIZER = "the cost model of a step leaves the optimizer out"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run that has not begun. hardware: in the words of `Machine.hardware`."""

    case: Case
    hardware: str


def predict_run(case: Case, hardware: str, history: History | Absent) -> StoredPrediction | None:
    """Predict a run from the history as it is now; None for a probe.

    Whatever cannot be predicted is absent with its reason; so is all that depends on a cost model which fails.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    if case.model is None:
        return None
    predicted = StoredPrediction(model_version=MODEL_VERSION, predicted_ns=time.time_ns())
    step = history if isinstance(history, Absent) else predicted_step(PlannedRun(case=case, hardware=hardware), history)
    memory_bytes, absent = _predicted_memory(case)
    if isinstance(step, Absent) or isinstance(history, Absent):
        reason = step.reason if isinstance(step, Absent) else "the history does not answer"
        return replace(predicted, memory_bytes=memory_bytes, absent=dict.fromkeys(_TIMES, reason) | absent)
    assert step.parts is not None, "it was predicted just now"
    assert step.ceiling is not None, "a step rests on a ceiling"
    low_s, high_s, basis = _interval(case, hardware, step, history)
    calibrations = [step.ceiling.run, *(sweep.run for sweep in (step.links.sweeps if step.links else ()))]
    optimizer_s = step.parts.compute.optimizer_s
    if low_s is None:
        absent |= dict.fromkeys(("step_low_s", "step_high_s"), basis)
    if not optimizer_s:
        absent["optimizer_s"] = _NO_OPTIMIZER
    return replace(
        predicted,
        calibrations=tuple(dict.fromkeys(calibrations)),
        step_s=step.step_s,
        step_low_s=low_s,
        step_high_s=high_s,
        compute_s=step.parts.compute.step_s,
        communication_s=step.parts.communication_s,
        exposed_s=step.parts.exposed_s,
        bubble_s=step.parts.bubble_s,
        optimizer_s=optimizer_s or None,
        memory_bytes=memory_bytes,
        step_basis=step.basis,
        interval_basis=basis if low_s is not None else "",
        absent=absent,
    )


def not_predicted(error: Exception) -> StoredPrediction:
    """Return the prediction of a run whose cost models failed: all of it is absent, with the error."""
    names = (*_TIMES, *MEMORY_PARTS)
    reason = f"the prediction failed: {in_words(error)}"
    return StoredPrediction(
        model_version=MODEL_VERSION, predicted_ns=time.time_ns(), absent=dict.fromkeys(names, reason)
    )


def _predicted_memory(case: Case) -> tuple[dict[str, int], dict[str, str]]:
    """Return the bytes of the rank that holds most by part, and why parts are absent."""
    spec = case.spec()
    states = spec.states_not_covered(case) or spec.most_states(case)
    peak = (
        Absent(reason=f"the cost model follows at most {PARTS_JUDGED} microbatches")
        if microbatch_count(case) > PARTS_JUDGED
        else spec.peak(case)
    )
    sizes = predicted_memory(states, peak)
    absent = {}
    for part in MEMORY_PARTS:
        if part not in sizes:
            cause = states if part in MEMORY_PARTS[:3] else peak
            absent[part] = cause.reason if isinstance(cause, Absent) else "nothing is predicted of it"
    return sizes, absent


# The interval of a step: the scatter of what it rests on


def _interval(
    case: Case, hardware: str, step: PredictedStep, history: History
) -> tuple[float | None, float | None, str]:
    """Return the ends of the step's interval, and what they rest on; None, None and the reason where there are none.

    Each input alone is moved to the ends of its own interval, and the step predicted again. The inputs are independent,
    so the changes of the step's logarithm add up as squares do.
    """
    assert step.ceiling is not None, "a step rests on a ceiling"
    ceiling_spread, basis = _spread_of(
        [ceiling.flops_per_second for ceiling in comparable_ceilings(history, case, hardware)],
        step.ceiling.flops_per_second,
    )
    words = [f"ceilings: {basis}"]
    rate = step.ceiling.flops_per_second.median
    spreads = [] if ceiling_spread is None else [(rate * math.exp(ceiling_spread), rate / math.exp(ceiling_spread))]
    steps = [tuple(_step_s(case, step, each, step.links) for each in pair) for pair in spreads]
    for place, sweep in enumerate(step.links.sweeps if step.links else ()):
        assert step.links is not None, "it has sweeps"
        bandwidth, latency, basis = _link_spreads(sweep, step.links.collectives[place], history)
        words.append(f"{'links' if len(step.links.sweeps) == 1 else _level(sweep)}: {basis}")
        if bandwidth is not None or latency is not None:
            ends = (_moved(step.links, sweep, bandwidth or 0.0, latency or 0.0, sign) for sign in (1, -1))
            steps.append(tuple(_step_s(case, step, rate, links) for links in ends))
    if not steps:
        return None, None, f"no calibration has an interval: {'; '.join(words)}"
    faster = math.hypot(*(math.log(step.step_s / fast_s) for fast_s, _ in steps))
    slower = math.hypot(*(math.log(slow_s / step.step_s) for _, slow_s in steps))
    return step.step_s * math.exp(-faster), step.step_s * math.exp(slower), "; ".join(words)


def _step_s(case: Case, step: PredictedStep, rate: float, links: MeasuredLinks | None) -> float:
    """Return the step at other rates."""
    interconnect = Absent(reason="nothing is sent") if links is None else links.interconnect
    moved = expected_step(case, case.spec(), flops_per_second=rate, interconnect=interconnect)
    return step.step_s if isinstance(moved, Absent) else moved.step_s


def _spread_of(alike: Sequence[Estimate], used: Estimate) -> tuple[float | None, str]:
    """Return half the interval of the next run's logarithm, and what it rests on; None where nothing tells.

    alike: the same figure of comparable runs, with `used` among them.
    """
    if len(alike) >= LEAST_RUNS:
        from scipy.special import stdtrit  # Imported here: commands that only read predictions need no scipy.

        quantile = float(stdtrit(len(alike) - 1, (1 + COVERAGE) / 2))
        scatter = stdev(math.log(each.median) for each in alike) * math.sqrt(1 + 1 / len(alike))
        return quantile * scatter, f"scatter of {len(alike)} runs"
    if used.low is not None and used.high is not None:
        return math.log(used.high / used.low) / 2, "trials of one run"
    return None, "the only run has no interval"


def _link_spreads(sweep: Summary, collective: str, history: History) -> tuple[float | None, float | None, str]:
    """Return half the intervals of the logarithms of a link's bandwidth and latency, and what they rest on."""
    setting = _setting(sweep)
    alike = [run for run in done_sweeps(history) if _setting(run) == setting]
    spreads: list[float | None] = []
    basis = ""
    for metric in (RUN_LINK_BANDWIDTH, RUN_LINK_LATENCY_SECONDS):
        labels = {"collective": collective}
        of_runs = [
            each for run in alike for each in run.estimates if (each.metric, each.labels) == (metric.name, labels)
        ]
        used = [each for each in sweep.estimates if (each.metric, each.labels) == (metric.name, labels)]
        spread, words = _spread_of(of_runs, used[0]) if used else (None, "")
        spreads.append(spread)
        basis = basis or words
    return spreads[0], spreads[1], basis


def _setting(run: Summary) -> tuple[object, ...]:
    return run.case.ranks, run.case.nodes, run.case.backend, run.hardware


def _level(sweep: Summary) -> str:
    return "links inside a node" if sweep.case.nodes == 1 else "links across nodes"


def _moved(links: MeasuredLinks, sweep: Summary, bandwidth: float, latency: float, sign: int) -> MeasuredLinks:
    """Return the links with those that this sweep measured faster (sign 1) or slower (-1) by these logarithms."""
    levels = tuple(_moved_levels(links, sweep, bandwidth * sign, latency * sign))
    return replace(links, interconnect=Interconnect(levels=levels))


def _moved_levels(links: MeasuredLinks, sweep: Summary, bandwidth: float, latency: float) -> Iterator[NetworkLevel]:
    """Yield the levels in order; a sweep on one node measured the innermost level, and another the outermost."""
    levels = links.interconnect.levels
    measured = levels[0] if sweep.case.nodes == 1 else levels[-1]
    for level in levels:
        yield level.scaled(math.exp(bandwidth), math.exp(-latency)) if level is measured else level


# How far a prediction was off, part by part

Part: TypeAlias = Literal["step", "memory", "exposed communication", "bubble"]
"""What predictions are scored by."""
PARTS: tuple[Part, ...] = ("step", "memory", "exposed communication", "bubble")
_MESSAGES = ("transfer", "message")
"""The parts of a bubble that communication adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartError:
    """A part of a prediction. predicted, measured: in its unit; None where it is absent.

    of: what the error is relative to: the measured part itself, or the measured step for parts that may be near 0.
    is_inside: whether the interval of the prediction holds the measured value; None without an interval.
    why_absent: why nothing was predicted.
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
        """(predicted - measured) / of: above 0 where too much was predicted; None where a side is absent."""
        if self.predicted is None or self.measured is None or not self.of:
            return None
        return (self.predicted - self.measured) / self.of


def errors_of(summary: Summary) -> tuple[PartError, ...]:
    """Return the parts of the run's prediction, with what was measured; empty where none was stored, or no trial done.

    Times first, then memory. Parts that were neither predicted nor measured are left out.
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
            predicted=getattr(stored, field),
            measured=value_s,
            of=step_s,
            why_absent=stored.absent.get(field),
        )


def _exposed(summary: Summary) -> float | None:
    """Return the share of the step in which communication alone runs; None where it cannot be told from waiting.

    Of a pipeline, only where its stages are all that communicates.
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
    """Return the share of the step that is bubble for other reasons than messages."""
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
            predicted=predicted or None,  # A part of no bytes is left out, as it is of the measured ones.
            measured=measured,
            of=measured,
            why_absent=stored.absent.get(part),
        )


def _median(summary: Summary, metric: Metric, **labels: str) -> float | None:
    return next(
        (each.median for each in summary.estimates if (each.metric, each.labels) == (metric.name, labels)), None
    )
