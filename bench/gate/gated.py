"""The figures of a run that the gate judges: their metrics, and their trials in the detector's form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from bench.gate.detector.night import TrialSample
from bench.results.estimate import of_metric
from bench.store.summary import Summary, steps_of_a_trial
from collectors.metrics.metric import Metric
from collectors.metrics.probes import (
    RUN_COLLECTIVE_BUS_BANDWIDTH,
    RUN_COPY_BANDWIDTH,
    RUN_MATMUL_FLOPS,
    RUN_PAIR_BANDWIDTH,
)
from collectors.metrics.results import (
    RUN_MEAN_STEP_SECONDS,
    RUN_PEAK_MEMORY_BYTES,
    RUN_SCALING_EFFICIENCY,
    RUN_STEP_SECONDS,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
)
from workloads.cost_models.shape import Shape

GATED: tuple[Metric, ...] = (
    RUN_STEP_SECONDS,
    RUN_MEAN_STEP_SECONDS,
    RUN_SCALING_EFFICIENCY,
    RUN_PEAK_MEMORY_BYTES,
    RUN_COLLECTIVE_BUS_BANDWIDTH,
    RUN_MATMUL_FLOPS,
    RUN_COPY_BANDWIDTH,
    RUN_PAIR_BANDWIDTH,
)
"""Metrics that are judged each night, main ones first. Others follow from these or explain them: tokens per second is
the mirror image of the mean step, and the parts of a step show the cause of its change.
"""
GATED_BY_TOKENS = RUN_TOKENS_PER_SECOND_PER_DEVICE
"""Metric that replaces the step in a watched run whose steps have unequal work and that declares its tokens."""
GATED_BY_NAME = {metric.name: metric for metric in (*GATED, GATED_BY_TOKENS)}
NAMES = {
    RUN_STEP_SECONDS.name: "step",
    RUN_MEAN_STEP_SECONDS.name: "mean step",
    RUN_TOKENS_PER_SECOND_PER_DEVICE.name: "tokens per second and device",
    RUN_SCALING_EFFICIENCY.name: "efficiency",
    RUN_PEAK_MEMORY_BYTES.name: "peak memory",
    RUN_COLLECTIVE_BUS_BANDWIDTH.name: "bus bandwidth",
    RUN_MATMUL_FLOPS.name: "matmul",
    RUN_COPY_BANDWIDTH.name: "copy",
    RUN_PAIR_BANDWIDTH.name: "pair",
}
"""Short names of the gated metrics."""
_OF_STEPS = frozenset({RUN_STEP_SECONDS.name, RUN_MEAN_STEP_SECONDS.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """The two rates of an efficiency: tokens per second and rank of the run, and of its baseline."""

    own: float
    baseline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedValue:
    """A figure of a run. value: the median over trials. legs: only for an efficiency."""

    metric: Metric
    labels: dict[str, str]
    value: float
    trials: tuple[TrialSample, ...]
    legs: Legs | None = None


def figure_words(metric: str, labels: Mapping[str, str]) -> str:
    """Return a figure in a few words: `step`, `efficiency weak`, `bus bandwidth all_reduce ring 1048576`."""
    known = GATED_BY_NAME.get(metric)
    names = labels if known is None else known.labels
    words = [labels[name] for name in names if labels[name] != "beside"]  # The usual baseline of an efficiency.
    return " ".join([NAMES.get(metric, metric), *words])


def shape_words(shape: Shape) -> str:
    """Return a model's shape in a few words, without the batch, which differs with the ranks."""
    return f"{shape.layers} x {shape.width}, sequence {shape.sequence}"


def placement_of(hosts: Iterable[str]) -> str:
    """Return the name of the placement on these hosts, whatever their order."""
    return " ".join(sorted(set(hosts)))


def gated_metrics(summary: Summary) -> tuple[Metric, ...]:
    """Return the metrics that the gate judges for a run.

    For a watched run whose work differs from step to step this includes the token rate instead of step times, or no
    time at all if the run declares no tokens.
    """
    if summary.watched is None or summary.watched.work in ("even", "unknown"):
        return GATED
    rest = tuple(metric for metric in GATED if metric.name not in _OF_STEPS)
    return (GATED_BY_TOKENS, *rest) if summary.watched.work == "by tokens" else rest


def why_step_not_gated(summary: Summary) -> str | None:
    """Return why the gate judges no time of a run; None if it does."""
    if summary.watched is None or summary.watched.work != "uneven":
        return None
    return f"{summary.watched.work_reason}; use `with step(tokens=...)` in the program to judge its token rate"


def gated_values(summary: Summary) -> Iterator[GatedValue]:
    """Yield the figures of a run that the gate judges, main ones first.

    Figures with a trial of 0 or less are left out, because it has no logarithm: a bandwidth of 0 is a failed trial.
    """
    for metric in gated_metrics(summary):
        for estimate in of_metric(summary.estimates, metric):
            if _has_logarithms(estimate.trials):
                trials = _samples(summary, metric, estimate.trials)
                yield GatedValue(metric=metric, labels=estimate.labels, value=estimate.median, trials=trials)
        if metric is RUN_SCALING_EFFICIENCY:
            yield from _efficiencies(summary)


def log_trials(summary: Summary, metric: str, labels: str) -> list[float]:
    """Return the logarithms of one figure's trials; an empty list if the run lacks it. labels: as JSON, sorted."""
    for value in gated_values(summary):
        if value.metric.name == metric and msgspec.json.encode(value.labels, order="sorted").decode() == labels:
            return [trial.log_median for trial in value.trials]
    return []


def without_logarithms(summary: Summary) -> Iterator[tuple[Metric, dict[str, str]]]:
    """Yield metric and labels of the figures of a run that cannot be judged because a trial is not positive."""
    for metric in gated_metrics(summary):
        for estimate in of_metric(summary.estimates, metric):
            if not _has_logarithms(estimate.trials):
                yield metric, estimate.labels


def _has_logarithms(values: Iterable[float]) -> bool:
    return all(0 < value < math.inf for value in values)


def _efficiencies(summary: Summary) -> Iterator[GatedValue]:
    """Yield each efficiency: a trial's own rate over the baseline's median rate."""
    for rate in of_metric(summary.estimates, RUN_TOKENS_PER_SECOND_PER_DEVICE):
        for efficiency in summary.scaling:
            if not _has_logarithms((*rate.trials, efficiency.ratio.value)):
                continue
            baseline = rate.median / efficiency.ratio.value
            yield GatedValue(
                metric=RUN_SCALING_EFFICIENCY,
                labels={"scaling": efficiency.scaling, "baseline": efficiency.baseline},
                value=efficiency.ratio.value,
                trials=_samples(summary, RUN_SCALING_EFFICIENCY, [own / baseline for own in rate.trials]),
                legs=Legs(own=rate.median, baseline=baseline),
            )


def _samples(summary: Summary, metric: Metric, values: Sequence[float]) -> tuple[TrialSample, ...]:
    """Return the trials in the detector's form. Metrics without steps also have no spread of steps."""
    spreads = summary.step_spreads if metric.name in _OF_STEPS else ()
    placement = placement_of(summary.hosts)
    return tuple(
        TrialSample(
            log_median=math.log(value),
            # The deviation of logarithms equals the relative deviation as long as it is small.
            mad=spreads[trial] if trial < len(spreads) else 0.0,
            steps=steps_of_a_trial(summary),
            placement=placement,
        )
        for trial, value in enumerate(values)
    )
