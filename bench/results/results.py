"""The Estimates of a run from its trials, with a reason for each one that is absent.

`findings` reads the logs of a run's folder, for training or a probe; `results_of` computes the estimates of a
training's trials; `memory_estimates` compares measured memory with the cost models' predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.case import Case
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.results.mfu import Peak, flops_per_second_per_device, mfu, peak_of
from bench.results.pipeline import AXIS, pipeline_estimates
from bench.results.probes import read_probe_trials, results_of_probe
from bench.results.trials import Power, Saves, Trial, read_trials
from collectors.metrics import results
from collectors.metrics.metric import Metric
from collectors.metrics.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO
from workloads.core.precision_options import precision_notes
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import recorded_bytes
from workloads.cost_models.memory import paper_activation_bytes
from workloads.cost_models.peak_memory import Prediction
from workloads.cost_models.schedules import Pipeline
from workloads.cost_models.terms import States
from workloads.options import local_batch, microbatch, microbatch_count, peak_not_covered
from workloads.pipeline_parallel.memory import activations_by_stage
from workloads.pipeline_parallel.spec import counts
from workloads.spec import DATA_AXES


def _above_0(values: Sequence[float | None]) -> list[float]:
    """Return the value of each trial; empty if a trial has none, or one that is not positive."""
    positive = [value for value in values if value is not None and value > 0]
    return positive if len(positive) == len(values) else []


def _positive(metric: Metric, values: Sequence[float | None], **labels: str) -> Iterator[Estimate]:
    """Yield the estimate if each trial has a positive value."""
    if positive := _above_0(values):
        yield estimate(metric, positive, **labels)


def _share(metric: Metric, values: Sequence[float | None], **labels: str) -> Iterator[Estimate]:
    """Yield the estimate of a share if each trial has a value."""
    shares = [value for value in values if value is not None]
    if len(shares) == len(values):
        yield estimate_share(metric, shares, **labels)


# A rank's memory: predicted and measured

STATE_PARTS = ("parameters", "gradients", "optimizer")
PEAK_PARTS = ("activations", "other", "total")
TOTALS = ("live_tensors", "allocator")
"""Accounts of a trial's peak that count only tensors; the process's resident memory also contains libraries."""


def memory_estimates(
    trials: Sequence[Trial],
    *,
    states: States | Absent,
    paper: States,
    paper_activations: int | Absent,
    peak: Prediction | Absent,
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the bytes of memory by part and account, predicted-to-measured ratios, and notes on what is absent.

    States are measured after a step; activations and total at the step's peak, when some gradients may not exist yet,
    so that the total is not the sum of the parts. Each value is the largest of any rank, except that activations and
    other belong to the rank with the largest total. A part of 0 bytes is left out of its account.
    states, peak: predicted for this implementation.
    paper, paper_activations: predicted by the papers' formulas for ZeRO's states and a GPT's activations.
    The part `other` is what outlives a step and is not a state, for example compression's error feedback. `unexplained`
    is the measured part of it that no cost model predicts: perhaps a leak.
    """
    predicted = predicted_memory(states, peak)
    by_paper = _by_part(paper)
    if not isinstance(paper_activations, Absent):
        by_paper["activations"] = paper_activations
    measured = {part: _above_0([_measured(trial, part) for trial in trials]) for part in (*STATE_PARTS, *PEAK_PARTS)}
    explained_bytes = float("inf") if isinstance(peak, Absent) else peak.other_bytes
    measured["unexplained"] = _above_0([other - explained_bytes for other in measured["other"]])
    accounts: dict[str, Mapping[str, Sequence[float]]] = {
        "paper": {part: [size_bytes] * len(trials) for part, size_bytes in by_paper.items()},
        "implementation": {part: [size_bytes] * len(trials) for part, size_bytes in predicted.items()},
        "measured": measured,
    }
    estimates = [
        estimate(RUN_MEMORY_ACCOUNT_BYTES, values, part=part, account=account)
        for part in measured
        for account, by_part in accounts.items()
        if any(values := by_part.get(part, []))
    ]
    estimates += [
        estimate(RUN_MEMORY_PREDICTED_RATIO, [predicted[part] / value for value in values], part=part)
        for part, values in measured.items()
        if values and predicted.get(part)
    ]
    notes = [
        f"predicted {what} are absent: {prediction.reason}"
        for what, prediction in (("states", states), ("activations and total memory", peak))
        if isinstance(prediction, Absent)
    ]
    if missing := [part for part in STATE_PARTS if not measured[part]]:
        notes.append(f"measured {', '.join(missing)} are absent: no rank reported their bytes after its measured steps")
    if not measured["activations"]:
        notes.append("measured activations are absent: live tensors were not tracked, or none lived at their peak")
    return tuple(estimates), tuple(notes)


def predicted_memory(states: States | Absent, peak: Prediction | Absent) -> dict[str, int]:
    """Return the bytes that this implementation's cost models predict for each part of a rank's memory."""
    predicted = {} if isinstance(states, Absent) else _by_part(states)
    if isinstance(peak, Prediction):
        predicted |= {"activations": peak.activations_bytes, "other": peak.other_bytes, "total": peak.total_bytes}
    return predicted


def _by_part(states: States) -> dict[str, int]:
    return {part: getattr(states, f"{part}_bytes") for part in STATE_PARTS}


def _measured(trial: Trial, part: str) -> float | None:
    match part:
        case "activations":
            return trial.activation_bytes
        case "other":
            return trial.other_bytes
        case "total":
            return next((trial.peak_bytes[account] for account in TOTALS if account in trial.peak_bytes), None)
        case _:
            return trial.state_bytes.get(part)


# A training run's estimates from its trials


def results_of(
    case: Case, trials: Sequence[Trial], peak: Peak | Absent
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return all Estimates of a training run, and notes on what is absent."""
    if not trials:
        return (), ("no trial was completed: all figures are absent",)
    shape, spec = case.shape, case.spec()
    times_s = [trial.mean_step_s for trial in trials]
    rates = [shape.tokens / step_s for step_s in times_s]
    flops = [flops_per_second_per_device(shape, case.ranks, step_s) for step_s in times_s]
    estimates = [
        estimate(results.RUN_STEP_SECONDS, [trial.step_s for trial in trials]),
        estimate(results.RUN_MEAN_STEP_SECONDS, times_s),
        estimate(results.RUN_TOKENS_PER_SECOND, rates),
        estimate(results.RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / case.ranks for rate in rates]),
        estimate(results.RUN_FLOPS, flops),
    ]
    notes = [f"intervals are absent: {estimates[0].why_no_interval}"] if estimates[0].why_no_interval else []
    shares = [mfu(shape, case.ranks, step_s, peak) for step_s in times_s]
    if refused := [share.reason for share in shares if isinstance(share, Absent)]:
        notes.append(f"MFU is absent: {refused[0]}")
    estimates += _positive(results.RUN_MFU, [None if isinstance(share, Absent) else share for share in shares])
    for phase in trials[0].phases_s:
        estimates += _positive(results.RUN_PHASE_SECONDS, [trial.phases_s.get(phase) for trial in trials], phase=phase)
    estimates += _positive(results.RUN_DATA_WAIT_SECONDS, [trial.data_wait_s for trial in trials])
    for account in trials[0].peak_bytes:
        sizes = [trial.peak_bytes.get(account) for trial in trials]
        estimates += _positive(results.RUN_PEAK_MEMORY_BYTES, sizes, account=account)
    paper_activations = spec.paper_activations(case)
    if paper_activations is None:
        size = microbatch(case, spec.data_ranks(case))
        paper_activations = paper_activation_bytes(
            size.shape, size.sequences, size.checkpoint, checkpoint_every=size.checkpoint_every
        )
    accounts, absent = memory_estimates(
        trials,
        states=spec.states_not_covered(case) or spec.most_states(case),
        paper=spec.paper_states(case),
        paper_activations=paper_activations,
        peak=spec.peak(case),
    )
    estimates += accounts
    notes += absent
    pipeline = spec.pipeline(case)
    if pipeline is not None:
        accounts, absent = pipeline_estimates(
            pipeline,
            spec.mesh(case),
            [trial.timed_steps for trial in trials],
            [trial.stage_activation_bytes for trial in trials],
            _stage_activations(case, pipeline),
        )
        estimates += accounts
        notes += absent
    estimates.append(estimate_share(results.RUN_OBSERVER_RATIO, [trial.observer_ratio for trial in trials]))
    powers = [trial.power for trial in trials]
    if reasons := [power.reason for power in powers if isinstance(power, Absent)]:
        notes.append(f"power and energy are absent: {reasons[0]}")
    else:
        estimates += _energy(shape.tokens, times_s, [power for power in powers if isinstance(power, Power)])
    if any(trial.traced is None for trial in trials):
        notes.append("the division of a step and counted traffic are absent: no step was traced; use --trace-steps 3")
    estimates += _saved([trial.saves for trial in trials])
    estimates += _traced(trials)
    estimates += _attention_pairs(case, trials)
    estimates += _traffic(case, trials)
    if loss := list(_positive(results.RUN_LOSS, [trial.loss for trial in trials])):
        estimates += loss
    else:
        notes.append("the loss is absent: the last measured step has none that is positive and finite")
    return tuple(estimates), tuple(notes)


def _stage_activations(case: Case, pipeline: Pipeline) -> Sequence[int] | Absent:
    """Return the predicted activation bytes of each stage; absent if another axis shards a stage's tensors."""
    spec = case.spec()
    absent = peak_not_covered(case) or spec.states_not_covered(case)
    if absent is not None:
        return absent
    if others := {axis for axis, size in spec.mesh(case).items() if size > 1} - {AXIS, *DATA_AXES}:
        axes = " and ".join(sorted(others))
        return Absent(reason=f"no cost model predicts how the axis {axes} divides a stage's tensors")
    return activations_by_stage(pipeline, microbatch(case, spec.data_ranks(case)), counts(case, pipeline.stages))


def _energy(step_tokens: int, steps_s: Sequence[float], powers: Sequence[Power]) -> Iterator[Estimate]:
    """Yield power per GPU and energy per token. steps_s: the mean step of each trial."""
    yield from _positive(results.RUN_GPU_POWER_WATTS, [power.watts / power.gpus for power in powers])
    of_a_token = [power.watts * step_s / step_tokens for power, step_s in zip(powers, steps_s, strict=True)]
    yield from _positive(results.RUN_TOKEN_ENERGY_JOULES, of_a_token)


def _saved(trials: Sequence[Saves | None]) -> Iterator[Estimate]:
    """Yield the figures of a run's checkpoints; nothing if a trial saved none."""
    saves = [saved for saved in trials if saved is not None]
    if not saves or len(saves) < len(trials):
        return
    yield estimate(results.RUN_CHECKPOINT_STALL_SECONDS, [each.stall_s for each in saves])
    yield estimate(results.RUN_CHECKPOINT_WRITE_SECONDS, [each.write_s for each in saves])
    yield estimate(results.RUN_CHECKPOINT_RANK_BYTES, [each.rank_bytes for each in saves])
    rates = [each.total_bytes / each.write_s for each in saves]
    yield estimate(results.RUN_CHECKPOINT_BYTES_PER_SECOND, rates)
    steps_s = [each.step_s for each in saves if each.step_s is not None]
    if len(steps_s) == len(saves):
        yield estimate(results.RUN_SAVING_STEP_SECONDS, steps_s)


def _traced(trials: Sequence[Trial]) -> Iterator[Estimate]:
    """Yield the division of traced steps; nothing if a trial traced none."""
    traced = [trial.traced for trial in trials if trial.traced is not None]
    if len(traced) < len(trials):
        return
    yield from _positive(results.RUN_TRACED_STEP_SECONDS, [window.step_s for window in traced])
    for part in traced[0].shares:
        yield from _share(results.RUN_TRACED_RATIO, [window.shares.get(part) for window in traced], part=part)
    yield from _share(results.RUN_OVERLAP_RATIO, [window.overlap_ratio for window in traced])
    # The overlap of a single collective equals that of all communication.
    overlaps = [window.collective_overlap_ratios for window in traced]
    names = [name for name in overlaps[0] if all(name in ratios for ratios in overlaps)]
    for name in names if len(names) > 1 else ():
        values = [ratios[name] for ratios in overlaps]
        yield estimate_share(results.RUN_COLLECTIVE_OVERLAP_RATIO, values, collective=name)
    times_s = [window.communication_s for window in traced]
    yield from _positive(results.RUN_COMMUNICATION_SECONDS, times_s, account="traced")


def _attention_pairs(case: Case, trials: Sequence[Trial]) -> Iterator[Estimate]:
    """Yield the attention pairs of the ranks with the fewest and the most: counted, and predicted from the layout."""
    pairs_of_trials = [
        trial.traced.attention_pairs for trial in trials if trial.traced is not None and trial.traced.attention_pairs
    ]
    predicted = case.spec().attention_pairs(case)
    for place, extreme in enumerate(("least", "most")):
        if len(pairs_of_trials) == len(trials):
            values = [pairs[place] for pairs in pairs_of_trials]
            yield estimate(results.RUN_ATTENTION_PAIRS, values, extreme=extreme, account="counted")
        if predicted:
            pairs = (min(predicted), max(predicted))[place]
            yield estimate(results.RUN_ATTENTION_PAIRS, [pairs] * len(trials), extreme=extreme, account="expected")


def _traffic(case: Case, trials: Sequence[Trial]) -> Iterator[Estimate]:
    """Yield the bytes that a rank hands to each collective over each mesh axis: predicted and counted."""
    transfers = case.spec().transfers(case)
    values: dict[tuple[str, str, str], Sequence[float | None]] = {}
    for axis in {transfer.axis for transfer in transfers}:
        over_axis = [transfer for transfer in transfers if transfer.axis == axis]
        for collective, total in recorded_bytes(over_axis, case.backend).items():
            values[collective, axis, "expected"] = [float(total)] * len(trials)
    traced = [trial.traced.payload_bytes if trial.traced else {} for trial in trials]
    for name, axis in {place for payload_bytes in traced for place in payload_bytes}:
        values[name, axis, "counted"] = [payload_bytes.get((name, axis)) for payload_bytes in traced]
    for name, axis, account in sorted(values, key=lambda place: (place[:2], place[2] == "counted")):
        sizes = values[name, axis, account]
        yield from _positive(results.RUN_PAYLOAD_BYTES, sizes, collective=name, axis=axis, account=account)


# Reading and judging the logs of a run's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything that a run's own logs show about it; see `bench.store.summary.Summary` for the fields."""

    trials_done: int
    estimates: tuple[Estimate, ...]
    notes: tuple[str, ...]
    effective_batch: dict[str, int] = field(default_factory=dict)
    peak: Peak | None = None
    step_spreads: tuple[float, ...] = ()


def findings(case: Case, folder: Path, device_name: str | None) -> Findings:
    """Read the logs of a run's folder and compute the results.

    device_name: of the GPU, as the driver names it; None for a CPU.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    if case.model is None:
        probed = read_probe_trials(folder, case.ranks)
        estimates, notes = results_of_probe(case, probed)
        return Findings(trials_done=len(probed.trials), estimates=estimates, notes=(*probed.notes, *notes))
    logs = read_trials(folder, case.ranks)
    peak = peak_of(device_name, case.precision)
    estimates, notes = results_of(case, logs.trials, peak)
    spec = case.spec()
    data_ranks = spec.data_ranks(case)
    return Findings(
        trials_done=len(logs.trials),
        estimates=estimates,
        notes=(*spec.notes(case), *precision_notes(case), *logs.notes, *notes),
        effective_batch={
            "local": local_batch(case, data_ranks),
            "data_ranks": data_ranks,
            "parts": microbatch_count(case),
            "total": case.shape.batch,
        },
        peak=peak if isinstance(peak, Peak) else None,
        step_spreads=tuple(trial.step_spread_ratio for trial in logs.trials),
    )
