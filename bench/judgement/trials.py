"""From the logs of a run's ranks to one value per metric and trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from bench.judgement.estimate import spread
from bench.judgement.rank_logs import RankTrial, by_labels, read_rank_logs, samples_of, values_of
from bench.judgement.stages import TimedStep, join_steps
from bench.judgement.traced import Traced, join_traced
from collectors.catalogue.memory import (
    LIVE_TENSOR_BYTES,
    PEAK_BYTES,
    RESIDENT_BYTES,
    STAGE_ACTIVATION_BYTES,
    STATE_BYTES,
)
from collectors.catalogue.step import (
    DATA_WAIT_SECONDS,
    LOSS,
    OBSERVER_SECONDS,
    PHASE_SECONDS,
    PHASES,
    STEP_SECONDS,
)
from collectors.metric import Metric

MEMORY_ACCOUNTS = {"allocator": PEAK_BYTES, "live_tensors": LIVE_TENSOR_BYTES, "resident": RESIDENT_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one complete trial says, joined over its ranks.

    step_s: the slowest rank's median step. step_spread_ratio: that rank's spread of steps (see `estimate.spread`).
    mean_step_s: time of all measured steps of the rank that took longest, divided by their number. Rates follow from
    this one: an input that stutters leaves the median alone.
    phases_s: per phase, the mean over the steps of the rank that spent most in it.
    data_wait_s: the mean over the steps of the rank whose host waited most for its batches; None where the step's clock
    is the host's.
    peak_bytes: per account, the most that any rank held. state_bytes: per part of training's state, the same.
    activation_bytes: those alive at the peak of live tensors, the most of any rank; None where nobody tracked them.
    other_bytes: of what lived there before the step and is no state, as above.
    stage_activation_bytes: per pipeline stage, the most that its microbatches left on any rank.
    loss: mean over ranks of the last measured step's; None where a rank that computes one has none there that is
    finite.
    observer_ratio: the largest share of any rank's measured steps that its own collectors took.
    traced: what the steps under the profiler say, None where there were none.
    timed_steps: those in which the actions of pipeline stages were timed; none where there are no stages.
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
    traced: Traced | None
    timed_steps: tuple[TimedStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The trials that every rank finished, and what the ranks said is absent."""

    trials: tuple[Trial, ...]
    notes: tuple[str, ...]


def read_trials(folder: Path, ranks: int) -> Logs:
    """Join the logs of all ranks of a run. A trial counts when each rank says that it ended well.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    logs = read_rank_logs(folder, ranks, mark="measured")
    return Logs(trials=tuple(_join(number, parts) for number, parts in logs.trials.items()), notes=logs.notes)


def _join(number: int, parts: Sequence[RankTrial]) -> Trial:
    steps_by_rank = [list(values_of(part.of("measured"), STEP_SECONDS)) for part in parts]
    slowest = max(steps_by_rank, key=median)
    return Trial(
        number=number,
        step_s=median(slowest),
        step_spread_ratio=spread(slowest),
        mean_step_s=max(fmean(steps) for steps in steps_by_rank),
        phases_s={phase: max(_phase_s(part, phase) for part in parts) for phase in _phases(parts)},
        data_wait_s=max(
            (fmean(waits) for part in parts if (waits := [*values_of(part.of("measured"), DATA_WAIT_SECONDS)])),
            default=None,
        ),
        peak_bytes={
            account: max(values)
            for account, metric in MEMORY_ACCOUNTS.items()
            if (values := [value for part in parts for value in _peak_values(part, metric)])
        },
        state_bytes={part: most for (part,), most in by_labels(parts, "memory", STATE_BYTES, max).items()},
        activation_bytes=by_labels(parts, "memory", LIVE_TENSOR_BYTES, max).get(("activations",)),
        other_bytes=by_labels(parts, "memory", LIVE_TENSOR_BYTES, max).get(("other",)),
        stage_activation_bytes={
            int(stage): most for (stage,), most in by_labels(parts, "memory", STAGE_ACTIVATION_BYTES, max).items()
        },
        loss=_loss(parts),
        observer_ratio=max(
            sum(values_of(part.of("measured"), OBSERVER_SECONDS)) / sum(steps)
            for part, steps in zip(parts, steps_by_rank, strict=True)
        ),
        traced=join_traced([part.of("traced") for part in parts]),
        timed_steps=join_steps([part.performed for part in parts]),
    )


def _phases(parts: Iterable[RankTrial]) -> list[str]:
    """The phases of the trial, the usual ones in the order of a step."""
    found = {sample.labels["phase"] for part in parts for sample in samples_of(part.of("measured"), PHASE_SECONDS)}
    return [phase for phase in PHASES if phase in found] + sorted(found - set(PHASES))


def _phase_s(part: RankTrial, phase: str) -> float:
    values = [s.value for s in samples_of(part.of("measured"), PHASE_SECONDS) if s.labels["phase"] == phase]
    return sum(values) / len(part.of("measured"))


def _peak_values(part: RankTrial, metric: Metric) -> Iterable[float]:
    if metric is LIVE_TENSOR_BYTES:
        return (s.value for s in samples_of(part.of("memory"), metric) if s.labels["category"] == "total")
    return values_of(part.of("measured"), metric)


def _loss(parts: Iterable[RankTrial]) -> float | None:
    """A rank that computes a loss has logged one, finite, in its first step; a rank that computes none never has."""
    last: list[float] = []
    for part in parts:
        if not any(True for _ in values_of((*part.of("warm_up"), *part.of("measured")), LOSS)):
            continue
        found = list(values_of(part.of("measured")[-1:], LOSS))
        if not found:
            return None
        last += found
    return fmean(last) if last else None
