"""What a step's own delays add to its bubble, from steps of two ranks that are known by hand."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from bench.results.pipeline import (
    CORE,
    MESSAGE,
    UNEVEN,
    TimedStep,
    bubble_ratio,
    delay_parts,
    join_steps,
    stage_seconds,
)
from collectors.sample_log import TimedMessage
from tests.bench.results.pipeline.staged import GPIPE, Row, performed
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import MessageEnd, Pipeline
from workloads.pipeline_parallel.simulator import split_bubble

PIPELINE = Pipeline(schedule="gpipe", ranks=2, stages_per_rank=1, microbatches=2, boundary_bytes=64)
GROUPS = ((0, 1),)
NO_LINK = Absent(reason="nobody measured one")
# All backwards come a millisecond later than the schedule wants: of 20 ms the ranks compute 12.
LATE: tuple[Row, Row] = (
    [("forward", 0, 0, 0, 1), ("forward", 0, 1, 1, 2), ("backward", 0, 0, 6, 8), ("backward", 0, 1, 8, 10)],
    [("forward", 1, 0, 1, 2), ("forward", 1, 1, 2, 3), ("backward", 1, 0, 3, 5), ("backward", 1, 1, 5, 7)],
)
ADDED = 8 / 20 - 6 / 18


def _sent(kind: str, stage: int, at_ms: float, end: MessageEnd = "sent", microbatch: int = 0) -> TimedMessage:
    return TimedMessage(end, kind, stage, microbatch, round(at_ms * 1e6))  # type: ignore[arg-type]


def _step(
    rows: tuple[Row, Row],
    messages: tuple[Sequence[TimedMessage], Sequence[TimedMessage]] = ((), ()),
    core_waits_ns: Sequence[tuple[int, int]] = (),
) -> TimedStep:
    """core_waits_ns: of the first rank."""
    first = performed(rows[0], messages=messages[0], core_waits_ns=core_waits_ns)
    (step,) = join_steps([[first], [performed(rows[1], messages=messages[1])]])
    return step


def _parts(*steps: TimedStep) -> dict[str, float]:
    parts = delay_parts(PIPELINE, steps, GROUPS)
    times = stage_seconds(work for step in steps for work in step.works)
    (measured,) = {bubble_ratio(step.works, GROUPS[0]) for step in steps}
    split = split_bubble(measured, PIPELINE, times, transfer_s=NO_LINK)
    return {**parts, "unexplained": split.unexplained_ratio - sum(parts.values())}


def test_a_step_as_the_schedule_wants_it_has_no_delays() -> None:
    assert _parts(_step(GPIPE)) == pytest.approx({UNEVEN: 0, MESSAGE: 0, CORE: 0, "unexplained": 0}, abs=1e-12)


def test_a_rank_that_asked_and_whose_message_came_late_waited_for_the_message() -> None:
    told = ([_sent("backward", 0, 2.0, "asked")], [_sent("backward", 1, 5.0)])
    found = _parts(_step(LATE, told))
    assert found == pytest.approx({UNEVEN: 0, MESSAGE: ADDED, CORE: 0, "unexplained": 0}, abs=1e-12)


def test_a_rank_that_hands_its_output_over_late_was_held_up_by_nobody_knows_what() -> None:
    told = ([_sent("backward", 0, 2.0, "asked")], [_sent("backward", 1, 6.0)])
    found = _parts(_step(LATE, told))
    assert found == pytest.approx({UNEVEN: 0, MESSAGE: 0, CORE: 0, "unexplained": ADDED}, abs=1e-12)


def test_a_rank_that_asks_late_was_held_up_by_nobody_knows_what() -> None:
    told = ([_sent("backward", 0, 6.0, "asked")], [_sent("backward", 1, 5.0)])
    found = _parts(_step(LATE, told))
    assert found == pytest.approx({UNEVEN: 0, MESSAGE: 0, CORE: 0, "unexplained": ADDED}, abs=1e-12)


@pytest.mark.parametrize("asked_ms", [2.0, 6.0])
def test_a_rank_that_was_not_scheduled_waited_for_a_core(asked_ms: float) -> None:
    told = ([_sent("backward", 0, asked_ms, "asked")], [_sent("backward", 1, 5.0)])
    waited = round(1e6 if asked_ms == 2 else 4e6)  # Of 4 ms at most until it asks, a millisecond is late.
    found = _parts(_step(LATE, told, [(0, 0), (0, 0), (waited, waited), (waited, waited)]))
    assert found == pytest.approx({UNEVEN: 0, MESSAGE: 0, CORE: ADDED, "unexplained": 0}, abs=1e-12)


def test_an_action_that_takes_longer_than_its_stages_others_is_uneven() -> None:
    rows: tuple[Row, Row] = (
        [("forward", 0, 0, 0, 1), ("forward", 0, 1, 1, 2), ("backward", 0, 0, 5, 7), ("backward", 0, 1, 7, 10)],
        GPIPE[1],
    )
    found = _parts(_step(rows))
    # By the median of 2 and 3 ms it would be 10 ms as well, and wait the same but for what rank 0 computes.
    assert found[UNEVEN] == pytest.approx(1 - 13 / 20 - (1 - 13 / 20), abs=1e-12)
    assert found["unexplained"] == pytest.approx(0, abs=1e-12)


def test_without_messages_there_is_only_what_actions_tell() -> None:
    first, second = (performed(row) for row in LATE)
    (step,) = join_steps([[msgspec.structs.replace(first, messages=None)], [second]])
    assert set(delay_parts(PIPELINE, [step], GROUPS)) == {UNEVEN}


def test_where_the_kernel_counts_no_waits_that_part_is_absent() -> None:
    first, second = (performed(row) for row in LATE)
    (step,) = join_steps([[msgspec.structs.replace(first, core_waits_ns=None)], [second]])
    assert set(delay_parts(PIPELINE, [step], GROUPS)) == {UNEVEN, MESSAGE}


def test_a_step_that_is_not_the_pipelines_has_no_parts() -> None:
    assert delay_parts(PIPELINE, [_step((GPIPE[0][:-1], GPIPE[1]))], GROUPS) == {}
