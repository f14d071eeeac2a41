"""The Estimates of a run from its trials, with a reason for each one that is absent.

`findings` reads the logs of a run's folder, a training's or a probe's; `results_of` judges a training's trials;
`memory_estimates` sets measured memory beside what the cost models predict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.analysis.estimate import Estimate, estimate, estimate_share
from bench.analysis.mfu import Absent, Mfu, Peak, flops_per_second_per_device, mfu, peak_of
from bench.analysis.pipeline import AXIS, pipeline_estimates
from bench.analysis.probes import read_probe_trials, results_of_probe
from bench.analysis.trials import Traced, Trial, read_trials
from bench.case import Case
from collectors.metrics import results
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.memory import paper_activation_bytes
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.terms import NotCovered, States
from workloads.options import local_batch, microbatch, parts, peak_not_covered
from workloads.pipeline_parallel.memory import activations_by_stage
from workloads.pipeline_parallel.spec import counts
from workloads.spec import DATA_AXES

# A rank's memory: predicted beside measured

STATE_PARTS = ("parameters", "gradients", "optimizer")
PEAK_PARTS = ("activations", "other", "total")
UNEXPLAINED = "unexplained"
TOTALS = ("live_tensors", "allocator")
"""Accounts of a trial's peak that count tensors alone; the process's resident memory also holds libraries."""


class MeasuredMemory(Protocol):
    """The memory that one trial measured, the most of any rank; see `bench.analysis.trials.Trial`."""

    @property
    def state_bytes(self) -> Mapping[str, float]: ...
    @property
    def activation_bytes(self) -> float | None: ...
    @property
    def other_bytes(self) -> float | None: ...
    @property
    def peak_bytes(self) -> Mapping[str, float]: ...


def memory_estimates(
    trials: Sequence[MeasuredMemory],
    *,
    states: States | NotCovered,
    paper: States,
    paper_activations: int | NotCovered,
    peak: Prediction | NotCovered,
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the bytes of each part of memory by each account, predicted over measured, and notes of what is absent.

    States are taken after a step; activations and total at the step's peak, when some gradients may not exist yet, so
    the total is not the sum of the parts. Each part is that of the rank that has most of it. A part of no bytes is left
    out of its account.
    states, peak: predicted for this implementation.
    paper, paper_activations: predicted by the papers' formulas for ZeRO's states and a GPT's activations.
    The part `other` is what outlives a step and is no state, such as compression's error feedback; `unexplained` is the
    measured rest of it that no cost model predicts: a leak, perhaps.
    """
    predicted = {} if isinstance(states, NotCovered) else _states(states)
    if isinstance(peak, Prediction):
        predicted |= {"activations": peak.activations_bytes, "other": peak.other_bytes, "total": peak.total_bytes}
    measured = {part: _measured(trials, part) for part in (*STATE_PARTS, *PEAK_PARTS)}
    measured[UNEXPLAINED] = _unexplained(measured["other"], peak)
    by_paper = _states(paper)
    if not isinstance(paper_activations, NotCovered):
        by_paper["activations"] = paper_activations
    accounts: dict[str, Mapping[str, Sequence[float]]] = {
        "paper": {part: [size_bytes] * len(trials) for part, size_bytes in by_paper.items()},
        "implementation": {part: [size_bytes] * len(trials) for part, size_bytes in predicted.items()},
        "measured": measured,
    }
    found = [
        estimate(RUN_MEMORY_ACCOUNT_BYTES, values, part=part, account=account)
        for part in measured
        for account, by_part in accounts.items()
        if any(values := by_part.get(part, []))
    ]
    found += [
        estimate(RUN_MEMORY_PREDICTED_RATIO, [predicted[part] / value for value in values], part=part)
        for part, values in measured.items()
        if values and predicted.get(part)
    ]
    return tuple(found), _notes(measured, states, peak)


def _unexplained(others: Sequence[float], peak: Prediction | NotCovered) -> list[float]:
    """Return the bytes of each trial that outlive a step and that the cost model does not explain.

    Empty where it explains all of them in one trial, or does not cover the run.
    """
    if isinstance(peak, NotCovered):
        return []
    unexplained = [max(0.0, other - peak.other_bytes) for other in others]
    return unexplained if all(unexplained) else []


def _states(states: States) -> dict[str, int]:
    return {
        "parameters": states.parameters_bytes,
        "gradients": states.gradients_bytes,
        "optimizer": states.optimizer_bytes,
    }


def _measured(trials: Sequence[MeasuredMemory], part: str) -> list[float]:
    """Return the part's bytes in each trial; empty where they are unknown or 0 in a trial."""
    values = [_measured_in(trial, part) for trial in trials]
    known = [value for value in values if value]
    return known if len(known) == len(values) else []


def _measured_in(trial: MeasuredMemory, part: str) -> float | None:
    if part == "activations":
        return trial.activation_bytes
    if part == "other":
        return trial.other_bytes
    if part == "total":
        return next((trial.peak_bytes[account] for account in TOTALS if account in trial.peak_bytes), None)
    return trial.state_bytes.get(part)


def _notes(
    measured: Mapping[str, Sequence[float]], states: States | NotCovered, peak: Prediction | NotCovered
) -> tuple[str, ...]:
    unpredicted = (("states", states), ("activations and total memory", peak))
    notes = [f"predicted {what} are absent: {law.reason}" for what, law in unpredicted if isinstance(law, NotCovered)]
    if missing := [part for part in STATE_PARTS if not measured[part]]:
        notes.append(
            f"measured {', '.join(missing)} are absent: no rank told of bytes of them after its measured steps"
        )
    if not measured["activations"]:
        notes.append("measured activations are absent: live tensors were not tracked, or none lived at their peak")
    return tuple(notes)


def results_of(
    case: Case, trials: Sequence[Trial], peak: Peak | Absent
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return all Estimates of a training run, and what is absent with its reason."""
    if not trials:
        return (), ("no trial was completed: all figures are absent",)
    times_s = [trial.mean_step_s for trial in trials]
    tokens_per_second = [case.shape.tokens / step_s for step_s in times_s]
    found = [
        estimate(results.RUN_STEP_SECONDS, [trial.step_s for trial in trials]),
        estimate(results.RUN_MEAN_STEP_SECONDS, times_s),
        estimate(results.RUN_TOKENS_PER_SECOND, tokens_per_second),
        estimate(results.RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / case.ranks for rate in tokens_per_second]),
        estimate(
            results.RUN_FLOPS, [flops_per_second_per_device(case.shape, case.ranks, step_s) for step_s in times_s]
        ),
    ]
    notes = [f"intervals are absent: {found[0].why_no_interval}"] if found[0].why_no_interval else []
    shares = [mfu(case.shape, case.ranks, step_s, peak) for step_s in times_s]
    if refused := [share.reason for share in shares if isinstance(share, Absent)]:
        notes.append(f"MFU is absent: {refused[0]}")
    else:
        found.append(estimate(results.RUN_MFU, [share.ratio for share in shares if isinstance(share, Mfu)]))
    found += _phases(trials)
    found += _data_wait(trials)
    found += _memory(trials)
    spec = case.spec()
    accounts, absent = memory_estimates(
        trials,
        states=spec.states_not_covered(case) or spec.most_states(case),
        paper=spec.paper_states(case),
        paper_activations=_paper_activations(case),
        peak=spec.peak(case),
    )
    found += accounts
    notes += absent
    pipeline = spec.pipeline(case)
    if pipeline is not None:
        accounts, absent = pipeline_estimates(pipeline, spec.mesh(case), trials, _stage_activations(case, pipeline))
        found += accounts
        notes += absent
    found.append(estimate_share(results.RUN_OBSERVER_RATIO, [trial.observer_ratio for trial in trials]))
    if any(trial.traced is None for trial in trials):
        notes.append("the division of a step and counted traffic are absent: no step was traced; --trace-steps 3 does")
    found += _traced(trials)
    found += _attention_pairs(case, trials)
    found += _traffic(case, trials)
    losses = [trial.loss for trial in trials if trial.loss is not None]
    if len(losses) == len(trials) and min(losses) > 0:
        found.append(estimate(results.RUN_LOSS, losses))
    else:
        notes.append("the loss is absent: the last measured step has none that is positive and finite")
    return tuple(found), tuple(notes)


def _paper_activations(case: Case) -> int | NotCovered:
    spec = case.spec()
    if (covered := spec.paper_activations(case)) is not None:
        return covered
    size = microbatch(case, spec.data_ranks(case))
    return paper_activation_bytes(size.shape, size.sequences, size.checkpoint)


def _stage_activations(case: Case, pipeline: Pipeline) -> Sequence[int] | NotCovered:
    """Return the activation bytes expected of each stage; not covered where another axis shards a stage's tensors."""
    spec = case.spec()
    absent = peak_not_covered(case) or spec.states_not_covered(case)
    if absent is not None:
        return absent
    if others := {axis for axis, size in spec.mesh(case).items() if size > 1} - {AXIS, *DATA_AXES}:
        return NotCovered(
            reason=f"no law says what the axis {' and '.join(sorted(others))} leaves of a stage's tensors"
        )
    return activations_by_stage(pipeline, microbatch(case, spec.data_ranks(case)), counts(case, pipeline.stages))


def _phases(trials: Sequence[Trial]) -> list[Estimate]:
    return [
        estimate(results.RUN_PHASE_SECONDS, [trial.phases_s[phase] for trial in trials], phase=phase)
        for phase in trials[0].phases_s
        if all(trial.phases_s.get(phase, 0) > 0 for trial in trials)
    ]


def _data_wait(trials: Sequence[Trial]) -> list[Estimate]:
    waits_s = [trial.data_wait_s for trial in trials if trial.data_wait_s]
    return [estimate(results.RUN_DATA_WAIT_SECONDS, waits_s)] if len(waits_s) == len(trials) else []


def _memory(trials: Sequence[Trial]) -> list[Estimate]:
    return [
        estimate(results.RUN_PEAK_MEMORY_BYTES, [trial.peak_bytes[account] for trial in trials], account=account)
        for account in trials[0].peak_bytes
        if all(account in trial.peak_bytes for trial in trials)
    ]


def _traced(trials: Sequence[Trial]) -> list[Estimate]:
    traced = [trial.traced for trial in trials if trial.traced is not None]
    if len(traced) < len(trials):
        return []
    steps_s = [one.step_s for one in traced if one.step_s is not None]
    found = [estimate(results.RUN_TRACED_STEP_SECONDS, steps_s)] if len(steps_s) == len(traced) else []
    found += [
        estimate_share(results.RUN_TRACED_RATIO, [one.shares[part] for one in traced], part=part)
        for part in traced[0].shares
        if all(part in one.shares for one in traced)
    ]
    overlaps = [one.overlap_ratio for one in traced if one.overlap_ratio is not None]
    if len(overlaps) == len(traced):
        found.append(estimate_share(results.RUN_OVERLAP_RATIO, overlaps))
    found += _collective_overlaps(traced)
    communications_s = [one.communication_s for one in traced if one.communication_s is not None]
    if len(communications_s) == len(traced) and min(communications_s) > 0:
        found.append(estimate(results.RUN_COMMUNICATION_SECONDS, communications_s, account="traced"))
    return found


def _collective_overlaps(traced: Sequence[Traced]) -> Iterator[Estimate]:
    """Yield the overlap of each collective if there are several: a lone one's is that of all communication."""
    names = [
        name
        for name in traced[0].collective_overlap_ratios
        if all(name in one.collective_overlap_ratios for one in traced)
    ]
    for name in names if len(names) > 1 else ():
        ratios = [one.collective_overlap_ratios[name] for one in traced]
        yield estimate_share(results.RUN_COLLECTIVE_OVERLAP_RATIO, ratios, collective=name)


def _attention_pairs(case: Case, trials: Sequence[Trial]) -> Iterator[Estimate]:
    """Yield the pairs of the ranks that attend least and most: counted, and expected from the layout."""
    counted = [one.traced.attention_pairs for one in trials if one.traced is not None and one.traced.attention_pairs]
    expected = case.spec().attention_pairs(case)
    for place, extreme in enumerate(("least", "most")):
        if len(counted) == len(trials):
            values = [pairs[place] for pairs in counted]
            yield estimate(results.RUN_ATTENTION_PAIRS, values, extreme=extreme, account="counted")
        if expected:
            law = (min(expected), max(expected))[place]
            yield estimate(results.RUN_ATTENTION_PAIRS, [law] * len(trials), extreme=extreme, account="expected")


def _traffic(case: Case, trials: Sequence[Trial]) -> list[Estimate]:
    """Return the bytes a rank hands to each collective over each mesh axis: expected by the cost model, and counted."""
    accounts: dict[tuple[str, str, str], list[float]] = {
        (name, axis, "expected"): [float(total)] * len(trials) for (name, axis), total in _expected(case) if total
    }
    for name, axis in {place for trial in trials if trial.traced is not None for place in trial.traced.payload_bytes}:
        counted = [trial.traced.payload_bytes.get((name, axis), 0.0) if trial.traced else 0.0 for trial in trials]
        if all(counted):
            accounts[name, axis, "counted"] = counted
    return [
        estimate(results.RUN_PAYLOAD_BYTES, accounts[name, axis, account], collective=name, axis=axis, account=account)
        for name, axis, account in sorted(accounts, key=lambda place: (place[:2], place[2] == "counted"))
    ]


def _expected(case: Case) -> Iterator[tuple[tuple[str, str], int]]:
    transfers = case.spec().transfers(case)
    for axis in {transfer.axis for transfer in transfers}:
        over_axis = [transfer for transfer in transfers if transfer.axis == axis]
        for name, total in recorded_bytes(over_axis, case.backend).items():
            yield (name, axis), total


# Reading and judging the logs of a run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that a run's own logs tell of it; see `bench.runs.summary.Summary` for the fields."""

    trials_done: int
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...]
    effective_batch: dict[str, int] = field(default_factory=dict)
    peak: Peak | None = None
    step_spread_ratio: float | None = None


def findings(case: Case, folder: Path, device_name: str | None) -> Findings:
    """Read the logs of a run's folder and judge them.

    device_name: of the GPU, as its driver gives it; None for a CPU.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    return _of_probe(case, folder) if case.model is None else _of_training(case, folder, device_name)


def _of_probe(case: Case, folder: Path) -> Findings:
    logs = read_probe_trials(folder, case.ranks)
    estimates, notes = results_of_probe(case, logs)
    return Findings(trials_done=len(logs.trials), estimates=estimates, notes=(*logs.notes, *notes))


def _of_training(case: Case, folder: Path, device_name: str | None) -> Findings:
    logs = read_trials(folder, case.ranks)
    peak = peak_of(device_name, case.precision)
    estimates, notes = results_of(case, logs.trials, peak)
    spec = case.spec()
    data_ranks = spec.data_ranks(case)
    return Findings(
        trials_done=len(logs.trials),
        estimates=estimates,
        notes=(*spec.notes(case), *logs.notes, *notes),
        effective_batch={
            "local": local_batch(case, data_ranks),
            "data_ranks": data_ranks,
            "parts": parts(case),
            "total": case.shape.batch,
        },
        peak=peak if isinstance(peak, Peak) else None,
        step_spread_ratio=max((trial.step_spread_ratio for trial in logs.trials), default=None),
    )
