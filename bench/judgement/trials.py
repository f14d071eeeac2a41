"""From the logs of a run's ranks to one value per metric and trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from bench.judgement.estimate import spread
from bench.judgement.traced import Traced, join_traced
from collectors.catalogue.memory import LIVE_TENSOR_BYTES, PEAK_BYTES, RESIDENT_BYTES
from collectors.catalogue.step import LOSS, OBSERVER_SECONDS, PHASE_SECONDS, PHASES, STEP_SECONDS
from collectors.metric import Metric, Sample
from collectors.sample_log import Contents, Ended, Note, Reading, read

MEMORY_ACCOUNTS = {"allocator": PEAK_BYTES, "live_tensors": LIVE_TENSOR_BYTES, "resident": RESIDENT_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one complete trial says, joined over its ranks.

    step_s: the slowest rank's median step. step_spread_ratio: that rank's spread of steps (see `estimate.spread`).
    mean_step_s: time of all measured steps of the rank that took longest, divided by their number. Rates follow from
    this one: an input that stutters leaves the median alone.
    phases_s: per phase, the mean over the steps of the rank that spent most in it.
    peak_bytes: per account, the most that any rank held. loss: mean over ranks of the last measured step's; None where
    a rank that computes one has none there that is finite.
    observer_ratio: the largest share of any rank's measured steps that its own collectors took.
    traced: what the steps under the profiler say, None where there were none.
    """

    number: int
    step_s: float
    step_spread_ratio: float
    mean_step_s: float
    phases_s: dict[str, float]
    peak_bytes: dict[str, float]
    loss: float | None
    observer_ratio: float
    traced: Traced | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The trials that every rank finished, and what the ranks said is absent."""

    trials: tuple[Trial, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _RankTrial:
    """One rank's part of a trial; its readings by their marks."""

    warm_up: list[Reading] = field(default_factory=list)
    measured: list[Reading] = field(default_factory=list)
    memory: list[Reading] = field(default_factory=list)
    traced: list[Reading] = field(default_factory=list)
    is_good: bool = False


def read_trials(folder: Path, ranks: int) -> Logs:
    """Join the logs of all ranks of a run. A trial counts when each rank says that it ended well.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    notes: list[str] = []
    by_trial: dict[int, list[_RankTrial]] = defaultdict(list)
    for rank in range(ranks):
        path = folder / f"rank{rank}.jsonl"
        contents = read(path) if path.exists() else Contents(records=[], left_out=[f"{path.name} is missing"])
        notes += contents.left_out
        notes += [record.text for record in contents.records if isinstance(record, Note)]
        for number, part in _parts(contents).items():
            by_trial[number].append(part)
    trials = [
        _join(number, parts)
        for number, parts in sorted(by_trial.items())
        if len(parts) == ranks and all(part.is_good and part.measured for part in parts)
    ]
    return Logs(trials=tuple(trials), notes=tuple(dict.fromkeys(notes)))


def node_notes(folder: Path) -> tuple[str, ...]:
    """What the collectors of the run's nodes said is absent."""
    records = [record for path in sorted(folder.glob("node*.jsonl")) for record in read(path).records]
    return tuple(dict.fromkeys(record.text for record in records if isinstance(record, Note)))


def _parts(contents: Contents) -> dict[int, _RankTrial]:
    parts: dict[int, _RankTrial] = defaultdict(_RankTrial)
    for record in contents.records:
        match record:
            case Reading(mark="warm_up"):
                parts[record.trial].warm_up.append(record)
            case Reading(mark="measured"):
                parts[record.trial].measured.append(record)
            case Reading(mark="memory"):
                parts[record.trial].memory.append(record)
            case Reading(mark="traced"):
                parts[record.trial].traced.append(record)
            case Ended():
                parts[record.trial].is_good = record.error is None
    return parts


def _join(number: int, parts: Sequence[_RankTrial]) -> Trial:
    steps_by_rank = [list(_values(part.measured, STEP_SECONDS)) for part in parts]
    slowest = max(steps_by_rank, key=median)
    return Trial(
        number=number,
        step_s=median(slowest),
        step_spread_ratio=spread(slowest),
        mean_step_s=max(fmean(steps) for steps in steps_by_rank),
        phases_s={phase: max(_phase_s(part, phase) for part in parts) for phase in _phases(parts)},
        peak_bytes={
            account: max(values)
            for account, metric in MEMORY_ACCOUNTS.items()
            if (values := [value for part in parts for value in _peak_values(part, metric)])
        },
        loss=_loss(parts),
        observer_ratio=max(
            sum(_values(part.measured, OBSERVER_SECONDS)) / sum(steps)
            for part, steps in zip(parts, steps_by_rank, strict=True)
        ),
        traced=join_traced([part.traced for part in parts]),
    )


def _samples(readings: Iterable[Reading], metric: Metric) -> Iterable[Sample]:
    return (sample for reading in readings for sample in reading.samples if sample.metric == metric.name)


def _values(readings: Iterable[Reading], metric: Metric) -> Iterable[float]:
    return (sample.value for sample in _samples(readings, metric))


def _phases(parts: Iterable[_RankTrial]) -> list[str]:
    """The phases of the trial, the usual ones in the order of a step."""
    found = {sample.labels["phase"] for part in parts for sample in _samples(part.measured, PHASE_SECONDS)}
    return [phase for phase in PHASES if phase in found] + sorted(found - set(PHASES))


def _phase_s(part: _RankTrial, phase: str) -> float:
    values = [s.value for s in _samples(part.measured, PHASE_SECONDS) if s.labels["phase"] == phase]
    return sum(values) / len(part.measured)


def _peak_values(part: _RankTrial, metric: Metric) -> Iterable[float]:
    if metric is LIVE_TENSOR_BYTES:
        return (s.value for s in _samples(part.memory, metric) if s.labels["category"] == "total")
    return _values(part.measured, metric)


def _loss(parts: Iterable[_RankTrial]) -> float | None:
    """A rank that computes a loss has logged one, finite, in its first step; a rank that computes none never has."""
    last: list[float] = []
    for part in parts:
        if not any(True for _ in _values((*part.warm_up, *part.measured), LOSS)):
            continue
        found = list(_values(part.measured[-1:], LOSS))
        if not found:
            return None
        last += found
    return fmean(last) if last else None
