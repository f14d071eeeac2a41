"""A step of a pipeline played through again as it was measured, with its delays or without some of them.

Each action takes what it took. It begins when its rank is free, the host has come to it, and what it needs is there,
later by what the message took. With all delays the step is the measured one; what it gains from a delay is its part of
the bubble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.laws.schedules import Action
from workloads.laws.simulator import Simulated, SimulatedAction, in_possible_order, needs_of, planned_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What an action was late by; seconds.

    host_s: from the end of the action before it on its rank until the rank asked for what it needs.
    hand_over_s: from this action's own end until the rank handed its output over to be sent.
    message_s: from the later of asking and of the sender's handing over, until the action began.
    """

    host_s: float = 0.0
    hand_over_s: float = 0.0
    message_s: float = 0.0


NO_DELAY = Delay()


def replay(
    order: Sequence[Sequence[Action]], taken_s: Mapping[Action, float], delays: Mapping[Action, Delay]
) -> Simulated:
    """The step with these delays; an action without one has none.

    order: each rank's actions, as it did them. taken_s: of each action.

    Raises:
        ValueError: an action can never begin, or is there twice.
    """
    planned = planned_on(order)
    needs = needs_of(planned)
    performed: list[list[SimulatedAction]] = [[] for _ in order]
    end_s: dict[Action, float] = {}
    for rank, action in in_possible_order(order, needs):
        delay = delays.get(action, NO_DELAY)
        start_s = (performed[rank][-1].end_s if performed[rank] else 0.0) + delay.host_s
        for needed in needs[action]:
            hand_over_s = delays.get(needed, NO_DELAY).hand_over_s if planned[needed] != rank else 0.0
            start_s = max(start_s, end_s[needed] + hand_over_s)
        start_s += delay.message_s
        end_s[action] = start_s + taken_s[action]
        performed[rank].append(SimulatedAction(action=action, start_s=start_s, end_s=end_s[action]))
    return Simulated(performed=tuple(tuple(rank) for rank in performed))
