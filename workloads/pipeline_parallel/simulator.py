"""Simulator of a pipeline step: when each action begins and ends, and how a measured bubble splits into causes.

Each rank performs its actions in its order. An action begins when the rank is free and its inputs have arrived: a
forward needs the output of the previous stage, a backward its own forward and the gradient of the next stage, a
weight_backward its own input_backward. An output for another rank arrives one transfer later; sending costs the rank no
time, and messages do not delay each other.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import Action, ActionKind, Pipeline, actions, live_microbatches

StageTimes = Mapping[tuple[int, ActionKind], float]
"""Seconds that a stage computes for one microbatch, by stage and kind of action."""

ActionNeeds = Mapping[Action, tuple[Action, ...]]
"""Actions that must have ended before an action begins, in addition to the earlier ones of its rank."""

EQUAL = 1e-9
"""Stages are equal if their busy times differ by no more than this share; rounding of float sums is smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedAction:
    """An action with its start and end, in seconds from the beginning of the step."""

    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One step of a pipeline; the actions of each rank, in order."""

    performed: tuple[tuple[SimulatedAction, ...], ...]

    @property
    def makespan_s(self) -> float:
        """Time from the beginning of the step to the end of the last action."""
        return max(performed.end_s for performed in chain.from_iterable(self.performed))

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Compute time of each rank."""
        return tuple(sum(performed.end_s - performed.start_s for performed in rank) for rank in self.performed)

    @property
    def stage_busy_s(self) -> dict[int, float]:
        """Compute time of each stage, in the order of the model."""
        busy_s: dict[int, float] = {}
        for performed in chain.from_iterable(self.performed):
            busy_s[performed.action.stage] = (
                busy_s.get(performed.action.stage, 0.0) + performed.end_s - performed.start_s
            )
        return dict(sorted(busy_s.items()))

    @property
    def bubble_ratio(self) -> float:
        """Share of the ranks' time, from the beginning of the step to its end, in which they do not compute."""
        return max(0.0, 1 - sum(self.busy_s) / (len(self.performed) * self.makespan_s))

    @property
    def bottleneck_stage(self) -> int | None:
        """The stage that computes longest; None if all are equal."""
        busy_s = self.stage_busy_s
        longest_s = max(busy_s.values())
        if math.isclose(min(busy_s.values()), longest_s, rel_tol=EQUAL):
            return None
        return next(stage for stage in busy_s if busy_s[stage] == longest_s)

    @property
    def live_microbatches(self) -> tuple[int, ...]:
        """The most microbatches that each rank holds at once, summed over its stages."""
        return live_microbatches([[performed.action for performed in rank] for rank in self.performed])


def simulate(order: Sequence[Sequence[Action]], times: StageTimes, *, transfer_s: float = 0.0) -> Simulated:
    """Simulate the step in which each rank performs its actions as early as possible.

    order: actions of each rank; a stage belongs to the rank that has its actions.
    transfer_s: time of one message, activations and gradients alike; between stages of one rank it is 0.

    Raises:
        ValueError: an action can never begin, or occurs twice; a time is missing or negative, or all are 0.
    """
    planned = planned_on(order)
    if transfer_s < 0:
        raise ValueError(f"transfer_s is {transfer_s}; it must be 0 or more")
    kinds = {(action.stage, action.kind) for action in planned}
    for stage, kind in sorted(kinds):
        if (stage, kind) not in times:
            raise ValueError(f"the time of {kind} on stage {stage} is missing; the order has such actions")
        if times[stage, kind] < 0:
            raise ValueError(f"the time of {kind} on stage {stage} is {times[stage, kind]} s; it must be 0 or more")
    if not any(times[kind] > 0 for kind in kinds):
        raise ValueError("no action takes time; a bubble is a share of the step's time")
    taken_s = {action: times[action.stage, action.kind] for action in planned}
    return replay(order, taken_s, dict.fromkeys(planned, Delay(hand_over_s=transfer_s)))


def planned_on(order: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """Return the rank of each action.

    Raises:
        ValueError: an action occurs twice.
    """
    planned: dict[Action, int] = {}
    for rank, planned_actions in enumerate(order):
        for action in planned_actions:
            if action in planned:
                raise ValueError(f"{_named(action)} occurs twice, on rank {planned[action]} and on rank {rank}")
            planned[action] = rank
    return planned


def needs_of(planned: Collection[Action]) -> ActionNeeds:
    """Return the actions that each action needs, in addition to the earlier actions of its rank."""
    last_stage = max((action.stage for action in planned), default=0)
    return {action: tuple(_needed(action, planned, last_stage)) for action in planned}


def _needed(action: Action, planned: Container[Action], last_stage: int) -> Iterator[Action]:
    if action.kind == "weight_backward":
        yield action._replace(kind="input_backward")
    elif action.kind == "forward":
        if action.stage > 0:
            yield action._replace(stage=action.stage - 1)
    else:
        yield action._replace(kind="forward")
        if action.stage < last_stage:
            # The gradient comes from the next stage's backward, or from its input_backward if backward is split.
            unsplit = action._replace(kind="backward", stage=action.stage + 1)
            yield unsplit if unsplit in planned else unsplit._replace(kind="input_backward")


def in_possible_order(order: Sequence[Sequence[Action]], needs: ActionNeeds) -> Iterator[tuple[int, Action]]:
    """Yield all actions with their ranks, each after those that it needs and after the earlier ones of its rank.

    Raises:
        ValueError: an action can never begin.
    """
    finished: set[Action] = set()
    remaining = [deque(actions) for actions in order]
    while any(remaining):
        done_before = len(finished)
        for rank, waiting in enumerate(remaining):
            while waiting and finished.issuperset(needs[waiting[0]]):
                finished.add(waiting[0])
                yield rank, waiting.popleft()
        if len(finished) == done_before:
            rank, action = next((rank, waiting[0]) for rank, waiting in enumerate(remaining) if waiting)
            needed = next(needed for needed in needs[action] if needed not in finished)
            raise ValueError(
                f"rank {rank} can never begin {_named(action)}: {_named(needed)} must come before it, and does not"
            )


def _named(action: Action) -> str:
    return f"{action.kind} of microbatch {action.microbatch} on stage {action.stage}"


# Why a pipeline waits: a measured bubble, split into the parts that a simulation explains by schedule, stages and link.


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleSplit:
    """A measured bubble and its parts, all as shares of the ranks' time; the parts add up to it.

    schedule_ratio: bubble with all stages equal to their mean, which keeps the total compute time, and free transfers.
    imbalance_ratio: what the stages' own times add to that; below 0 if they suit the schedule better.
    transfer_ratio: what the link's time adds to both; or why it is unknown, in which case it is part of
    unexplained_ratio.
    unexplained_ratio: the rest; below 0 if the measured bubble is smaller than expected.
    bottleneck_stage: the stage that computes longest; None if all are equal.
    """

    measured_ratio: float
    schedule_ratio: float
    imbalance_ratio: float
    transfer_ratio: float | Absent
    unexplained_ratio: float
    bottleneck_stage: int | None

    @property
    def expected_ratio(self) -> float:
        """Bubble of the simulation: schedule, imbalance, and transfer if it is known."""
        transfer_ratio = 0.0 if isinstance(self.transfer_ratio, Absent) else self.transfer_ratio
        return self.schedule_ratio + self.imbalance_ratio + transfer_ratio


def split_bubble(
    measured_ratio: float, pipeline: Pipeline, times: StageTimes, *, transfer_s: float | Absent
) -> BubbleSplit:
    """Split a bubble: each part is what the simulated bubble gains when one more input is as measured.

    times: as measured. transfer_s: of one boundary tensor between two ranks, or why it is unknown.

    Raises:
        ValueError: the schedule cannot run this pipeline; a time is missing or negative, or all are 0.
    """
    order = actions(pipeline)
    # Mean stages -> own stages -> own stages and transfers: each step's increase is one part.
    own = simulate(order, times)
    ideal_ratio = simulate(order, mean_stage(times)).bubble_ratio
    transfer_ratio: float | Absent
    if isinstance(transfer_s, Absent):
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
    """Return the times of equal stages with the same total, kind by kind."""
    kinds = {kind for _, kind in times}
    mean_s = {kind: fmean(time_s for (_, other), time_s in times.items() if other == kind) for kind in kinds}
    return {(stage, kind): mean_s[kind] for stage, kind in times}


# Replay of a measured step, with all of its delays or only some: the time that the step gains from a delay is the
# delay's part of the bubble.


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Delays of an action, in seconds.

    host_s: from the end of the previous action on its rank until the rank requested this action's inputs.
    hand_over_s: from this action's end until the rank passed its output on for sending.
    message_s: from the later of the request and the sender's passing on, until the action began.
    """

    host_s: float = 0.0
    hand_over_s: float = 0.0
    message_s: float = 0.0


def replay(
    order: Sequence[Sequence[Action]], taken_s: Mapping[Action, float], delays: Mapping[Action, Delay]
) -> Simulated:
    """Replay the step with these delays; an action without a listed delay starts without delay.

    Each action takes its given time. It begins when its rank is free, the host has reached it, and its inputs have
    arrived, each delayed by its message.
    order: actions of each rank, in the order in which it performed them. taken_s: time of each action.

    Raises:
        ValueError: an action can never begin, or occurs twice.
    """
    planned = planned_on(order)
    needs = needs_of(planned)
    performed: list[list[SimulatedAction]] = [[] for _ in order]
    end_s: dict[Action, float] = {}
    for rank, action in in_possible_order(order, needs):
        delay = delays.get(action, Delay())
        start_s = (performed[rank][-1].end_s if performed[rank] else 0.0) + delay.host_s
        for needed in needs[action]:
            hand_over_s = delays.get(needed, Delay()).hand_over_s if planned[needed] != rank else 0.0
            start_s = max(start_s, end_s[needed] + hand_over_s)
        start_s += delay.message_s
        end_s[action] = start_s + taken_s[action]
        performed[rank].append(SimulatedAction(action=action, start_s=start_s, end_s=end_s[action]))
    return Simulated(performed=tuple(tuple(rank) for rank in performed))
