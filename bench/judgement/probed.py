"""From the logs of a probe's ranks to its Estimates, with a reason for each one that is absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import cast

from bench.case import Case
from bench.judgement.estimate import Estimate, estimate, per_second
from bench.judgement.expected_collectives import expectations, links, why_not_expected
from bench.judgement.gpu_clocks import GpuBeats, Reached
from bench.judgement.rank_logs import RankTrial, by_labels, read_rank_logs, samples_of
from collectors.catalogue import ceilings, probes
from collectors.metric import Metric
from collectors.sample_log import Reading
from workloads.laws.bus import bus_factor
from workloads.laws.ceilings import matmul_flops, moved_bytes
from workloads.laws.terms import Collective

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTrial:
    """One complete trial of a probe: by the name of a rank's metric, and by labels, one value over all ranks.

    reached: clock and power of the GPU of the rank whose products of a shape took longest.
    """

    values: Mapping[str, Mapping[Labels, float]]
    reached: Mapping[Labels, Reached] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLogs:
    """The trials that every rank finished, and what the ranks said is absent.

    choices: collective, size, algorithm and protocol that NCCL said it chose, in a trial that is no part of `trials`.
    """

    trials: tuple[ProbeTrial, ...]
    notes: tuple[str, ...]
    choices: tuple[Labels, ...] = ()


JOINS: dict[Metric, Callable[[Sequence[float]], float]] = {
    probes.COLLECTIVE_SECONDS: fmean,  # As nccl-tests has it.
    probes.COLLECTIVE_WITH_HOST_SECONDS: fmean,
    probes.COLLECTIVE_ROUNDS: max,
    probes.COLLECTIVE_SENT_BYTES: sum,
    probes.COLLECTIVE_PEAK_BYTES: max,
    probes.MATMUL_SECONDS: max,
    probes.MATMUL_WITH_HOST_SECONDS: max,
    probes.COPY_SECONDS: max,
    probes.COPY_WITH_HOST_SECONDS: max,
}
"""How the values of several ranks become one."""


def read_probe_trials(folder: Path, ranks: int) -> ProbeLogs:
    """Join the logs of all ranks of a run. A trial counts when each rank says that it ended well.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    logs = read_rank_logs(folder, ranks, mark="probed")
    told = read_rank_logs(folder, ranks, mark="told").trials.values()
    beats = GpuBeats(folder)
    return ProbeLogs(
        trials=tuple(_join(parts, beats) for parts in logs.trials.values()),
        notes=logs.notes,
        choices=tuple(labels for parts in told for labels in by_labels(parts, "told", probes.COLLECTIVE_CHOICE, max)),
    )


def results_of_probe(case: Case, logs: ProbeLogs) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """All Estimates of a probe's run, and what is absent with its reason."""
    trials = logs.trials
    if not trials:
        return (), ("no trial was completed: all figures are absent",)
    found = [*_collectives(case, trials), *_choices(logs), *_counts(trials), *_matmuls(trials), *_copies(trials)]
    notes = [f"intervals are absent: {found[0].why_no_interval}"] if found[0].why_no_interval else []
    fitted, reasons = links(case, found)
    found += fitted
    found += expectations(case, found)
    reasons += _why_no_clock(case, trials, found)
    if any(one.metric == ceilings.RUN_COLLECTIVE_SECONDS.name for one in found):
        reasons += why_not_expected(case, found)
        reasons += _why_no_choice(case, logs)
    return tuple(found), (*notes, *reasons)


def _join(parts: Sequence[RankTrial], beats: GpuBeats) -> ProbeTrial:
    return ProbeTrial(
        values={metric.name: by_labels(parts, "probed", metric, join) for metric, join in JOINS.items()},
        reached=dict(_reached(parts, beats)),
    )


def _reached(parts: Sequence[RankTrial], beats: GpuBeats) -> Iterator[tuple[Labels, Reached]]:
    """Of each shape, what the node read last while the slowest rank computed it; nothing where it read nothing then."""
    slowest: dict[Labels, tuple[float, RankTrial, Reading]] = {}
    for part in parts:
        for reading in part.of("probed"):
            for sample in samples_of([reading], probes.MATMUL_SECONDS):
                labels = tuple(sample.labels[name] for name in probes.MATMUL_SECONDS.labels)
                if labels not in slowest or sample.value > slowest[labels][0]:
                    slowest[labels] = sample.value, part, reading
    for labels, (_, part, reading) in slowest.items():
        if part.gpu_uuid is None or reading.begun_ns is None:
            continue
        if (beat := beats.last(part.gpu_uuid, reading.begun_ns, reading.time_ns)) is not None:
            yield labels, beat


def _values(trials: Sequence[ProbeTrial], metric: Metric) -> Iterable[tuple[dict[str, str], list[float]]]:
    """Labels that every trial has, with the value of each trial."""
    for labels in trials[0].values[metric.name]:
        if all(labels in trial.values[metric.name] for trial in trials):
            yield (
                dict(zip(metric.labels, labels, strict=True)),
                [trial.values[metric.name][labels] for trial in trials],
            )


def _collectives(case: Case, trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for labels, times_s in _values(trials, probes.COLLECTIVE_SECONDS):
        size_bytes = int(labels["size"])
        yield estimate(ceilings.RUN_COLLECTIVE_SECONDS, times_s, **labels)
        yield per_second(ceilings.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH, size_bytes, times_s, **labels)
        if case.ranks > 1:  # A rank that is alone has no bus, whatever its factor.
            bus_bytes = size_bytes * bus_factor(cast(Collective, labels["collective"]), case.ranks)
            yield per_second(ceilings.RUN_COLLECTIVE_BUS_BANDWIDTH, float(bus_bytes), times_s, **labels)
    for labels, times_s in _values(trials, probes.COLLECTIVE_WITH_HOST_SECONDS):
        yield estimate(ceilings.RUN_COLLECTIVE_WITH_HOST_SECONDS, times_s, **labels)


def _choices(logs: ProbeLogs) -> Iterable[Estimate]:
    """What NCCL said it chose for the collectives and sizes that were measured."""
    measured = {(collective, size) for collective, _, size in logs.trials[0].values[probes.COLLECTIVE_SECONDS.name]}
    for labels in logs.choices:
        named = dict(zip(probes.COLLECTIVE_CHOICE.labels, labels, strict=True))
        if (named["collective"], named["size"]) in measured:  # A barrier is an all_reduce of 4 bytes, too.
            yield estimate(ceilings.RUN_COLLECTIVE_CHOICE, [1], **named)


def _why_no_choice(case: Case, logs: ProbeLogs) -> list[str]:
    if case.backend == "gloo":
        return ["algorithm and protocol are absent: gloo does not tell which it chose"]
    if logs.choices:
        return ["trial 0 asked NCCL for its choices, which costs a line for each call: its times are left out"]
    if case.trials == 1:
        return ["algorithm and protocol are absent: one trial is measured and none asks NCCL; --trials 2 does"]
    return []


def _counts(trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for counted, shown in (
        (probes.COLLECTIVE_ROUNDS, ceilings.RUN_COLLECTIVE_ROUNDS),
        (probes.COLLECTIVE_SENT_BYTES, ceilings.RUN_COLLECTIVE_TOTAL_BYTES),
        (probes.COLLECTIVE_PEAK_BYTES, ceilings.RUN_COLLECTIVE_PEAK_BYTES),
    ):
        for labels, values in _values(trials, counted):
            if min(values) > 0:
                yield estimate(shown, values, account="counted", **labels)


def _matmuls(trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for measured, shown in (
        (probes.MATMUL_SECONDS, ceilings.RUN_MATMUL_FLOPS),
        (probes.MATMUL_WITH_HOST_SECONDS, ceilings.RUN_MATMUL_WITH_HOST_FLOPS),
    ):
        for labels, times_s in _values(trials, measured):
            flops = matmul_flops(int(labels["m"]), int(labels["n"]), int(labels["k"]))
            yield per_second(shown, flops, times_s, **labels)
    for place in trials[0].values[probes.MATMUL_SECONDS.name]:
        labels = dict(zip(probes.MATMUL_SECONDS.labels, place, strict=True))
        beats = [trial.reached[place] for trial in trials if place in trial.reached]
        clocks = [beat.clock_hertz for beat in beats if beat.clock_hertz]
        powers = [beat.power_watts for beat in beats if beat.power_watts]
        if len(clocks) == len(trials):
            yield estimate(ceilings.RUN_MATMUL_CLOCK_HERTZ, clocks, **labels)
        if len(powers) == len(trials):
            yield estimate(ceilings.RUN_MATMUL_POWER_WATTS, powers, **labels)


def _why_no_clock(case: Case, trials: Sequence[ProbeTrial], found: Sequence[Estimate]) -> list[str]:
    """Why clock and power of the largest products are not told, where they are not."""
    if not trials[0].values[probes.MATMUL_SECONDS.name]:
        return []
    if case.device == "cpu":
        return ["clock and power of products are absent: the node's collectors read those of GPUs only"]
    if any(one.metric in (ceilings.RUN_MATMUL_CLOCK_HERTZ.name, ceilings.RUN_MATMUL_POWER_WATTS.name) for one in found):
        return []
    return [
        "clock and power of products are absent: no beat of the node's log fell into them in each trial, or it does not"
        " name the GPU; products of 4,096 rows and more take long enough"
    ]


def _copies(trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for measured, shown in (
        (probes.COPY_SECONDS, ceilings.RUN_COPY_BANDWIDTH),
        (probes.COPY_WITH_HOST_SECONDS, ceilings.RUN_COPY_WITH_HOST_BANDWIDTH),
    ):
        for labels, times_s in _values(trials, measured):
            moved = moved_bytes(labels["kind"], int(labels["size"]))
            yield per_second(shown, moved, times_s, **labels)
