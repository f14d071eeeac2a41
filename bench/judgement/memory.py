"""What a rank's memory was expected to be beside what it was: accounts, and predicted over measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from bench.judgement.estimate import Estimate, estimate
from collectors.catalogue.results import RUN_MEMORY_ACCOUNT_BYTES, RUN_MEMORY_PREDICTED_RATIO
from workloads.laws.live_tensors import Prediction
from workloads.laws.terms import NotCovered, States

STATE_PARTS = ("parameters", "gradients", "optimizer")
PEAK_PARTS = ("activations", "other", "total")
UNEXPLAINED = "unexplained"
TOTALS = ("live_tensors", "allocator")
"""Accounts of a trial's peak that count tensors alone; that of the process also holds libraries."""


class MeasuredMemory(Protocol):
    """What one trial measured, the most of any rank; see `bench.judgement.trials.Trial`."""

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
    """Each part by each account that knows it, predicted over measured where both do, and notes of what is absent.

    States are those after a step; activations and total are those at its peak, where not all gradients need be there,
    so that the total is not the sum of the parts.
    paper, paper_activations: by the papers' accounts of ZeRO's states and of a GPT's activations.
    states, peak: by this implementation's account; each part is that of the rank that has most of it, as is measured.
    other: what outlives a step and is no state, such as compression's error feedback. unexplained: what of it, as is
    measured, no law knows: a leak, perhaps. A part of no bytes is left out of its account.
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
    """In each trial, what outlives a step beside what the law knows; empty where it knows all in one, or covers
    nothing."""
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
    """The part's bytes in each trial; empty where a trial does not know them, or has none."""
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
