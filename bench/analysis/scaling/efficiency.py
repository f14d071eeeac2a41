"""Scaling efficiency of a run against a baseline run on fewer ranks, weak or strong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.analysis.estimate import EstimatedRatio, estimate, ratio
from bench.case import Case
from bench.errors import Misuse
from collectors.metrics.results import RUN_TOKENS_PER_SECOND_PER_DEVICE
from workloads.cost_models.shape import DIMENSIONS

Scaling = Literal["weak", "strong"]
BaselineOrigin = Literal["beside", "history", "told", "unknown"]
"""beside: measured in turn with the run. history: an earlier run, measured in the same way. told: named by a person.
unknown: the run is of an older version, which did not record it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingEfficiency:
    """Tokens per second and rank of a run, divided by those of its baseline.

    scaling: weak if each rank that trains has the same work as in the baseline, strong if the total work is the same.
    baseline_ranks: 1, unless a person named a run of several ranks, or the first run of a scaling curve has several.
    is_beside: whether the baseline was measured in turn with the run; None where an older version wrote it.
    is_told: whether a person named the baseline, which then need not have been measured in the same way.
    """

    scaling: Scaling
    baseline_run: str
    ratio: EstimatedRatio
    baseline_ranks: int = 1
    is_beside: bool | None = None
    is_told: bool = False

    @property
    def baseline(self) -> BaselineOrigin:
        """Where the baseline is from; only efficiencies with the same origin are comparable."""
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
    """Return the efficiency of a run against a baseline. Tokens per second: one value a trial, over all ranks.

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
    """Tell whether a run against this baseline is weak or strong scaling.

    The strategies may differ, and so may `accumulate`, which does not change the batch.

    Raises:
        Misuse: the baseline does not have fewer ranks, has another workload, or a batch that fits neither scaling.
    """
    name = f"baseline ({baseline_case.strategy}, ranks {baseline_case.ranks})"
    if baseline_case.ranks >= case.ranks:
        raise Misuse(f"{name} has not fewer ranks than the run, which has {case.ranks}; choose one with fewer, best 1")
    differences = _differences_of_cases(case, baseline_case)
    if differences:
        raise Misuse(f"{name} is another workload: {'; '.join(differences)}; only ranks, strategy and batch may differ")
    batch, baseline_batch = case.shape.batch, baseline_case.shape.batch
    trained, baseline_trained = (either.spec().training_ranks(either) for either in (case, baseline_case))
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
    pairs = [
        (dimension, getattr(case.shape, dimension), getattr(baseline.shape, dimension))
        for dimension in DIMENSIONS
        if dimension != "batch"
    ]
    pairs += [(field, getattr(case, field), getattr(baseline, field)) for field in ("device", "precision", "threads")]
    if case.strategy == baseline.strategy:
        pairs.append(("version", case.version, baseline.version))
    baseline_names = {option.name for option in baseline.spec().options} - {"accumulate"}
    shared = sorted(
        (option for option in case.spec().options if option.name in baseline_names), key=lambda option: option.name
    )
    pairs += [(f"option {option.name}", option.of(case), option.of(baseline)) for option in shared]
    return [
        f"{name} is {baseline_value}, the run's is {value}"
        for name, value, baseline_value in pairs
        if value != baseline_value
    ]
