"""Why a pipeline waits: a measured bubble, split by simulating what the schedule, the stages and the link explain."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from workloads.laws.pipeline import Pipeline
from workloads.laws.schedules import ActionKind, actions
from workloads.laws.simulator import StageTimes, simulate
from workloads.laws.terms import NotCovered


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleSplit:
    """A measured bubble and its parts, all as shares of the ranks' time; the parts add up to it.

    schedule_ratio: with these stages all equal to their mean, which computes as much in all, on an ideal wire.
    imbalance_ratio: what the stages' own times add to that; below 0 where they suit the schedule better.
    transfer_ratio: what the time on the link adds to both, or why it is not known; it is then in unexplained.
    unexplained_ratio: the rest; below 0 where less was measured than expected.
    bottleneck_stage: the stage that computes longest, None where all are equal.
    """

    measured_ratio: float
    schedule_ratio: float
    imbalance_ratio: float
    transfer_ratio: float | NotCovered
    unexplained_ratio: float
    bottleneck_stage: int | None

    @property
    def expected_ratio(self) -> float:
        """The bubble of the simulation: schedule, imbalance, and transfer where it is known."""
        transfer_ratio = 0.0 if isinstance(self.transfer_ratio, NotCovered) else self.transfer_ratio
        return self.schedule_ratio + self.imbalance_ratio + transfer_ratio


def split_bubble(
    measured_ratio: float, pipeline: Pipeline, times: StageTimes, *, transfer_s: float | NotCovered
) -> BubbleSplit:
    """The parts of a bubble, each what the simulation gains when one more thing is as it was measured.

    times: as measured. transfer_s: of one boundary tensor between two ranks, or why nobody knows.

    Raises:
        ValueError: the schedule cannot run this pipeline; a time is missing or negative, or all are 0.
    """
    order = actions(pipeline)
    own = simulate(order, times)
    ideal_ratio = simulate(order, mean_stage(times)).bubble_ratio
    transfer_ratio: float | NotCovered
    if isinstance(transfer_s, NotCovered):
        transfer_ratio, expected_ratio = transfer_s, own.bubble_ratio
    else:
        expected_ratio = simulate(order, times, transfer_s=transfer_s).bubble_ratio
        transfer_ratio = expected_ratio - own.bubble_ratio
    return BubbleSplit(
        measured_ratio=measured_ratio,
        schedule_ratio=ideal_ratio,
        imbalance_ratio=own.bubble_ratio - ideal_ratio,
        transfer_ratio=transfer_ratio,
        unexplained_ratio=measured_ratio - expected_ratio,
        bottleneck_stage=own.bottleneck_stage,
    )


def mean_stage(times: StageTimes) -> dict[tuple[int, ActionKind], float]:
    """The times of stages that are all alike and together take as long, kind by kind."""
    kinds = {kind for _, kind in times}
    mean_s = {kind: fmean(times[place] for place in times if place[1] == kind) for kind in kinds}
    return {place: mean_s[place[1]] for place in times}
