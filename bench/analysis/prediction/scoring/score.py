"""Scores the stored predictions of a history: error, bias, coverage of intervals, and order.

Runs that share a calibration share its error and are not independent. Intervals are therefore computed over clusters,
groups of runs that have no calibration in common, and the coverage has an effective number of runs. An error is
(predicted - measured) / measured; for exposed communication and bubble, which may be near 0, the divisor is the step.
Source: Liang and Zeger 1986, Longitudinal Data Analysis Using Generalized Linear Models (variance over clusters);
Kendall 1945, The Treatment of Ties in Ranking Problems (tau-b); Wilson 1927, Probable Inference.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeAlias

from bench.results.estimate import of_metric
from bench.results.two_sides import CONFIDENCE
from bench.store.history import History
from bench.store.prediction import MODEL_VERSION, PARTS, Part, PartError, errors_of
from bench.store.summary import Summary
from collectors.metrics.results import RUN_STEP_SECONDS
from workloads.cost_models.absent import Absent
from workloads.cost_models.shape import Shape

LEAST_RUNS_OF_COVERAGE = 100
"""With fewer runs, the share of intervals that contain the step is shown but not judged."""
LEAST_CALIBRATIONS = 5
"""With fewer clusters, their variance is too uncertain for an interval."""
LEAST_CASES = 3
"""With fewer cases of one shape, an order says too little."""
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Errors of several runs: their number, median, and 10 and 90 % quantiles; for a single run all three are equal."""

    runs: int
    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one strategy and world size. clusters: their number. parts: those with an error in some run."""

    strategy: str
    ranks: int
    runs: int
    clusters: int
    parts: Mapping[Part, Spread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure over all runs, with its 95 % interval. effective_runs: independent runs with equal certainty."""

    value: float
    runs: int
    clusters: int
    effective_runs: float
    low: float | None = None
    high: float | None = None
    why_no_interval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Cases of one shape on one machine, and how well predictions order them as measured.

    has_host: whether their predictions have the host's time. Predictions with it and without it are never ordered
        together: those without it are too fast.
    tau: Kendall's tau-b of the cases' median steps: 1 if all pairs are in order, 0 as by chance, -1 if all are
        reversed.
    """

    shape: Shape
    hardware: str
    has_host: bool
    cases: int
    tau: float | Absent


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a history's predictions.

    left_out: number of training runs that are not scored, by reason. bias: the geometric mean of predicted divided by
    measured steps. coverage: the share of intervals that contain the measured step; None if no run has one.
    """

    runs: int
    clusters: int
    left_out: Mapping[str, int]
    groups: tuple[Group, ...]
    bias: Figure | None
    coverage: Figure | None
    orders: tuple[Order, ...]


def score_history(history: History) -> Score:
    """Score all runs of the history.

    Raises:
        InfrastructureFailed: the history cannot be read.
    """
    return score(_all_runs(history))


def _all_runs(history: History) -> Iterator[Summary]:
    skipped = 0
    while page := history.runs(_PAGE, skipped=skipped):
        yield from page
        skipped += len(page)


def score(summaries: Iterable[Summary]) -> Score:
    """Score the predictions of these runs; probes have none and are ignored."""
    runs: list[Summary] = []
    left_out: Counter[str] = Counter()
    for summary in summaries:
        if summary.case.model is not None:
            reason = _why_left_out(summary)
            if reason is None:
                runs.append(summary)
            else:
                left_out[reason] += 1
    clusters = clusters_of([_calibrations(run) for run in runs])
    errors = [{each.name: each for each in errors_of(run)} for run in runs]
    return Score(
        runs=len(runs),
        clusters=len(set(clusters)),
        left_out=dict(left_out),
        groups=tuple(_groups(runs, clusters, errors)),
        bias=_bias(clusters, errors),
        coverage=_coverage(clusters, errors),
        orders=tuple(_orders(runs)),
    )


def _why_left_out(summary: Summary) -> str | None:
    stored = summary.prediction
    if stored is None:
        return "without a stored prediction"
    if stored.model_version != MODEL_VERSION:
        return f"predicted by model version {stored.model_version}"
    if summary.outcome != "done" or summary.drill is not None:
        return "failed, interrupted, or a fire drill"
    if stored.step_s is None:
        return "begun before the ceiling or links were measured, or not covered by a cost model"
    return None


def _calibrations(run: Summary) -> Sequence[str]:
    assert run.prediction is not None, "runs without one are left out"
    return run.prediction.calibrations


def clusters_of(calibrations: Sequence[Sequence[str]]) -> list[int]:
    """Return the cluster of each run: runs that share a calibration, directly or through other runs, are in one.

    Example: runs on (a, b), (b, c) and (d) are in clusters 0, 0 and 1. A run without calibration is a cluster of its
        own.
    """
    joined: dict[str, str] = {}

    def root(name: str) -> str:
        while joined.setdefault(name, name) != name:
            name = joined[name]
        return name

    owns = [list(names) or [f"run {place}"] for place, names in enumerate(calibrations)]
    for names in owns:
        for name in names[1:]:
            joined[root(name)] = root(names[0])
    numbers: dict[str, int] = {}
    return [numbers.setdefault(root(names[0]), len(numbers)) for names in owns]


# Errors by strategy and world size


_Errors: TypeAlias = Sequence[Mapping[str, PartError]]
"""The errors of each run, by the part's name."""
_NAMES: Mapping[Part, str] = {part: "memory: total" if part == "memory" else part for part in PARTS}


def _groups(runs: Sequence[Summary], clusters: Sequence[int], errors: _Errors) -> Iterator[Group]:
    together: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        together[run.case.strategy, run.case.ranks].append(place)
    for (strategy, ranks), places in sorted(together.items()):
        parts: dict[Part, Spread] = {}
        for part in PARTS:
            of_part = [each.error for place in places if (each := errors[place].get(_NAMES[part])) is not None]
            if known := [error for error in of_part if error is not None]:
                parts[part] = spread_of(known)
        yield Group(
            strategy=strategy,
            ranks=ranks,
            runs=len(places),
            clusters=len({clusters[place] for place in places}),
            parts=parts,
        )


def spread_of(errors: Sequence[float]) -> Spread:
    """Return the median and the 80 % range of errors, with quantiles interpolated between neighbours."""
    ordered = sorted(errors)

    def quantile(share: float) -> float:
        below = math.floor(place := share * (len(ordered) - 1))
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return Spread(runs=len(ordered), median=median(ordered), low=quantile(0.1), high=quantile(0.9))


# Bias and coverage, over clusters


def _bias(clusters: Sequence[int], errors: _Errors) -> Figure | None:
    """Return the geometric mean of predicted divided by measured steps."""
    steps = [of_run["step"].error if "step" in of_run else None for of_run in errors]
    known = [(math.log(1 + error), clusters[place]) for place, error in enumerate(steps) if error is not None]
    if not known:
        return None
    logarithms, of_clusters = zip(*known, strict=True)
    return mean_over_clusters(logarithms, of_clusters, is_logarithm=True)


def mean_over_clusters(values: Sequence[float], clusters: Sequence[int], *, is_logarithm: bool = False) -> Figure:
    """Return the mean of the values with Student's t interval over clusters, which may differ in size.

    is_logarithm: the values are logarithms, and the figure their exponential.
    """
    from scipy.special import stdtrit  # Imported here: commands that only read predictions need no scipy.

    mean, count = fmean(values), len(set(clusters))
    effective = _effective_runs(values, clusters)
    turned = math.exp if is_logarithm else float
    figure = Figure(value=turned(mean), runs=len(values), clusters=count, effective_runs=effective)
    if count < LEAST_CALIBRATIONS:
        return _without_interval(figure)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(_variance_of_mean(values, clusters))
    return Figure(
        value=turned(mean),
        runs=len(values),
        clusters=count,
        effective_runs=effective,
        low=turned(mean - half),
        high=turned(mean + half),
    )


def _without_interval(figure: Figure) -> Figure:
    groups = "1 independent calibration" if figure.clusters == 1 else f"{figure.clusters} independent calibrations"
    return Figure(
        value=figure.value,
        runs=figure.runs,
        clusters=figure.clusters,
        effective_runs=figure.effective_runs,
        why_no_interval=f"the runs rest on {groups}; an interval needs {LEAST_CALIBRATIONS}",
    )


def _variance_of_mean(values: Sequence[float], clusters: Sequence[int]) -> float:
    """Return the variance of the mean over clusters, from each cluster's sum of deviations, with factor C / (C - 1)."""
    mean, sums = fmean(values), defaultdict[int, float](float)
    for value, cluster in zip(values, clusters, strict=True):
        sums[cluster] += value - mean
    count = len(sums)
    return count / (count - 1) * sum(total**2 for total in sums.values()) / len(values) ** 2


def _effective_runs(values: Sequence[float], clusters: Sequence[int]) -> float:
    """Return how many independent runs would give an equally certain mean, between the numbers of clusters and runs.

    If all values are equal, their variance says nothing, and only clusters count.
    """
    count, mean = len(set(clusters)), fmean(values)
    alone = sum((value - mean) ** 2 for value in values) / len(values)
    if count == 1 or alone == 0:
        return float(count)
    over_clusters = _variance_of_mean(values, clusters)
    return float(len(values)) if over_clusters == 0 else min(len(values), max(count, alone / over_clusters))


def _coverage(clusters: Sequence[int], errors: _Errors) -> Figure | None:
    """Return the share of intervals that contain the measured step."""
    insides = [of_run["step"].is_inside if "step" in of_run else None for of_run in errors]
    known = [(inside, clusters[place]) for place, inside in enumerate(insides) if inside is not None]
    if not known:
        return None
    hits, of_clusters = zip(*known, strict=True)
    return share_over_clusters(hits, of_clusters)


def share_over_clusters(hits: Sequence[bool], clusters: Sequence[int]) -> Figure:
    """Return the share of hits with Wilson's interval for the effective number of runs."""
    values = [float(hit) for hit in hits]
    share, effective, z = fmean(values), _effective_runs(values, clusters), 1.959964
    figure = Figure(value=share, runs=len(hits), clusters=len(set(clusters)), effective_runs=effective)
    if figure.clusters < LEAST_CALIBRATIONS:
        return _without_interval(figure)
    centre = (share + z**2 / (2 * effective)) / (1 + z**2 / effective)
    root = math.sqrt(share * (1 - share) / effective + z**2 / (4 * effective**2))
    half = z * root / (1 + z**2 / effective)
    return Figure(
        value=share,
        runs=len(hits),
        clusters=figure.clusters,
        effective_runs=effective,
        low=min(share, centre - half),
        high=max(share, centre + half),
    )


# Whether the order was right


def _orders(runs: Sequence[Summary]) -> Iterator[Order]:
    """Yield the order of each shape, those with the most cases first."""
    steps: dict[tuple[str, Shape, bool], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        assert run.prediction is not None, "runs without one are left out"
        measured = of_metric(run.estimates, RUN_STEP_SECONDS)
        if measured and run.prediction.step_s is not None:
            pair = (run.prediction.step_s, measured[0].median)
            has_host = run.prediction.host_s is not None
            steps[run.hardware, run.case.shape, has_host][run.case.key()].append(pair)
    for (hardware, shape, has_host), cases in sorted(steps.items(), key=lambda item: -len(item[1])):
        medians = [tuple(median(side) for side in zip(*pairs, strict=True)) for pairs in cases.values()]
        predicted, measured_s = ([pair[side] for pair in medians] for side in (0, 1))
        tau = kendall(predicted, measured_s)
        yield Order(shape=shape, hardware=hardware, has_host=has_host, cases=len(cases), tau=tau)


def kendall(first: Sequence[float], second: Sequence[float]) -> float | Absent:
    """Return Kendall's tau-b of two rankings of the same cases; absent for too few cases, or if one side is all ties.

    Pairs in the same order minus pairs in opposite orders, divided by sqrt(pairs untied in the first * pairs untied in
    the second). Implemented here because importing scipy.stats takes longer than everything else in this module.
    """
    if len(first) < LEAST_CASES:
        return Absent(reason=f"{len(first)} of at least {LEAST_CASES} cases were measured")
    agreeing = untied_first = untied_second = 0
    for place in range(len(first)):
        for other in range(place):
            first_sign = _sign(first[place] - first[other])
            second_sign = _sign(second[place] - second[other])
            agreeing += first_sign * second_sign
            untied_first += abs(first_sign)
            untied_second += abs(second_sign)
    if not untied_first or not untied_second:
        return Absent(reason=f"all {len(first)} cases are {'predicted' if not untied_first else 'measured'} alike")
    return agreeing / math.sqrt(untied_first * untied_second)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
