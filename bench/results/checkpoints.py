"""Figures of the checkpoints that a run saved, joined over ranks and trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from bench.results.estimate import Estimate, estimate
from collectors.metrics import rank as rank_metrics
from collectors.metrics import results
from collectors.metrics.metric import Metric
from collectors.sample_log import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """The checkpoints that one trial saved; each figure is the median over its saves.

    stall_s: time for which the rank that paused longest stood. write_s: time until all files were on disk.
    rank_bytes: the most that a rank wrote. total_bytes: all that ranks wrote.
    step_s: a step of the slowest rank that began while a checkpoint was written; None where training paused.
    """

    stall_s: float
    write_s: float
    rank_bytes: float
    total_bytes: float
    step_s: float | None


def join_saves(saved: Sequence[Sequence[Reading]], while_saving: Sequence[Sequence[Reading]]) -> Saves | None:
    """Join the readings of a trial's saves, by rank, and of the steps while they were written; None without a save."""
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


def checkpoint_estimates(trials: Sequence[Saves | None]) -> Iterator[Estimate]:
    """Yield the figures of a run's checkpoints; nothing where a trial saved none."""
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
