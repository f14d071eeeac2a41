"""A measured step played through again is the simulation without its delays, and the step itself with them."""

from __future__ import annotations

import pytest

from workloads.cost_models.schedules import Action, Pipeline, actions
from workloads.pipeline_parallel.simulator import Delay, replay, simulate

PIPELINE = Pipeline(schedule="one_f_one_b", ranks=2, stages_per_rank=1, microbatches=2, boundary_bytes=64)
ORDER = actions(PIPELINE)
TAKEN_S = {action: 1.0 if action.kind == "forward" else 2.0 for rank in ORDER for action in rank}
FIRST = Action(kind="forward", stage=0, microbatch=0)
LAST = Action(kind="backward", stage=0, microbatch=1)


def _end_s(delays: dict[Action, Delay]) -> float:
    return replay(ORDER, TAKEN_S, delays).makespan_s


def test_without_delays_it_is_the_simulation() -> None:
    times = {(action.stage, action.kind): taken_s for action, taken_s in TAKEN_S.items()}
    assert replay(ORDER, TAKEN_S, {}) == simulate(ORDER, times)


def test_each_action_takes_what_it_took() -> None:
    found = replay(ORDER, {**TAKEN_S, FIRST: 5.0}, {})
    assert found.makespan_s == 4 + _end_s({})
    assert found.busy_s == (10.0, 6.0)


@pytest.mark.parametrize("delay", [Delay(hand_over_s=0.5), Delay(message_s=0.5), Delay(host_s=0.5)])
def test_a_delay_on_the_longest_way_lengthens_the_step(delay: Delay) -> None:
    assert _end_s({FIRST: delay}) == 0.5 + _end_s({})


def test_a_host_that_is_late_while_its_rank_waits_for_a_message_costs_nothing() -> None:
    assert _end_s({LAST: Delay(host_s=0.9)}) == _end_s({})
    assert _end_s({LAST: Delay(host_s=1.5)}) == 0.5 + _end_s({})


def test_handing_over_late_to_nobody_costs_nothing() -> None:
    assert _end_s({LAST: Delay(hand_over_s=9.0)}) == _end_s({})
