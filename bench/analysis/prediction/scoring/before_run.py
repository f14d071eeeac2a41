"""Predicts a run before its first trial, like `observatory predict`, to be stored with the run.

The rates come from this hardware's history at that time (`bench.analysis.prediction.from_history`), so no result can
leak into a prediction. `observatory predict --score` shows the errors of the predictions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.analysis.prediction.forecast import StepForecast, step_forecast
from bench.analysis.prediction.from_history import Place, history_calibration
from bench.case import Case
from bench.errors import InfrastructureFailed
from bench.machine.preflight import PARTS_JUDGED
from bench.report.format import readable
from bench.results.results import predicted_memory
from bench.store.hardware_baselines import PredictedStep
from bench.store.history import History
from bench.store.prediction import MEMORY_PARTS, MODEL_VERSION
from bench.store.summary import StoredPrediction, Summary
from collectors.files import in_words
from workloads.cost_models.absent import Absent
from workloads.cost_models.step_time import StepTime
from workloads.options import microbatch_count

_TIMES = (
    "step_s",
    "step_low_s",
    "step_high_s",
    "compute_s",
    "communication_s",
    "exposed_s",
    "bubble_s",
    "optimizer_s",
    "host_s",
)
_NO_RANGE = "no calibration has more than one trial"


def predict_run(case: Case, hardware: str, history: History | Absent) -> StoredPrediction | None:
    """Predict a run from the current history; None for a probe. hardware: written like `Machine.hardware`.

    A figure that cannot be predicted is absent, with the reason.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    if case.model is None:
        return None
    memory_bytes, absent = _predicted_memory(case)
    predicted = StoredPrediction(
        model_version=MODEL_VERSION, predicted_ns=time.time_ns(), memory_bytes=memory_bytes, absent=absent
    )
    if isinstance(history, Absent):
        return replace(predicted, absent=dict.fromkeys(_TIMES, history.reason) | absent)
    forecast = _forecast(case, hardware, history)
    step, step_s = forecast.step, forecast.step_s
    if isinstance(step, Absent) or isinstance(step_s, Absent):
        reason = step.reason if isinstance(step, Absent) else "the step has no range"
        return replace(predicted, absent=dict.fromkeys(_TIMES, reason) | absent)
    has_range = step_s.low < step_s.high
    if not has_range:
        absent |= dict.fromkeys(("step_low_s", "step_high_s"), _NO_RANGE)
    optimizer_s = forecast.optimizer_s
    if isinstance(optimizer_s, Absent):
        absent["optimizer_s"] = optimizer_s.reason
    (host_s,) = (part.seconds for part in forecast.parts if part.name == "host")
    if isinstance(host_s, Absent):
        absent["host_s"] = host_s.reason
    return replace(
        predicted,
        calibrations=forecast.calibration.runs,
        step_s=step.step_s,
        step_low_s=step_s.low if has_range else None,
        step_high_s=step_s.high if has_range else None,
        compute_s=step.compute.forward_s + step.compute.backward_s - step.compute.host_s,
        communication_s=step.communication_s,
        exposed_s=step.exposed_s,
        bubble_s=step.bubble_s,
        optimizer_s=None if isinstance(optimizer_s, Absent) else optimizer_s.value,
        host_s=None if isinstance(host_s, Absent) else host_s.value,
        step_basis=_basis(forecast, step),
        interval_basis=step_s.origin if has_range else "",
        absent=absent,
    )


def not_predicted(error: Exception) -> StoredPrediction:
    """Return the prediction of a run whose cost models failed: every figure is absent, with the error."""
    names = (*_TIMES, *MEMORY_PARTS)
    reason = f"the prediction failed: {in_words(error)}"
    return StoredPrediction(
        model_version=MODEL_VERSION, predicted_ns=time.time_ns(), absent=dict.fromkeys(names, reason)
    )


def predicted_step(case: Case, hardware: str, history: History) -> PredictedStep | Absent:
    """Predict a step from the current history.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    forecast = _forecast(case, hardware, history)
    if isinstance(forecast.step, Absent):
        return forecast.step
    return PredictedStep(
        step_s=forecast.step.step_s,
        basis=_basis(forecast, forecast.step),
        has_host=forecast.calibration.pass_host is not None,
    )


def predicted_steps(summaries: Sequence[Summary], history: History | Absent) -> Mapping[str, PredictedStep | Absent]:
    """Return the predicted step of each training run with a complete trial, by the run's id.

    It is the step stored before the run's first trial, or else one predicted now.
    history: source of the rates, or why it cannot be read.
    """
    steps: dict[str, PredictedStep | Absent] = {}
    for summary in summaries:
        if summary.case.model is None or not summary.trials_done:
            continue
        stored = summary.prediction
        if stored is not None and stored.step_s is not None:
            steps[summary.run] = PredictedStep(
                step_s=stored.step_s, basis=stored.step_basis, has_host=stored.host_s is not None
            )
            continue
        try:
            steps[summary.run] = (
                history if isinstance(history, Absent) else predicted_step(summary.case, summary.hardware, history)
            )
        except InfrastructureFailed as error:
            steps[summary.run] = Absent(reason=str(error))
    return steps


def _forecast(case: Case, hardware: str, history: History) -> StepForecast:
    return step_forecast(case, history_calibration(Place(case=case, hardware=hardware), history))


def _basis(forecast: StepForecast, step: StepTime) -> str:
    """Return the parts of a step and the basis of its rates, for people."""
    compute = step.compute
    parts = [f"{_words(compute.forward_s + compute.backward_s - compute.host_s)} of computing"]
    if compute.optimizer_s:
        parts.append(f"{_words(compute.optimizer_s)} of optimizer")
    if compute.host_s:
        parts.append(f"{_words(compute.host_s)} of host")
    if step.bubble_s > 0:
        parts.append(f"{_words(step.bubble_s)} of bubble")
    if step.communication_s:
        parts.append(f"{_words(step.exposed_s)} of {_words(step.communication_s)} of communication exposed")
    return "; ".join((", ".join(parts), *forecast.rests_on))


def _words(elapsed_s: float) -> str:
    return readable(1e9 * elapsed_s, "ns")


def _predicted_memory(case: Case) -> tuple[dict[str, int], dict[str, str]]:
    """Return the bytes of the rank that holds most, by part, and why other parts are absent."""
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
