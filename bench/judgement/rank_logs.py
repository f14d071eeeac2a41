"""The logs of a run's ranks, sorted by trial; a trial counts when each rank says that it ended well."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.log_reader import Contents, read
from collectors.metric import Metric, Sample
from collectors.sample_log import Ended, Mark, Note, Opened, Performed, Reading


@dataclass(slots=True)
class RankTrial:
    """One rank's part of a trial: its readings, by their marks, and the steps whose actions it timed.

    gpu_uuid: see `collectors.sample_log.Opened`.
    """

    readings: dict[Mark, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    performed: list[Performed] = field(default_factory=list)
    is_good: bool = False
    gpu_uuid: str | None = None

    def of(self, mark: Mark) -> list[Reading]:
        """The readings of a mark, in order."""
        return self.readings.get(mark, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLogs:
    """trials: of each complete trial, by its number, the parts of all ranks. notes: what the ranks said is absent."""

    trials: dict[int, tuple[RankTrial, ...]]
    notes: tuple[str, ...]


def read_rank_logs(folder: Path, ranks: int, *, mark: Mark) -> RankLogs:
    """Join the logs of all ranks of a run.

    mark: of the readings that a complete trial has from every rank.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    notes: list[str] = []
    by_trial: dict[int, list[RankTrial]] = defaultdict(list)
    for rank in range(ranks):
        path = folder / f"rank{rank}.jsonl"
        contents = read(path) if path.exists() else Contents(records=[], left_out=[f"{path.name} is missing"])
        notes += contents.left_out
        notes += [record.text for record in contents.records if isinstance(record, Note)]
        for number, part in _parts(contents).items():
            by_trial[number].append(part)
    trials = {
        number: tuple(parts)
        for number, parts in sorted(by_trial.items())
        if len(parts) == ranks and all(part.is_good and part.of(mark) for part in parts)
    }
    return RankLogs(trials=trials, notes=tuple(dict.fromkeys(notes)))


def node_notes(folder: Path) -> tuple[str, ...]:
    """What the collectors of the run's nodes said is absent."""
    records = [record for path in sorted(folder.glob("node*.jsonl")) for record in read(path).records]
    return tuple(dict.fromkeys(record.text for record in records if isinstance(record, Note)))


def samples_of(readings: Iterable[Reading], metric: Metric) -> Iterable[Sample]:
    """The metric's samples, in order."""
    return (sample for reading in readings for sample in reading.samples if sample.metric == metric.name)


def values_of(readings: Iterable[Reading], metric: Metric) -> Iterable[float]:
    """The metric's values, in order."""
    return (sample.value for sample in samples_of(readings, metric))


def by_labels(
    parts: Sequence[RankTrial], mark: Mark, metric: Metric, join: Callable[[Sequence[float]], float]
) -> dict[tuple[str, ...], float]:
    """One value for each set of labels, in the metric's order: the last of each rank that has it, joined."""
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for part in parts:
        last = {
            tuple(sample.labels[name] for name in metric.labels): sample.value
            for sample in samples_of(part.of(mark), metric)
        }
        for labels, value in last.items():
            values[labels].append(value)
    return {labels: join(found) for labels, found in values.items()}


def _parts(contents: Contents) -> dict[int, RankTrial]:
    parts: dict[int, RankTrial] = defaultdict(RankTrial)
    for record in contents.records:
        match record:
            case Opened():
                parts[record.trial].gpu_uuid = record.gpu_uuid
            case Reading():
                parts[record.trial].readings[record.mark].append(record)
            case Performed():
                parts[record.trial].performed.append(record)
            case Ended():
                parts[record.trial].is_good = record.error is None
    return parts
