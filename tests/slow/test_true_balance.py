"""Equal layers with unequal work: the slow stage is named, and balancing by measure shortens the step as it should."""

from __future__ import annotations

from statistics import median

import pytest

from bench.results.pipeline import TimedStep, bubble_ratio, join_steps, stage_seconds
from tests.slow.ranks.sleeping_head import RANKS, Balanced, perform_balanced, pipeline_of, slept_s
from tests.support.ranks import OnRanks
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import actions
from workloads.pipeline_parallel.simulator import simulate, split_bubble

TOLERANCE_RATIO = 0.05
BALANCES = ["layers", "measured"]

pytestmark = pytest.mark.alone


def length_ns(step: TimedStep) -> int:
    """From the first action's start to the last one's end."""
    return max(work.end_ns for work in step.works) - min(work.start_ns for work in step.works)


def test_the_slow_stage_is_named_and_balancing_by_measure_shortens_the_step(on_ranks: OnRanks) -> None:
    by_rank: list[list[Balanced]] = on_ranks(RANKS, perform_balanced, BALANCES)
    steps_of = {
        balance: join_steps([of_rank[at].performed for of_rank in by_rank]) for at, balance in enumerate(BALANCES)
    }
    cuts = {balance: by_rank[0][at].blocks for at, balance in enumerate(BALANCES)}
    # 8 blocks and a head worth 6: of equal layers the second stage has 4 + 6, balanced both have 7.
    assert cuts == {"layers": (4, 4), "measured": (7, 1)}

    equal = steps_of["layers"]
    split = split_bubble(
        median(bubble_ratio(step.works, range(RANKS)) for step in equal),
        pipeline_of("layers"),
        stage_seconds(work for step in equal for work in step.works),
        transfer_s=Absent(reason="the few bytes of a boundary stay within the machine"),
    )
    assert split.bottleneck_stage == 1

    lengths_ns = {balance: median(length_ns(step) for step in steps) for balance, steps in steps_of.items()}
    order = actions(pipeline_of("layers"))
    laws_s = {balance: simulate(order, slept_s(blocks)).makespan_s for balance, blocks in cuts.items()}
    assert laws_s["measured"] < laws_s["layers"]
    expected_ratio = laws_s["measured"] / laws_s["layers"]
    assert lengths_ns["measured"] / lengths_ns["layers"] == pytest.approx(expected_ratio, rel=TOLERANCE_RATIO)
