"""The Estimates of a probe's run from its ranks' logs, with a reason for each one that is absent.

They are the measured times and rates, the link (latency and bandwidth) fitted to each collective's sweep of sizes, and
the cost model's expected time of each collective on that link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import cast

from bench.case import Case
from bench.results.estimate import Estimate, estimate, of_metric, per_second
from bench.results.gpu_clocks import GpuBeats, GpuReading
from bench.results.trials import RankTrial, join_by_labels, read_rank_logs, samples_of
from collectors.metrics import probes as metrics
from collectors.metrics.metric import Metric
from collectors.sample_log import Reading
from workloads.cost_models.communication import (
    COLLECTIVES,
    Link,
    bus_factor,
    collective_time_s,
    wire_bytes,
    wire_messages,
)
from workloads.cost_models.link_fit import Interval, NoLinkFit, TimedSize, fit
from workloads.cost_models.terms import Collective, Transfer
from workloads.probes import cost_model as probes
from workloads.probes.cost_model import ALGORITHMS, matmul_flops, moved_bytes
from workloads.spec import ELEMENT_BYTES

# The link fitted to a run's sweeps, and the cost model's expectations for collectives on it

LIBRARY = "library"
"""Value of the label `algorithm` for the backend's own collectives."""
CALIBRATION: Collective = "all_reduce"
"""The collective whose fitted link is used for the expected times of all collectives."""

POOR_FIT_RATIO = 0.5
"""A fit whose largest error exceeds this share of the measured time gets a note."""


def fit_links(case: Case, measured: Sequence[Estimate]) -> tuple[list[Estimate], list[str]]:
    """Fit latency and bandwidth to each of the library's collectives; return them, and reasons for absent fits.

    Points of one trial are not independent, so intervals come from one fit per trial.
    """
    estimates: list[Estimate] = []
    reasons: list[str] = []
    with_host = _sweeps(case, measured, metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    for collective, trials in _sweeps(case, measured, metrics.RUN_COLLECTIVE_SECONDS).items():
        try:
            fitted = fit(trials)
        except NoLinkFit as error:
            reasons.append(f"the link by {collective} is absent: {error}")
            continue
        if fitted.largest_error_ratio > POOR_FIT_RATIO:
            reasons.append(
                f"the link by {collective} misses a size by {100 * fitted.largest_error_ratio:.0f} %: no single latency"
                " and bandwidth fits all sizes (another protocol, a cache), or times scatter"
            )
        estimates.append(_fitted(metrics.RUN_LINK_LATENCY_SECONDS, collective, fitted.latency_s))
        estimates.append(_fitted(metrics.RUN_LINK_BANDWIDTH, collective, fitted.bandwidth_bytes_per_second))
        if collective in with_host:
            # The latency that a loop in Python sees, fitted to times that include the host.
            try:
                latency = fit(with_host[collective]).latency_s
                estimates.append(_fitted(metrics.RUN_LINK_WITH_HOST_LATENCY_SECONDS, collective, latency))
            except NoLinkFit as error:
                reasons.append(f"the latency by {collective} with the host is absent: {error}")
    if estimates and case.backend == "nccl":
        sizes = [int(estimate.labels["size"]) for estimate in of_metric(measured, metrics.RUN_COLLECTIVE_SECONDS)]
        reasons.append(
            f"links are fitted to calls of {min(sizes):,} to {max(sizes):,} bytes, whichever algorithm and protocol"
            " NCCL chose for a size (LL, LL128, Simple): one latency and one bandwidth stand for all of them"
        )
    return estimates, reasons


def _fitted(metric: Metric, collective: str, interval: Interval) -> Estimate:
    return Estimate(
        metric=metric.name,
        labels={"collective": collective},
        median=interval.value,
        low=interval.low,
        high=interval.high,
        trials=interval.trials,
    )


def links_by(estimates: Iterable[Estimate]) -> dict[Collective, Link]:
    """Return the link that a run fitted to each collective, in the order of `COLLECTIVES`."""
    bandwidths: dict[str, float] = {}
    latencies_s: dict[str, float] = {}
    for each in estimates:
        if each.metric == metrics.RUN_LINK_BANDWIDTH.name:
            bandwidths[each.labels["collective"]] = each.median
        elif each.metric == metrics.RUN_LINK_LATENCY_SECONDS.name:
            latencies_s[each.labels["collective"]] = each.median
    return {
        collective: Link(bandwidth_bytes_per_second=bandwidths[collective], latency_s=latencies_s.get(collective, 0.0))
        for collective in COLLECTIVES
        if collective in bandwidths
    }


def link_by(estimates: Iterable[Estimate], collective: Collective = CALIBRATION) -> Link | None:
    """Return the link that a run fitted to this collective; None if it fitted none."""
    return links_by(estimates).get(collective)


def expectations(case: Case, estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """Yield the expected time of each measured collective, and the expected rounds and bytes of textbook algorithms."""
    link = link_by(estimates)
    for measured in of_metric(estimates, metrics.RUN_COLLECTIVE_SECONDS):
        labels = measured.labels
        size_bytes, algorithm = int(labels["size"]), labels["algorithm"]
        if algorithm in ALGORITHMS:
            element_bytes = ELEMENT_BYTES[case.precision]
            cost = probes.cost(algorithm, case.ranks, size_bytes // element_bytes, element_bytes)
            for metric, expected in (
                (metrics.RUN_COLLECTIVE_ROUNDS, cost.steps),
                (metrics.RUN_COLLECTIVE_TOTAL_BYTES, cost.total_bytes),
                (metrics.RUN_COLLECTIVE_PEAK_BYTES, cost.peak_node_bytes),
            ):
                if expected > 0:
                    yield estimate(metric, [expected], account="expected", **labels)
        if link is None or case.ranks == 1:
            continue
        if algorithm in ALGORITHMS:
            expected_s = probes.time_s(cost, link)
        else:
            collective = cast(Collective, labels["collective"])
            expected_s = collective_time_s(collective, size_bytes, case.ranks, link, case.backend)
        yield estimate(metrics.RUN_COLLECTIVE_EXPECTED_SECONDS, [expected_s], **labels)


def _sweeps(case: Case, estimates: Sequence[Estimate], times: Metric) -> dict[str, list[list[TimedSize]]]:
    """Return the points of each trial's sweep, by the library's collective.

    times: the metric to read, with or without the host's time.
    """
    if case.ranks == 1:
        return {}
    sweeps: dict[str, list[list[TimedSize]]] = defaultdict(list)
    for measured in of_metric(estimates, times):
        if measured.labels["algorithm"] != LIBRARY:
            continue
        name = measured.labels["collective"]
        collective = cast(Collective, name)
        transfer = Transfer(collective=collective, axis="data", payload_bytes=int(measured.labels["size"]))
        trials = sweeps[name] = sweeps[name] or [[] for _ in measured.trials]
        for points, time_s in zip(trials, measured.trials, strict=True):
            points.append(
                TimedSize(
                    messages=wire_messages(collective, case.ranks, case.backend),
                    wire_bytes=wire_bytes(transfer, case.ranks, case.backend),
                    elapsed_s=time_s,
                )
            )
    return sweeps


LabelValues = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeTrial:
    """One complete trial of a probe.

    values: values joined over all ranks, by metric name and then by label values. gpu_readings: clock and power of the
    slowest rank's GPU, by shape of a matrix product.
    """

    values: Mapping[str, Mapping[LabelValues, float]]
    gpu_readings: Mapping[LabelValues, GpuReading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLogs:
    """The trials that every rank completed, and the ranks' notes on what is absent.

    choices: collective, size, algorithm and protocol that NCCL logged as chosen, in a trial that is not in `trials`.
    """

    trials: tuple[ProbeTrial, ...]
    notes: tuple[str, ...]
    choices: tuple[LabelValues, ...] = ()


JOINS: dict[Metric, Callable[[Sequence[float]], float]] = {
    metrics.COLLECTIVE_SECONDS: fmean,  # As in nccl-tests.
    metrics.COLLECTIVE_WITH_HOST_SECONDS: fmean,
    metrics.COLLECTIVE_ROUNDS: max,
    metrics.COLLECTIVE_SENT_BYTES: sum,
    metrics.COLLECTIVE_PEAK_BYTES: max,
    metrics.MATMUL_SECONDS: max,
    metrics.MATMUL_WITH_HOST_SECONDS: max,
    metrics.COPY_SECONDS: max,
    metrics.COPY_WITH_HOST_SECONDS: max,
    metrics.PAIR_SECONDS: max,
    metrics.PAIR_WITH_HOST_SECONDS: max,
}
"""Functions that join the ranks' values of a metric into one value."""


def read_probe_trials(folder: Path, ranks: int) -> ProbeLogs:
    """Join the logs of all ranks of a probe's run.

    Raises:
        NewerSchema: a newer version wrote the logs.
    """
    logs = read_rank_logs(folder, ranks, mark="probe")
    logged = read_rank_logs(folder, ranks, mark="nccl_log").trials.values()
    beats = GpuBeats(folder)
    return ProbeLogs(
        trials=tuple(
            ProbeTrial(
                values={metric.name: join_by_labels(parts, "probe", metric, join) for metric, join in JOINS.items()},
                gpu_readings=dict(_gpu_readings(parts, beats)),
            )
            for parts in logs.trials.values()
        ),
        notes=logs.notes,
        choices=tuple(
            labels for parts in logged for labels in join_by_labels(parts, "nccl_log", metrics.COLLECTIVE_CHOICE, max)
        ),
    )


def results_of_probe(case: Case, logs: ProbeLogs) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return all Estimates of a probe's run, and notes on what is absent."""
    trials = logs.trials
    if not trials:
        return (), ("no trial was completed: all figures are absent",)
    estimates = [*_collectives(case, trials), *_choices(logs), *_counts(trials), *_rates(trials)]
    notes = [f"intervals are absent: {estimates[0].why_no_interval}"] if estimates[0].why_no_interval else []
    fitted, reasons = fit_links(case, estimates)
    estimates += fitted
    estimates += expectations(case, estimates)
    reasons += _why_no_clock(case, trials, estimates)
    if of_metric(estimates, metrics.RUN_COLLECTIVE_SECONDS):
        if case.ranks > 1 and link_by(estimates) is None:
            link = f"the link by {CALIBRATION}"
            reasons.append(f"predicted times are absent: they need {link}, which this run did not measure")
        reasons += _why_no_choice(case, logs)
    return tuple(estimates), (*notes, *reasons)


def _gpu_readings(parts: Sequence[RankTrial], beats: GpuBeats) -> Iterator[tuple[LabelValues, GpuReading]]:
    """Yield the node's last reading of the slowest rank's GPU while it computed each shape, if there is one."""
    slowest: dict[LabelValues, tuple[float, RankTrial, Reading]] = {}
    for part in parts:
        for reading in part.of("probe"):
            for sample in samples_of([reading], metrics.MATMUL_SECONDS):
                labels = tuple(sample.labels[name] for name in metrics.MATMUL_SECONDS.labels)
                if labels not in slowest or sample.value > slowest[labels][0]:
                    slowest[labels] = sample.value, part, reading
    for labels, (_, part, reading) in slowest.items():
        if part.gpu_uuid is None or reading.begun_ns is None:
            continue
        if (beat := beats.last(part.gpu_uuid, reading.begun_ns, reading.time_ns)) is not None:
            yield labels, beat


def _values(trials: Sequence[ProbeTrial], metric: Metric) -> Iterable[tuple[dict[str, str], list[float]]]:
    """Yield the labels that every trial has, with the value of each trial."""
    by_trial = [trial.values[metric.name] for trial in trials]
    for labels in by_trial[0]:
        if all(labels in values for values in by_trial):
            yield dict(zip(metric.labels, labels, strict=True)), [values[labels] for values in by_trial]


def _collectives(case: Case, trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for labels, times_s in _values(trials, metrics.COLLECTIVE_SECONDS):
        size_bytes = int(labels["size"])
        yield estimate(metrics.RUN_COLLECTIVE_SECONDS, times_s, **labels)
        yield per_second(metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH, size_bytes, times_s, **labels)
        if case.ranks > 1:  # A single rank uses no bus, whatever its factor.
            bus_bytes = size_bytes * bus_factor(cast(Collective, labels["collective"]), case.ranks)
            yield per_second(metrics.RUN_COLLECTIVE_BUS_BANDWIDTH, float(bus_bytes), times_s, **labels)
    for labels, times_s in _values(trials, metrics.COLLECTIVE_WITH_HOST_SECONDS):
        yield estimate(metrics.RUN_COLLECTIVE_WITH_HOST_SECONDS, times_s, **labels)


def _choices(logs: ProbeLogs) -> Iterable[Estimate]:
    """Yield NCCL's choices for the measured collectives and sizes."""
    measured = {(collective, size) for collective, _, size in logs.trials[0].values[metrics.COLLECTIVE_SECONDS.name]}
    for labels in logs.choices:
        choice = dict(zip(metrics.COLLECTIVE_CHOICE.labels, labels, strict=True))
        if (choice["collective"], choice["size"]) in measured:  # NCCL also logs barriers, as all_reduces of 4 bytes.
            yield estimate(metrics.RUN_COLLECTIVE_CHOICE, [1], **choice)


def _why_no_choice(case: Case, logs: ProbeLogs) -> list[str]:
    if case.backend == "gloo":
        return ["algorithm and protocol are absent: gloo does not report its choice"]
    if logs.choices:
        return ["trial 0 asked NCCL for its choices, which prints a line for each call: its times are left out"]
    if case.trials == 1:
        return ["algorithm and protocol are absent: with a single trial none asks NCCL; use --trials 2"]
    return []


_COUNTS = (
    (metrics.COLLECTIVE_ROUNDS, metrics.RUN_COLLECTIVE_ROUNDS),
    (metrics.COLLECTIVE_SENT_BYTES, metrics.RUN_COLLECTIVE_TOTAL_BYTES),
    (metrics.COLLECTIVE_PEAK_BYTES, metrics.RUN_COLLECTIVE_PEAK_BYTES),
)
_RATES = (
    (metrics.MATMUL_SECONDS, metrics.RUN_MATMUL_FLOPS),
    (metrics.MATMUL_WITH_HOST_SECONDS, metrics.RUN_MATMUL_WITH_HOST_FLOPS),
    (metrics.COPY_SECONDS, metrics.RUN_COPY_BANDWIDTH),
    (metrics.COPY_WITH_HOST_SECONDS, metrics.RUN_COPY_WITH_HOST_BANDWIDTH),
    (metrics.PAIR_SECONDS, metrics.RUN_PAIR_BANDWIDTH),
    (metrics.PAIR_WITH_HOST_SECONDS, metrics.RUN_PAIR_WITH_HOST_BANDWIDTH),
)


def _counts(trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    for rank_metric, run_metric in _COUNTS:
        for labels, values in _values(trials, rank_metric):
            if min(values) > 0:
                yield estimate(run_metric, values, account="counted", **labels)


def _rates(trials: Sequence[ProbeTrial]) -> Iterable[Estimate]:
    """Yield the rates of products, copies and pairs, and their GPU's clock and power at that time."""
    for rank_metric, run_metric in _RATES:
        for labels, times_s in _values(trials, rank_metric):
            if "kind" in labels:
                amount = moved_bytes(labels["kind"], int(labels["size"]))
            elif "pair" in labels:
                amount = int(labels["size"])
            else:
                amount = matmul_flops(int(labels["m"]), int(labels["n"]), int(labels["k"]))
            yield per_second(run_metric, amount, times_s, **labels)
    for place in trials[0].values[metrics.MATMUL_SECONDS.name]:
        labels = dict(zip(metrics.MATMUL_SECONDS.labels, place, strict=True))
        beats = [trial.gpu_readings[place] for trial in trials if place in trial.gpu_readings]
        clocks = [beat.clock_hertz for beat in beats if beat.clock_hertz]
        powers = [beat.power_watts for beat in beats if beat.power_watts]
        if len(clocks) == len(trials):
            yield estimate(metrics.RUN_MATMUL_CLOCK_HERTZ, clocks, **labels)
        if len(powers) == len(trials):
            yield estimate(metrics.RUN_MATMUL_POWER_WATTS, powers, **labels)


def _why_no_clock(case: Case, trials: Sequence[ProbeTrial], estimates: Sequence[Estimate]) -> list[str]:
    """Return why clock and power of all products are absent; empty if a product has one."""
    if not trials[0].values[metrics.MATMUL_SECONDS.name]:
        return []
    if case.device == "cpu":
        return ["clock and power of products are absent: the node's collectors read those of GPUs only"]
    if of_metric(estimates, metrics.RUN_MATMUL_CLOCK_HERTZ) or of_metric(estimates, metrics.RUN_MATMUL_POWER_WATTS):
        return []
    return [
        "clock and power of products are absent: no beat of the node's log fell into them in each trial, or it does not"
        " name the GPU; products of 4,096 rows and more take long enough"
    ]
