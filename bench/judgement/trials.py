"""From the logs of a run's ranks to one value per metric and trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.judgement.estimate import spread
from collectors.catalogue.memory import LIVE_TENSOR_BYTES, PEAK_BYTES, RESIDENT_BYTES
from collectors.catalogue.step import LOSS, PHASE_SECONDS, PHASES, STEP_SECONDS
from collectors.metric import Metric, Sample
from collectors.sample_log import Contents, Ended, Note, Reading, read

MEMORY_ACCOUNTS = {"allocator": PEAK_BYTES, "live_tensors": LIVE_TENSOR_BYTES, "resident": RESIDENT_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one complete trial says, joined over its ranks.

    step_s: the slowest rank's median step. step_spread_ratio: that rank's spread of steps (see `estimate.spread`).
    phases_s: per phase, the median of the rank that spent most in it.
    peak_bytes: per account, the most that any rank held. loss: mean over ranks of the last measured step's.
    """

    number: int
    step_s: float
    step_spread_ratio: float
    phases_s: dict[str, float]
    peak_bytes: dict[str, float]
    loss: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The trials that every rank finished, and what the ranks said is absent."""

    trials: tuple[Trial, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class _RankTrial:
    """One rank's part of a trial; the readings of the measured steps, and the one reading of memory."""

    measured: list[Reading] = field(default_factory=list)
    memory: list[Reading] = field(default_factory=list)
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


def _parts(contents: Contents) -> dict[int, _RankTrial]:
    parts: dict[int, _RankTrial] = defaultdict(_RankTrial)
    for record in contents.records:
        match record:
            case Reading(mark="measured"):
                parts[record.trial].measured.append(record)
            case Reading(mark="memory"):
                parts[record.trial].memory.append(record)
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
        phases_s={phase: max(_phase_s(part, phase) for part in parts) for phase in _phases(parts)},
        peak_bytes={
            account: max(values)
            for account, metric in MEMORY_ACCOUNTS.items()
            if (values := [value for part in parts for value in _peak_values(part, metric)])
        },
        loss=_loss(parts),
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
    return median(values) if values else 0.0


def _peak_values(part: _RankTrial, metric: Metric) -> Iterable[float]:
    if metric is LIVE_TENSOR_BYTES:
        return (s.value for s in _samples(part.memory, metric) if s.labels["category"] == "total")
    return _values(part.measured, metric)


def _loss(parts: Iterable[_RankTrial]) -> float | None:
    last = [values[-1] for part in parts if (values := list(_values(part.measured, LOSS)))]
    return sum(last) / len(last) if last else None
