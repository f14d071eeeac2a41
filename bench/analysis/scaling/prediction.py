"""Scaling efficiency predicted from one rank's measured step and the cost model's transfers on a measured link.

It rests on nothing that was measured on the ranks that it is of, so that it can be wrong: a fit of Amdahl's law or the
USL to a curve's own points (`bench.analysis.scaling.laws`) describes them, and predicts none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from bench.analysis.estimate import Estimate, by_labels, estimate_share, of_metric
from bench.analysis.scaling.efficiency import BaselineOrigin, Scaling
from bench.case import Case
from collectors.metrics.results import RUN_EXPECTED_EFFICIENCY, RUN_PHASE_SECONDS, RUN_TOKENS_PER_SECOND
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.step_time import ComputeTime, step_time


def expected_efficiency(
    case: Case,
    baseline_case: Case,
    baseline_estimates: Sequence[Estimate],
    link: Link,
    *,
    scaling: Scaling,
    baseline: BaselineOrigin,
) -> Estimate | Absent:
    """Return the efficiency of a case by the cost model, with a value for each trial of its baseline.

    A rank's step is that of the one rank, shortened as its share of the work is, and the part of the case's transfers
    on this link that its forward and backward cannot hide. All else is taken to scale ideally: no rank waits for
    another, none disturbs another, and what a strategy does not divide among ranks is divided all the same. So a run
    that is far below it loses to something else than its transfers. The link is taken as exact: the interval is that of
    the one rank's trials.
    Example: a step of 1.0 s, 0.25 s of transfers that nothing hides, weak scaling: 1.0 / 1.25 = 0.8.
    """
    if why := _not_covered(case, baseline_case):
        return Absent(reason=why)
    phases = by_labels(baseline_estimates, RUN_PHASE_SECONDS)
    rates = of_metric(baseline_estimates, RUN_TOKENS_PER_SECOND)
    if not rates or ("forward",) not in phases or ("backward",) not in phases:
        return Absent(reason="its baseline does not tell how long forward and backward take")
    work = Fraction(case.shape.tokens, baseline_case.shape.tokens)
    ideal = work / case.ranks  # Tokens per second and rank as the one rank has them: servers count as ranks, too,
    compute_share = work / case.spec().training_ranks(case)  # but only ranks that train share the work.
    shares = []
    for rate, forward_s, backward_s in zip(
        rates[0].trials, phases["forward",].trials, phases["backward",].trials, strict=True
    ):
        alone_s = baseline_case.shape.tokens / rate
        compute = ComputeTime(forward_s=float(compute_share) * forward_s, backward_s=float(compute_share) * backward_s)
        predicted = step_time(
            compute,
            case.spec().transfers(case),
            axes=case.spec().mesh(case),
            link=link,
            backend=case.backend,
        )
        shares.append(float(ideal) * alone_s / (float(compute_share) * alone_s + predicted.exposed_s))
    return estimate_share(RUN_EXPECTED_EFFICIENCY, shares, scaling=scaling, baseline=baseline)


def _not_covered(case: Case, baseline_case: Case) -> str | None:
    """Return why the cost model does not tell the efficiency; None where it does."""
    if case.spec().pipeline(case) is not None:
        return "the cost model of a step's time has no bubble of a pipeline"
    if not case.spec().transfers(case):
        return f"{case.strategy} has no transfers in the cost model"
    if baseline_case.ranks != 1:
        return (
            f"the baseline has {baseline_case.ranks} ranks, whose step holds communication, too; that of one rank"
            " would do"
        )
    return None
