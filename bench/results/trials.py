"""The logs of a run's ranks, joined to one value per metric and trial.

A trial is complete, and counts, if each rank's log says that it ended well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from bench.results.estimate import spread
from bench.results.gpu_clocks import GpuBeats
from bench.results.pipeline import TimedStep, join_steps
from collectors.metrics import rank as rank_metrics
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.rank import (
    DATA_WAIT_SECONDS,
    LIVE_TENSOR_BYTES,
    LOSS,
    OBSERVER_SECONDS,
    PEAK_BYTES,
    PHASE_SECONDS,
    PHASES,
    RESIDENT_BYTES,
    STAGE_ACTIVATION_BYTES,
    STATE_BYTES,
    STEP_SECONDS,
)
from collectors.sample_log import Contents, Ended, Mark, Note, Opened, Reading, TimedActions, read
from workloads.cost_models.absent import Absent

# Rank logs, grouped by trial


@dataclass(slots=True)
class RankTrial:
    """One rank's part of a trial: its readings by mark, and the steps whose pipeline actions it timed.

    gpu_uuid: see `collectors.sample_log.Opened`.
    """

    readings: dict[Mark, list[Reading]] = field(default_factory=lambda: defaultdict(list))
    timed_actions: list[TimedActions] = field(default_factory=list)
    is_good: bool = False
    gpu_uuid: str | None = None

    def of(self, mark: Mark) -> list[Reading]:
        """Return the readings with this mark, in order."""
        return self.readings.get(mark, [])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLogs:
    """trials: the parts of all ranks of each complete trial, by number. notes: the ranks' notes on what is absent."""

    trials: dict[int, tuple[RankTrial, ...]]
    notes: tuple[str, ...]


def read_rank_logs(folder: Path, ranks: int, *, mark: Mark) -> RankLogs:
    """Join the logs of all ranks of a run.

    mark: only trials with readings of this mark from every rank are complete.

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
        parts: dict[int, RankTrial] = defaultdict(RankTrial)
        for record in contents.records:
            match record:
                case Opened():
                    parts[record.trial].gpu_uuid = record.gpu_uuid
                case Reading():
                    parts[record.trial].readings[record.mark].append(record)
                case TimedActions():
                    parts[record.trial].timed_actions.append(record)
                case Ended():
                    parts[record.trial].is_good = record.error is None
        for number, part in parts.items():
            by_trial[number].append(part)
    trials = {
        number: tuple(parts)
        for number, parts in sorted(by_trial.items())
        if len(parts) == ranks and all(part.is_good and part.of(mark) for part in parts)
    }
    return RankLogs(trials=trials, notes=tuple(dict.fromkeys(notes)))


def node_notes(folder: Path) -> tuple[str, ...]:
    """Return the notes of the nodes' collectors on what is absent."""
    records = [record for path in sorted(folder.glob("node*.jsonl")) for record in read(path).records]
    return tuple(dict.fromkeys(record.text for record in records if isinstance(record, Note)))


def samples_of(readings: Iterable[Reading], metric: Metric) -> Iterable[Sample]:
    """Return the metric's samples, in order."""
    return (sample for reading in readings for sample in reading.samples if sample.metric == metric.name)


def values_of(readings: Iterable[Reading], metric: Metric) -> Iterable[float]:
    """Return the metric's values, in order."""
    return (sample.value for sample in samples_of(readings, metric))


def join_by_labels(
    parts: Sequence[RankTrial], mark: Mark, metric: Metric, join: Callable[[Sequence[float]], float]
) -> dict[tuple[str, ...], float]:
    """Return one value for each set of labels: the last value of each rank that has these labels, joined over ranks.

    The keys are label values in the order of the metric's labels. If ranks end with {("a",): 1.0} and with {("a",):
    3.0, ("b",): 2.0}, joining by max gives {("a",): 3.0, ("b",): 2.0}.
    """
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for part in parts:
        last = {
            tuple(sample.labels[name] for name in metric.labels): sample.value
            for sample in samples_of(part.of(mark), metric)
        }
        for labels, value in last.items():
            values[labels].append(value)
    return {labels: join(label_values) for labels, label_values in values.items()}


# Traced steps of one trial, joined over its ranks

PARTS = {
    "compute": rank_metrics.COMPUTE_SECONDS,
    "communication": rank_metrics.COMMUNICATION_SECONDS,
    "overlap": rank_metrics.OVERLAP_SECONDS,
    "exposed_communication": rank_metrics.EXPOSED_COMMUNICATION_SECONDS,
    "exposed_copy": rank_metrics.EXPOSED_COPY_SECONDS,
    "idle": rank_metrics.IDLE_SECONDS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One trial's traced steps.

    step_s: the median over all ranks' steps; None if no step was traced whole, so that only counts are known.
    shares: each part's share of the traced step, as the median over all ranks' steps.
    communication_s: time in which collectives ran, as the same median; None if there was no communication.
    overlap_ratio: overlap over communication, as the same median; None if there was no communication.
    collective_overlap_ratios: each collective's overlap over its own time, as the same median.
    attention_pairs: the fewest and the most that a rank attended in a step; None if ranks do not count them.
    payload_bytes: per collective and mesh axis, the most that a rank handed over in a step.
    """

    step_s: float | None
    shares: dict[str, float]
    communication_s: float | None
    overlap_ratio: float | None
    collective_overlap_ratios: dict[str, float]
    attention_pairs: tuple[float, float] | None
    payload_bytes: dict[tuple[str, str], float]


def join_traced(readings_by_rank: Sequence[Sequence[Reading]]) -> Traced | None:
    """Join the ranks' traced steps; None if there are none."""
    readings = [reading for of_rank in readings_by_rank for reading in of_rank]
    if not readings:
        return None
    shares: dict[str, list[float]] = defaultdict(list)
    for reading in readings:
        values = {sample.metric: sample.value for sample in reading.samples if not sample.labels}
        step_s = values.get(rank_metrics.TRACED_STEP_SECONDS.name)
        for part, metric in PARTS.items():
            if step_s is not None and metric.name in values:
                shares[part].append(values[metric.name] / step_s)
    overlaps: dict[str, list[float]] = defaultdict(list)
    for sample in samples_of(readings, rank_metrics.COLLECTIVE_OVERLAP_RATIO):
        overlaps[sample.labels["collective"]].append(sample.value)
    payload_bytes: dict[tuple[str, str], float] = {}
    for sample in samples_of(readings, rank_metrics.PAYLOAD_BYTES):
        place = (sample.labels["collective"], sample.labels["axis"])
        payload_bytes[place] = max(payload_bytes.get(place, 0.0), sample.value)
    steps_s, communications_s, overlap_ratios, pairs = (
        list(values_of(readings, metric))
        for metric in (
            rank_metrics.TRACED_STEP_SECONDS,
            rank_metrics.COMMUNICATION_SECONDS,
            rank_metrics.OVERLAP_RATIO,
            rank_metrics.ATTENTION_PAIRS,
        )
    )
    return Traced(
        step_s=median(steps_s) if steps_s else None,
        shares={part: median(values) for part, values in shares.items()},
        communication_s=median(communications_s) if communications_s else None,
        overlap_ratio=median(overlap_ratios) if overlap_ratios else None,
        collective_overlap_ratios={name: median(values) for name, values in overlaps.items()},
        attention_pairs=(min(pairs), max(pairs)) if pairs else None,
        payload_bytes=payload_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Total power of all GPUs of a trial while their ranks measured. gpus: their number."""

    watts: float
    gpus: int


_NO_GPU = Absent(reason="they are measured on GPUs, and no rank's log names one")


# Checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints that one trial saved; each figure is the median over its saves.

    stall_s: the longest pause of a rank. write_s: time until all files were on disk.
    rank_bytes: the most that a rank wrote. total_bytes: what all ranks wrote together.
    step_s: a step of the slowest rank that began while a checkpoint was being written; None if training paused.
    """

    stall_s: float
    write_s: float
    rank_bytes: float
    total_bytes: float
    step_s: float | None


def join_saves(saved: Sequence[Sequence[Reading]], while_saving: Sequence[Sequence[Reading]]) -> Saves | None:
    """Join the readings of a trial's saves, by rank, and of steps during the saves; None without a save."""
    by_save = list(zip(*saved, strict=False))
    if not by_save:
        return None

    def values(metric: Metric, readings: Sequence[Reading]) -> list[float]:
        return [sample.value for each in readings for sample in each.samples if sample.metric == metric.name]

    steps_s = [values(rank_metrics.SAVING_STEP_SECONDS, of_rank) for of_rank in while_saving]
    sizes = [values(rank_metrics.CHECKPOINT_BYTES, ranks) for ranks in by_save]
    return Saves(
        stall_s=median(max(values(rank_metrics.CHECKPOINT_STALL_SECONDS, ranks)) for ranks in by_save),
        write_s=median(max(values(rank_metrics.CHECKPOINT_WRITE_SECONDS, ranks)) for ranks in by_save),
        rank_bytes=median(max(of_ranks) for of_ranks in sizes),
        total_bytes=median(sum(of_ranks) for of_ranks in sizes),
        step_s=max((median(of_rank) for of_rank in steps_s if of_rank), default=None),
    )


# Trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One complete trial, joined over its ranks.

    step_s: the slowest rank's median step. step_spread_ratio: that rank's spread of steps (see `estimate.spread`).
    mean_step_s: mean measured step of the rank with the longest mean. Rates are computed from it and not from the
        median, which a stuttering input does not change.
    phases_s: per phase, the mean over the steps of the rank that spent most time in it.
    data_wait_s: the mean over the steps of the rank whose host waited longest for its batches; None if the step's clock
        is the host's.
    peak_bytes: per account, the most that any rank held. state_bytes: the same per part of training's state.
    activation_bytes: activations alive at the peak of live tensors, on the rank with the largest total, as in the cost
        model; None if not tracked. other_bytes: on the same rank, what was alive before the step and is not a state.
    stage_activation_bytes: per pipeline stage, the most that its microbatches left on any rank.
    loss: mean over ranks of the last measured step's loss; None if a rank that computes a loss has no finite one there.
    observer_ratio: the largest share of any rank's measured steps that its own collectors took.
    power: of its GPUs, or why it is unknown.
    traced: the steps under the profiler; None if there were none.
    timed_steps: the steps in which the actions of pipeline stages were timed; empty without stages.
    saves: its checkpoints; None if it saved none.
    """

    number: int
    step_s: float
    step_spread_ratio: float
    mean_step_s: float
    phases_s: dict[str, float]
    data_wait_s: float | None
    peak_bytes: dict[str, float]
    state_bytes: dict[str, float]
    activation_bytes: float | None
    other_bytes: float | None = None
    stage_activation_bytes: dict[int, float]
    loss: float | None
    observer_ratio: float
    power: Power | Absent = _NO_GPU
    traced: Traced | None
    timed_steps: tuple[TimedStep, ...]
    saves: Saves | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The trials that every rank completed, and the ranks' notes on what is absent."""

    trials: tuple[Trial, ...]
    notes: tuple[str, ...]


def read_trials(folder: Path, ranks: int) -> Logs:
    """Join the logs of all ranks of a training run.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    logs = read_rank_logs(folder, ranks, mark="measured")
    has_gpus = any(part.gpu_uuid for parts in logs.trials.values() for part in parts)
    beats = GpuBeats(folder) if has_gpus else None  # Without GPUs the nodes' logs are not needed.
    return Logs(trials=tuple(_join(number, parts, beats) for number, parts in logs.trials.items()), notes=logs.notes)


def _join(number: int, ranks: Sequence[RankTrial], beats: GpuBeats | None) -> Trial:
    measured = [rank.of("measured") for rank in ranks]
    steps_by_rank = [list(values_of(readings, STEP_SECONDS)) for readings in measured]
    slowest = max(steps_by_rank, key=median)
    # Each rank's mean time of each phase per step; the usual phases in the order of a step, then others by name.
    phases_s: dict[str, list[float]] = defaultdict(list)
    for readings in measured:
        totals_s: dict[str, float] = defaultdict(float)
        for sample in samples_of(readings, PHASE_SECONDS):
            totals_s[sample.labels["phase"]] += sample.value
        for phase, total_s in totals_s.items():
            phases_s[phase].append(total_s / len(readings))
    phases = [phase for phase in PHASES if phase in phases_s] + sorted(phases_s.keys() - set(PHASES))
    waits_s = [list(values_of(readings, DATA_WAIT_SECONDS)) for readings in measured]
    live_bytes = max(
        (join_by_labels([rank], "memory", LIVE_TENSOR_BYTES, max) for rank in ranks),
        key=lambda sizes: sizes.get(("total",), 0.0),
    )
    held_bytes = join_by_labels(ranks, "memory", STAGE_ACTIVATION_BYTES, max)
    every_reading = [reading for readings in measured for reading in readings]
    live_totals = [
        sample.value
        for rank in ranks
        for sample in samples_of(rank.of("memory"), LIVE_TENSOR_BYTES)
        if sample.labels["category"] == "total"
    ]
    peaks = {
        "allocator": list(values_of(every_reading, PEAK_BYTES)),
        "live_tensors": live_totals,
        "resident": list(values_of(every_reading, RESIDENT_BYTES)),
    }
    return Trial(
        number=number,
        step_s=median(slowest),
        step_spread_ratio=spread(slowest),
        mean_step_s=max(map(fmean, steps_by_rank)),
        phases_s={phase: max(phases_s[phase]) for phase in phases},
        data_wait_s=max(map(fmean, filter(None, waits_s)), default=None),
        peak_bytes={account: max(values) for account, values in peaks.items() if values},
        state_bytes={part: most for (part,), most in join_by_labels(ranks, "memory", STATE_BYTES, max).items()},
        activation_bytes=live_bytes.get(("activations",)),
        other_bytes=live_bytes.get(("other",)),
        stage_activation_bytes={int(stage): most for (stage,), most in held_bytes.items()},
        loss=_loss(ranks),
        observer_ratio=max(
            sum(values_of(readings, OBSERVER_SECONDS)) / sum(steps_s)
            for readings, steps_s in zip(measured, steps_by_rank, strict=True)
        ),
        power=_NO_GPU if beats is None else _power(number, ranks, beats),
        traced=join_traced([rank.of("traced") for rank in ranks]),
        timed_steps=join_steps([rank.timed_actions for rank in ranks]),
        saves=join_saves([rank.of("checkpoint") for rank in ranks], [rank.of("saving") for rank in ranks]),
    )


def _power(number: int, ranks: Sequence[RankTrial], beats: GpuBeats) -> Power | Absent:
    """Return the power of a trial's GPUs, each read for the first rank that computes on it."""
    powers_w: dict[str, float] = {}
    for rank, part in enumerate(ranks):
        if part.gpu_uuid is None:
            return Absent(reason=f"the log of rank {rank} does not name its GPU")
        if part.gpu_uuid in powers_w:
            continue
        measured = part.of("measured")
        begun_ns, ended_ns = measured[0].time_ns, measured[-1].time_ns
        if any(begun_ns < traced.time_ns < ended_ns for traced in part.of("traced")):
            return Absent(reason="profiler windows lie between the measured steps; without --trace-every none do")
        if any(begun_ns < saved.time_ns < ended_ns for saved in part.of("checkpoint")):
            return Absent(reason="checkpoints were saved between the measured steps; without --save-every none are")
        power_w = beats.mean_power_w(part.gpu_uuid, begun_ns, ended_ns)
        if isinstance(power_w, Absent):
            return Absent(reason=f"in the measured steps of rank {rank} in trial {number}, {power_w.reason}")
        powers_w[part.gpu_uuid] = power_w
    return Power(watts=sum(powers_w.values()), gpus=len(powers_w))


def _loss(parts: Iterable[RankTrial]) -> float | None:
    """Return the mean over ranks of the last measured step's loss; None if a rank that computes a loss lacks it.

    Only finite losses are logged. A rank without a loss in any step computes none.
    """
    last: list[float] = []
    for part in parts:
        if not any(True for _ in values_of((*part.of("warm_up"), *part.of("measured")), LOSS)):
            continue
        losses = list(values_of(part.of("measured")[-1:], LOSS))
        if not losses:
            return None
        last += losses
    return fmean(last) if last else None
