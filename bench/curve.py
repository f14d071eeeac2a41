"""One command on several numbers of ranks: throughput of each, and its efficiency against the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.judgement.estimate import Estimate, Ratio, estimate, ratio
from bench.summary import Summary
from collectors.catalogue.results import RUN_TOKENS_PER_SECOND, RUN_TOKENS_PER_SECOND_PER_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of ranks. throughput: tokens per second over all ranks; None where no trial was complete.

    efficiency: tokens per second and rank, divided by those of the first; of the same batch, and so of strong scaling.
    None of the first itself, of a probe, and where one of both has no throughput, for `reason`.
    """

    summary: Summary
    throughput: Estimate | None
    efficiency: Ratio | None
    reason: str | None = None


def curve_of(summaries: Sequence[Summary]) -> tuple[Point, ...]:
    """The runs, in the order of their measurement, each against the first of them."""
    first, *others = [_throughput(summary) for summary in summaries]
    points = [Point(summary=summaries[0], throughput=first, efficiency=None, reason="the others are read against it")]
    for summary, throughput in zip(summaries[1:], others, strict=True):
        if throughput is None or first is None:
            failed = summary if throughput is None else summaries[0]
            why = f"{failed.case.strategy} on {failed.case.ranks} has no throughput"
            points.append(Point(summary=summary, throughput=throughput, efficiency=None, reason=why))
            continue
        efficiency = ratio(_per_rank(throughput, summary), _per_rank(first, summaries[0]))
        points.append(Point(summary=summary, throughput=throughput, efficiency=efficiency))
    return tuple(points)


def _throughput(summary: Summary) -> Estimate | None:
    return next((found for found in summary.estimates if found.metric == RUN_TOKENS_PER_SECOND.name), None)


def _per_rank(throughput: Estimate, summary: Summary) -> Estimate:
    return estimate(RUN_TOKENS_PER_SECOND_PER_DEVICE, [rate / summary.case.ranks for rate in throughput.trials])
