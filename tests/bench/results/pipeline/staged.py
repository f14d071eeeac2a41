"""Timed steps of pipelines whose bubble is known by hand."""

from __future__ import annotations

from collections.abc import Sequence

from bench.results.pipeline import TimedStep, join_steps
from collectors.sample_log import TimedAction, TimedActions, TimedMessage
from workloads.cost_models.schedules import ActionKind

Row = Sequence[tuple[ActionKind, int, int, float, float]]
"""Of one rank: kind, stage, microbatch, start and end of each action, in milliseconds."""

# GPipe on two ranks with two microbatches: forward 1 ms, backward 2 ms. Each rank works 6 of 9 ms.
GPIPE: tuple[Row, Row] = (
    [("forward", 0, 0, 0, 1), ("forward", 0, 1, 1, 2), ("backward", 0, 0, 5, 7), ("backward", 0, 1, 7, 9)],
    [("forward", 1, 0, 1, 2), ("forward", 1, 1, 2, 3), ("backward", 1, 0, 3, 5), ("backward", 1, 1, 5, 7)],
)
# 1F1B on two ranks with two microbatches: the last stage never holds more than one.
ONE_F_ONE_B: tuple[Row, Row] = (
    [("forward", 0, 0, 0, 1), ("forward", 0, 1, 1, 2), ("backward", 0, 0, 4, 6), ("backward", 0, 1, 7, 9)],
    [("forward", 1, 0, 1, 2), ("backward", 1, 0, 2, 4), ("forward", 1, 1, 4, 5), ("backward", 1, 1, 5, 7)],
)
# Two stages a rank, backward in halves, one microbatch.
PARTED: tuple[Row, Row] = (
    [
        ("forward", 0, 0, 0, 1),
        ("forward", 2, 0, 2, 3),
        ("input_backward", 2, 0, 5, 6),
        ("input_backward", 0, 0, 7, 8),
        ("weight_backward", 2, 0, 8, 9),
        ("weight_backward", 0, 0, 9, 10),
    ],
    [
        ("forward", 1, 0, 1, 2),
        ("forward", 3, 0, 3, 4),
        ("input_backward", 3, 0, 4, 5),
        ("input_backward", 1, 0, 6, 7),
        ("weight_backward", 3, 0, 7, 8),
        ("weight_backward", 1, 0, 8, 9),
    ],
)


def performed(
    row: Row,
    *,
    trial: int = 0,
    step: int = 9,
    begun_ns: int = 0,
    clock: str | None = "the node's",
    messages: Sequence[TimedMessage] = (),
    core_waits_ns: Sequence[tuple[int, int]] = (),
) -> TimedActions:
    """What one rank logged of a step; by default it waited for no core."""
    actions = [
        TimedAction(kind, stage, microbatch, round(start * 1e6), round(end * 1e6))
        for kind, stage, microbatch, start, end in row
    ]
    return TimedActions(
        trial=trial,
        time_ns=0,
        step=step,
        begun_ns=begun_ns,
        clock=clock,
        actions=actions,
        messages=list(messages),
        core_waits_ns=list(core_waits_ns or [(0, 0)] * len(actions)),
    )


def timed_step(rows: Sequence[Row], *, step: int = 9, clock: str | None = "the node's") -> TimedStep:
    """The step of ranks that began at one moment."""
    (joined,) = join_steps([[performed(row, step=step, clock=clock)] for row in rows])
    return joined
