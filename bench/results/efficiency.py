"""Scaling efficiency of a run against a baseline run on fewer ranks, weak or strong; and the cost model's prediction.

A prediction uses one rank's step and a measured link, and nothing that was measured on the run's own ranks, so it can
be wrong. A law fitted to a curve's own points (`bench.analysis.scaling.laws`) describes them and predicts nothing.

The loss is divided like the step: compute, exposed communication, waiting, bubble, data, copies and idle; the rest is
unexplained, so that all parts add up to the step. With ideal scaling each part of the base's step would shrink like the
step, by the factor f (1 in weak scaling, N0 / N in strong). A part of the loss is the excess of the run: part(N) - f
part(N0). docs/guides/scaling.md has each part's formula and its limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Literal

from bench.case import Case
from bench.errors import Misuse
from bench.results.estimate import (
    Estimate,
    EstimatedRatio,
    by_labels,
    estimate,
    estimate_share,
    of_metric,
    ratio,
)
from bench.results.step_parts import PARTS, MeasuredStep, PartName, StepAccount, step_account
from bench.results.two_sides import in_groups
from collectors.metrics.results import (
    RUN_EXPECTED_EFFICIENCY,
    RUN_PHASE_SECONDS,
    RUN_TOKENS_PER_SECOND,
    RUN_TOKENS_PER_SECOND_PER_DEVICE,
)
from workloads.core.precision_options import GRAD_DTYPE, WEIGHTS
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect
from workloads.cost_models.shape import unlike
from workloads.cost_models.step_time import ComputeTime
from workloads.pipeline_parallel.expected_step import step_of

Scaling = Literal["weak", "strong"]
BaselineOrigin = Literal["beside", "history", "told", "unknown"]
"""beside: measured in turn with the run. history: an earlier run, measured in the same way. told: named by a person.
unknown: the run is of an older version, which did not record it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingEfficiency:
    """Tokens per second and rank of a run, divided by those of its baseline.

    scaling: weak if each rank that trains has the same work as in the baseline, strong if the total work is the same.
    baseline_ranks: 1, unless a person named a run of several ranks, or the first run of a scaling curve has several.
    is_beside: whether the baseline was measured in turn with the run; None if an older version wrote it.
    is_told: whether a person named the baseline, which may then have been measured differently.
    """

    scaling: Scaling
    baseline_run: str
    ratio: EstimatedRatio
    baseline_ranks: int = 1
    is_beside: bool | None = None
    is_told: bool = False

    @property
    def baseline(self) -> BaselineOrigin:
        """Origin of the baseline; only efficiencies with the same origin are comparable."""
        if self.is_told:
            return "told"
        if self.is_beside is None:
            return "unknown"
        return "beside" if self.is_beside else "history"


def scaling_efficiency(
    case: Case,
    tokens_per_second: Sequence[float],
    baseline_case: Case,
    baseline_tokens_per_second: Sequence[float],
    baseline_run: str,
    *,
    is_beside: bool | None = None,
    is_told: bool = False,
) -> ScalingEfficiency:
    """Return the efficiency of a run against a baseline. Tokens per second: one value per trial, over all ranks.

    The caller ensures that both ran on the same hardware: a Case does not know it.

    Raises:
        Misuse: the baseline does not fit, see `scaling_between`.
    """
    return ScalingEfficiency(
        scaling=scaling_between(case, baseline_case),
        baseline_run=baseline_run,
        ratio=ratio(
            estimate(RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / case.ranks for rate in tokens_per_second]),
            estimate(
                RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / baseline_case.ranks for rate in baseline_tokens_per_second]
            ),
        ),
        baseline_ranks=baseline_case.ranks,
        is_beside=is_beside,
        is_told=is_told,
    )


def scaling_between(case: Case, baseline_case: Case) -> Scaling:
    """Return whether a run against this baseline is weak or strong scaling.

    The strategies may differ, and so may `accumulate`, which does not change the batch. `weights` may not differ,
    because different arithmetic has a different speed. Nor may `grad_dtype`, except that one rank with fp32 weights
    reduces no gradients.

    Raises:
        Misuse: the baseline does not have fewer ranks, has another workload, or a batch that fits neither scaling.
    """
    name = f"baseline ({baseline_case.strategy}, ranks {baseline_case.ranks})"
    if baseline_case.ranks >= case.ranks:
        raise Misuse(
            f"{name} does not have fewer ranks than the run, which has {case.ranks}; choose one with fewer,"
            " preferably 1"
        )
    differences = _differences_of_cases(case, baseline_case)
    if differences:
        remedy = "only ranks, strategy and batch may differ"
        if (weights := WEIGHTS.of(case)) != WEIGHTS.of(baseline_case):
            remedy += f': set option weights={weights} in both (in a suite: options = {{ weights = "{weights}" }})'
        raise Misuse(f"{name} is another workload: {'; '.join(differences)}; {remedy}")
    batch, baseline_batch = case.shape.batch, baseline_case.shape.batch
    trained, baseline_trained = (side.spec().training_ranks(side) for side in (case, baseline_case))
    if batch * baseline_trained == baseline_batch * trained:
        return "weak"
    if batch == baseline_batch:
        return "strong"
    share = batch * baseline_trained
    weak = f"{share // trained} (weak) or " if share % trained == 0 else ""
    raise Misuse(
        f"{name} has batch {baseline_batch}, which is neither scaling of batch {batch} on {case.ranks} ranks;"
        f" it may be {weak}{batch} (strong)"
    )


def _differences_of_cases(case: Case, baseline: Case) -> list[str]:
    pairs: list[tuple[str, object, object]] = [
        (name, case.shape.word(name), baseline.shape.word(name))
        for name in unlike(case.shape, baseline.shape)
        if name != "batch"
    ]
    pairs += [
        (field, getattr(case, field), getattr(baseline, field)) for field in ("device", "precision", "threads", "bind")
    ]
    if case.strategy == baseline.strategy:
        pairs.append(("version", case.version, baseline.version))
    free = {"accumulate"}
    if baseline.ranks == 1 and WEIGHTS.of(baseline) != "bf16":
        free.add(GRAD_DTYPE.name)
    baseline_names = {option.name for option in baseline.spec().options} - free
    shared = sorted(
        (option for option in case.spec().options if option.name in baseline_names), key=lambda option: option.name
    )
    pairs += [(f"option {option.name}", option.of(case), option.of(baseline)) for option in shared]
    return [
        f"{name} is {baseline_value}, the run's is {value}"
        for name, value, baseline_value in pairs
        if value != baseline_value
    ]


def expected_efficiency(
    case: Case,
    baseline_case: Case,
    baseline_estimates: Sequence[Estimate],
    interconnect: Interconnect | Absent,
    *,
    scaling: Scaling,
    baseline: BaselineOrigin,
) -> Estimate | Absent:
    """Return the efficiency of a case according to the cost model, with a value for each trial of its baseline.

    A rank's step is the step of one rank, shortened to its share of the work, plus a pipeline's bubble and the part of
    the case's transfers on these links that its computing cannot hide. Everything else is assumed to scale ideally: no
    rank waits for another or disturbs it, and work that the strategy does not divide among ranks counts as divided. So
    a run far below this value loses time to something other than its transfers. Links are taken as exact: the interval
    is that of the one rank's trials. Absent if the link of a level that the case's ranks cross is unknown.
    Example: a step of 1.0 s, 0.25 s of transfers that nothing hides, weak scaling: 1.0 / 1.25 = 0.8.
    """
    if why := _not_covered(case, baseline_case):
        return Absent(reason=why)
    phases = by_labels(baseline_estimates, RUN_PHASE_SECONDS)
    rates = of_metric(baseline_estimates, RUN_TOKENS_PER_SECOND)
    if not rates or ("forward",) not in phases or ("backward",) not in phases:
        return Absent(reason="its baseline does not record how long forward and backward take")
    work = Fraction(case.shape.tokens, baseline_case.shape.tokens)
    ideal = work / case.ranks  # At the one rank's tokens per second and rank: servers also count as ranks,
    compute_share = work / case.spec().training_ranks(case)  # but only ranks that train share the work.
    shares = []
    for rate, forward_s, backward_s in zip(
        rates[0].trials, phases["forward",].trials, phases["backward",].trials, strict=True
    ):
        alone_s = baseline_case.shape.tokens / rate
        compute = ComputeTime(forward_s=float(compute_share) * forward_s, backward_s=float(compute_share) * backward_s)
        predicted = step_of(case, case.spec(), compute=compute, interconnect=interconnect)
        if isinstance(predicted, Absent):
            return predicted
        added_s = predicted.exposed_s + predicted.bubble_s
        shares.append(float(ideal) * alone_s / (float(compute_share) * alone_s + added_s))
    return estimate_share(RUN_EXPECTED_EFFICIENCY, shares, scaling=scaling, baseline=baseline)


def _not_covered(case: Case, baseline_case: Case) -> str | None:
    """Return why the cost model cannot predict the efficiency; None if it can."""
    if not case.spec().transfers(case):
        return f"{case.title} sends nothing in the cost model"
    if baseline_case.ranks != 1:
        return (
            f"the baseline has {baseline_case.ranks} ranks, whose step includes communication; use a baseline with"
            " 1 rank"
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPart:
    """One part of the loss; negative if the run has less of it than ideal scaling of the base would give.

    lost_s: per step. lost_ratio: share of the run's step, as are the ends of its interval. low_s, high_s: 95 % interval
    of the trials' seconds as two groups, widened to contain `lost_s`; None without an interval.
    """

    name: PartName
    lost_s: float
    low_s: float | None
    high_s: float | None
    step_s: float

    @property
    def lost_ratio(self) -> float:
        """Loss as a share of the run's step."""
        return self.lost_s / self.step_s

    @property
    def low_ratio(self) -> float | None:
        """Lower end of the share; the step is taken as exact, since its noise is small compared with the parts'."""
        return None if self.low_s is None else self.low_s / self.step_s

    @property
    def high_ratio(self) -> float | None:
        """Upper end of the share."""
        return None if self.high_s is None else self.high_s / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of one run against its base.

    step_s, ideal_s: the run's step, and the step under ideal scaling of the base: ideal_s / step_s is the efficiency.
    parts: those that both runs have, in the order of `PARTS`; they add up to step_s - ideal_s.
    absent: why a part is missing; its time is within another part, which the reason names, or unexplained.
    notes: limits of the parts: how much longer traced steps were than measured ones, and a straggler.
    """

    step_s: float
    ideal_s: float
    parts: tuple[LostPart, ...]
    absent: Mapping[PartName, str]
    notes: tuple[str, ...]

    @property
    def lost_ratio(self) -> float:
        """1 - efficiency."""
        return (self.step_s - self.ideal_s) / self.step_s


def loss_of(run: MeasuredStep, base: MeasuredStep) -> Loss | str:
    """Return the loss of the run's step against ideal scaling of the base's, or why it is unknown."""
    account, base_account = step_account(run), step_account(base)
    for reason in (account, base_account):
        if isinstance(reason, str):
            return reason
    assert isinstance(account, StepAccount)
    assert isinstance(base_account, StepAccount)
    # The ideal step has the base's tokens per second and rank.
    work = run.case.shape.tokens / base.case.shape.tokens
    factor = work * base.case.ranks / run.case.ranks
    absent = {**account.absent, **base_account.absent}  # What the base lacks, all points lack.
    divided, base_divided = account.divide(absent), base_account.divide(absent)
    step_s, ideal_s = account.step_s, factor * base_account.step_s
    parts = []
    for name in PARTS:
        if name in divided:
            lost_s = account.of_step(divided[name]) - factor * base_account.of_step(base_divided[name])
            parts.append(_part(name, divided[name], [factor * value for value in base_divided[name]], lost_s, step_s))
    return Loss(
        step_s=step_s,
        ideal_s=ideal_s,
        parts=tuple(parts),
        absent={name: absent[name] for name in PARTS if name in absent},
        notes=(*_surplus(account, base_account), *account.notes),
    )


def _part(name: PartName, run_s: Sequence[float], base_s: Sequence[float], lost_s: float, step_s: float) -> LostPart:
    """Return the difference of two parts with its interval."""
    low = high = None
    if (interval := difference_interval(run_s, base_s)) is not None:
        low, high = min(interval[0], lost_s), max(interval[1], lost_s)
    return LostPart(name=name, lost_s=lost_s, low_s=low, high_s=high, step_s=step_s)


def difference_interval(run_values: Sequence[float], base_values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of run minus base in seconds, as groups; None for a single trial, or without noise."""
    if min(len(run_values), len(base_values)) < 2:
        return None
    if all(min(side) == max(side) for side in (run_values, base_values)):
        return None
    difference = in_groups(base_values, run_values, slower=1)
    return difference.low, difference.high


_MUCH_LONGER = 0.1
"""Share by which traced steps may be longer than measured ones before a note says so."""


def _surplus(*accounts: StepAccount) -> list[str]:
    """Return a note if traced steps are much longer than measured ones."""
    longest = max(
        (
            median(trace.step_s for trace in account.traces) / median(account.steps_s) - 1
            for account in accounts
            if account.traces
        ),
        default=0.0,
    )
    if longest < _MUCH_LONGER:
        return []
    return [
        f"traced steps are up to {100 * longest:.0f} % longer than measured ones: all parts except data come from steps"
        " that the profiler slows"
    ]
