"""What the law expects of a run's collectives, on the link that the run's own sweep shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from bench.case import Case
from bench.judgement.estimate import Estimate, estimate
from collectors.catalogue import ceilings
from collectors.metric import Metric
from workloads.cards.card import ELEMENT_BYTES
from workloads.laws import all_reduce
from workloads.laws.all_reduce import ALGORITHMS, Algorithm
from workloads.laws.alpha_beta import Interval, NoFit, Point, fit
from workloads.laws.communication import Link, collective_time_s, wire_bytes, wire_messages
from workloads.laws.terms import Collective, Transfer

LIBRARY = "library"
"""The label `algorithm` of the backend's own collectives."""
CALIBRATION = "all_reduce"
"""The collective on whose fitted link all others of the run are expected."""

POOR_FIT_RATIO = 0.5
"""A fit that is farther off than this share of a measured time is said to be poor."""


def links(case: Case, found: Sequence[Estimate]) -> tuple[list[Estimate], list[str]]:
    """Latency and bandwidth by each of the library's collectives, and why one has none.

    Points of one trial share its luck: intervals are over the lines of the trials, which stand beside them.
    """
    estimates: list[Estimate] = []
    reasons: list[str] = []
    with_host = _sweeps(case, found, ceilings.RUN_COLLECTIVE_WITH_HOST_SECONDS)
    for collective, trials in _sweeps(case, found, ceilings.RUN_COLLECTIVE_SECONDS).items():
        try:
            whole = fit(trials)
        except NoFit as error:
            reasons.append(f"the link by {collective} is absent: {error}")
            continue
        if whole.largest_error_ratio > POOR_FIT_RATIO:
            reasons.append(
                f"the link by {collective} misses a size by {100 * whole.largest_error_ratio:.0f} %: no one latency and"
                " bandwidth holds at all sizes (another protocol, a cache), or times scatter"
            )
        estimates += [
            _fitted(ceilings.RUN_LINK_LATENCY_SECONDS, collective, whole.latency_s),
            _fitted(ceilings.RUN_LINK_BANDWIDTH, collective, whole.bandwidth_bytes_per_second),
        ]
        if collective in with_host:
            try:
                estimates.append(_latency_with_host(collective, with_host[collective]))
            except NoFit as error:
                reasons.append(f"the latency by {collective} with the host is absent: {error}")
    if estimates and case.backend == "nccl":
        sizes = [int(one.labels["size"]) for one in _of(found, ceilings.RUN_COLLECTIVE_SECONDS)]
        reasons.append(
            f"links are fitted to calls of {min(sizes):,} to {max(sizes):,} bytes, whichever algorithm and protocol"
            " NCCL chose for a size (LL, LL128, Simple): one latency and one bandwidth stand for all of them"
        )
    return estimates, reasons


def _latency_with_host(collective: str, trials: Sequence[Sequence[Point]]) -> Estimate:
    """What a loop in Python sees as the link's latency.

    Raises:
        NoFit: the sweep does not tell it.
    """
    return _fitted(ceilings.RUN_LINK_WITH_HOST_LATENCY_SECONDS, collective, fit(trials).latency_s)


def link_by(found: Iterable[Estimate], collective: str = CALIBRATION) -> Link | None:
    """The link that a run fitted by this collective, None where it fitted none."""
    values = {estimate.metric: estimate.median for estimate in found if estimate.labels == {"collective": collective}}
    bandwidth = values.get(ceilings.RUN_LINK_BANDWIDTH.name)
    if bandwidth is None:
        return None
    return Link(bandwidth_bytes_per_second=bandwidth, latency_s=values.get(ceilings.RUN_LINK_LATENCY_SECONDS.name, 0.0))


def expectations(case: Case, found: Sequence[Estimate]) -> Iterator[Estimate]:
    """Time of each measured collective by its law, and what a textbook's algorithm should count."""
    link = link_by(found)
    for measured in _of(found, ceilings.RUN_COLLECTIVE_SECONDS):
        labels = measured.labels
        size_bytes, algorithm = int(labels["size"]), labels["algorithm"]
        if algorithm in ALGORITHMS:
            cost = _cost(case, algorithm, size_bytes)
            for metric, expected in (
                (ceilings.RUN_COLLECTIVE_ROUNDS, cost.steps),
                (ceilings.RUN_COLLECTIVE_TOTAL_BYTES, cost.total_bytes),
                (ceilings.RUN_COLLECTIVE_PEAK_BYTES, cost.peak_node_bytes),
            ):
                if expected > 0:
                    yield estimate(metric, [expected], account="expected", **labels)
        if link is None or case.ranks == 1:
            continue
        if algorithm in ALGORITHMS:
            expected_s = all_reduce.time_s(cost, link)
        else:
            collective = cast(Collective, labels["collective"])
            expected_s = collective_time_s(collective, size_bytes, case.ranks, link, case.backend)
        yield estimate(ceilings.RUN_COLLECTIVE_EXPECTED_SECONDS, [expected_s], **labels)


def why_not_expected(case: Case, found: Sequence[Estimate]) -> list[str]:
    """Why no time is expected, where none is."""
    if case.ranks == 1 or link_by(found) is not None:
        return []
    return [f"times by the law are absent: they need the link by {CALIBRATION}, which this run does not tell"]


def _cost(case: Case, algorithm: Algorithm, size_bytes: int) -> all_reduce.Cost:
    element_bytes = ELEMENT_BYTES[case.precision]
    return all_reduce.cost(algorithm, case.ranks, size_bytes // element_bytes, element_bytes)


def _sweeps(case: Case, found: Sequence[Estimate], times: Metric) -> dict[str, list[list[Point]]]:
    """The points of each trial, by the library's collective. times: on the device alone, or with the host."""
    if case.ranks == 1:
        return {}
    sweeps: dict[str, list[list[Point]]] = defaultdict(list)
    for measured in _of(found, times):
        if measured.labels["algorithm"] != LIBRARY:
            continue
        name = measured.labels["collective"]
        collective = cast(Collective, name)
        transfer = Transfer(collective=collective, axis="data", payload_bytes=int(measured.labels["size"]))
        trials = sweeps[name] = sweeps[name] or [[] for _ in measured.trials]
        for points, time_s in zip(trials, measured.trials, strict=True):
            points.append(
                Point(
                    messages=wire_messages(collective, case.ranks, case.backend),
                    wire_bytes=wire_bytes(transfer, case.ranks, case.backend),
                    elapsed_s=time_s,
                )
            )
    return sweeps


def _of(found: Iterable[Estimate], metric: Metric) -> list[Estimate]:
    return [estimate for estimate in found if estimate.metric == metric.name]


def _fitted(metric: Metric, collective: str, whole: Interval) -> Estimate:
    return Estimate(
        metric=metric.name,
        labels={"collective": collective},
        median=whole.value,
        low=whole.low,
        high=whole.high,
        trials=whole.trials,
    )
