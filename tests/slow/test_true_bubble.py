"""Stages that sleep wait as long as the simulation says, whatever the schedule and whoever else is busy here."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import get_args

import pytest

from bench.results.pipeline import (
    CORE,
    MESSAGE,
    UNEVEN,
    TimedStep,
    bubble_ratio,
    delay_parts,
    join_steps,
    most_live,
    stage_seconds,
)
from tests.slow.ranks.sleeping_stages import Case, perform
from tests.support.ranks import run_on_ranks
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import ScheduleName, actions, live_microbatches_of_stages
from workloads.pipeline_parallel.simulator import simulate, split_bubble

LIMIT_S = 200.0
TOLERANCE_RATIO = 0.03
UNEXPLAINED_RATIO = 0.02
NO_LINK = Absent(reason="the few bytes of a boundary stay within the machine")

MICROBATCHES = {2: 4, 4: 8}
"""On so many ranks: twice as many let a schedule fill, go on and drain; more repeat what goes on in between."""
CASES = [
    Case(schedule=schedule, ranks=ranks, microbatches=1 if schedule == "naive" else microbatches)
    for ranks, microbatches in MICROBATCHES.items()
    for schedule in get_args(ScheduleName)
]
HELD_UP = Case(schedule="gpipe", ranks=2, microbatches=4, blocks_between=2)

StepsOf = Callable[[Case], tuple[TimedStep, ...]]

pytestmark = [pytest.mark.alone, pytest.mark.timeout(3 * LIMIT_S + 30)]


def named(case: Case) -> str:
    return f"{case.schedule}-{case.ranks}-ranks-{case.microbatches}-microbatches"


@pytest.fixture(scope="module")
def steps_of(tmp_path_factory: pytest.TempPathFactory) -> StepsOf:
    """The timed steps of a case; all cases of as many ranks are performed one after another."""
    performed: dict[Case, tuple[TimedStep, ...]] = {}

    def steps(case: Case) -> tuple[TimedStep, ...]:
        if case not in performed:
            cases = [one for one in (*CASES, HELD_UP) if one.ranks == case.ranks]
            store = tmp_path_factory.mktemp("ranks") / "store"
            by_rank = run_on_ranks(case.ranks, perform, cases, store=store, limit_s=LIMIT_S)
            performed.update({one: join_steps([of_rank[at] for of_rank in by_rank]) for at, one in enumerate(cases)})
        return performed[case]

    return steps


def parts_of(case: Case, steps: tuple[TimedStep, ...]) -> dict[str, float]:
    """The bubble and its parts as a run reports them: the median over steps, by the times that stages were measured."""
    times = stage_seconds(work for step in steps for work in step.works)
    measured_ratio = median(bubble_ratio(step.works, range(case.ranks)) for step in steps)
    delays = delay_parts(case.pipeline(), steps, [range(case.ranks)])
    split = split_bubble(measured_ratio, case.pipeline(), times, transfer_s=NO_LINK)
    return {
        "measured": measured_ratio,
        "expected": split.expected_ratio,
        **delays,
        "unexplained": split.unexplained_ratio - sum(delays.values()),
    }


def undisturbed_ratio(found: dict[str, float]) -> float:
    """The bubble without what others on the machine do to sleeps and messages."""
    return found["measured"] - found[UNEVEN] - found[MESSAGE] - found[CORE]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_stages_that_sleep_wait_as_long_as_the_simulation_says(case: Case, steps_of: StepsOf) -> None:
    found = parts_of(case, steps_of(case))
    truth_ratio = simulate(actions(case.pipeline()), case.slept_s()).bubble_ratio
    assert undisturbed_ratio(found) == pytest.approx(truth_ratio, abs=TOLERANCE_RATIO), found


@pytest.mark.parametrize("case", CASES, ids=named)
def test_hardly_any_of_it_is_unexplained(case: Case, steps_of: StepsOf) -> None:
    found = parts_of(case, steps_of(case))
    assert abs(found["unexplained"]) < UNEXPLAINED_RATIO, found


@pytest.mark.parametrize("case", CASES, ids=named)
def test_ranks_do_and_hold_what_the_law_says(case: Case, steps_of: StepsOf) -> None:
    order = actions(case.pipeline())
    live = live_microbatches_of_stages(order)
    for step in steps_of(case):
        performed = [[work.action for work in step.works if work.rank == rank] for rank in range(case.ranks)]
        assert performed == [list(own) for own in order]
        assert {stage: most_live(step.works, stage) for stage in live} == live


def test_what_holds_a_rank_up_between_its_actions_is_unexplained(steps_of: StepsOf) -> None:
    # In units of a forward, with sleeps of 2 after each action of the first rank: its forwards are 0-1, 3-4, 6-7, 9-10;
    # it hands each on 2 later, so that the other's are 3-4, 6-7, 9-10, 12-13, and its backwards 13-15 to 19-21; the
    # first's are 15-17, 19-21, 23-25, 27-29. So 24 of 58 are work, where the schedule alone waits 1 of 5.
    found = parts_of(HELD_UP, steps_of(HELD_UP))
    assert found["expected"] == pytest.approx(1 / 5, abs=TOLERANCE_RATIO)
    assert undisturbed_ratio(found) == pytest.approx(34 / 58, abs=TOLERANCE_RATIO), found
    assert found["unexplained"] > 0.85 * (34 / 58 - 1 / 5), found
