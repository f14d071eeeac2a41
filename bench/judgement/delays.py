"""What of a measured bubble the step's own delays explain: uneven actions, messages, and waiting for a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from bench.judgement.stages import TimedStep, Work, bubble_ratio, stage_seconds
from workloads.laws.pipeline import Pipeline
from workloads.laws.replay import Delay, replay
from workloads.laws.schedules import Action, actions
from workloads.laws.simulator import needs_of, planned_on, simulate

UNEVEN, MESSAGE, CORE = "uneven", "message", "waiting_for_a_core"


def delay_parts(pipeline: Pipeline, steps: Sequence[TimedStep], groups: Sequence[Sequence[int]]) -> dict[str, float]:
    """Parts of the trial's bubble, each what the measured step gains when one more of its delays is in it.

    They are of the step whose bubble is the trial's median; of the mean of two such where their number is even.
    uneven: each action takes what it took, and not the median of its stage and kind.
    message: from the sender's handing over and the receiver's asking to the action's start; with the transfer in it.
    waiting_for_a_core: what the ranks' threads waited between their actions.
    What is left besides is what hosts do between actions. Where it is not known when ranks dealt with messages, on one
    clock, there is the first part only; where it is not known what they waited for a core, not the last. Of a step that
    is not this pipeline's there are none.

    groups: the ranks of each pipeline.
    """
    planned = set(planned_on(actions(pipeline)))
    if any({work.action for work in step.works if work.rank in ranks} != planned for step in steps for ranks in groups):
        return {}
    times = stage_seconds(work for step in steps for work in step.works)
    even_ratio = simulate(actions(pipeline), times).bubble_ratio
    ordered = sorted(
        (bubble_ratio(step.works, ranks), number, place)
        for number, step in enumerate(steps)
        for place, ranks in enumerate(groups)
    )
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    found = [dict(_parts(steps[number], groups[place], even_ratio)) for _, number, place in middle]
    return {part: fmean(one[part] for one in found) for part in found[0] if all(part in one for one in found)}


def _parts(step: TimedStep, ranks: Sequence[int], even_ratio: float) -> Iterator[tuple[str, float]]:
    works = [[work for work in step.works if work.rank == rank] for rank in ranks]
    order = [[work.action for work in own] for own in works]
    taken_s = {work.action: (work.end_ns - work.start_ns) / 1e9 for own in works for work in own}
    own_ratio = replay(order, taken_s, {}).bubble_ratio
    yield UNEVEN, own_ratio - even_ratio
    if not (step.has_messages and step.is_one_clock):
        return
    without, core = {}, {}
    for action, delay, waited in _delays(works):
        without[action] = Delay(message_s=delay.message_s - waited.message_s)
        core[action] = Delay(host_s=waited.host_s, hand_over_s=waited.hand_over_s, message_s=delay.message_s)
    message_ratio = replay(order, taken_s, without).bubble_ratio
    yield MESSAGE, message_ratio - own_ratio
    if step.has_core_waits:
        yield CORE, replay(order, taken_s, core).bubble_ratio - message_ratio


def _delays(works: Sequence[Sequence[Work]]) -> Iterator[tuple[Action, Delay, Delay]]:
    """Of each action its delay, with all of which a replay is the measured step, and the part spent waiting for a core.

    Waiting for a core counts first among what the rank's host did, and then as the end of waiting for a message.
    """
    place = {work.action: work for own in works for work in own}
    needs = needs_of(planned_on([[work.action for work in own] for own in works]))
    first_ns = min(work.start_ns for work in place.values())
    for own in works:
        before_ns = [first_ns, *(work.end_ns for work in own)]
        waits_ns = [*(work.core_wait_ns or 0 for work in own), 0]
        for number, work in enumerate(own):
            remote = [place[needed] for needed in needs[work.action] if place[needed].rank != work.rank]
            # A rank that asked earlier waits from the end of its last action on.
            asked_ns = work.asked_ns if work.asked_ns is not None else before_ns[number] if remote else work.start_ns
            asked_ns = max(asked_ns, before_ns[number])
            handed_ns = [one.end_ns if one.sent_ns is None else max(one.sent_ns, one.end_ns) for one in remote]
            host_ns = asked_ns - before_ns[number]
            message_ns = work.start_ns - max(asked_ns, *handed_ns) if handed_ns else work.start_ns - asked_ns
            hand_over_ns = 0 if work.sent_ns is None else max(0, work.sent_ns - work.end_ns)
            of_host_ns = min(host_ns, waits_ns[number])
            of_message_ns = max(0, min(message_ns, waits_ns[number] - of_host_ns))
            yield (
                work.action,
                Delay(host_s=host_ns / 1e9, hand_over_s=hand_over_ns / 1e9, message_s=message_ns / 1e9),
                Delay(
                    host_s=of_host_ns / 1e9,
                    hand_over_s=min(hand_over_ns, waits_ns[number + 1]) / 1e9,
                    message_s=of_message_ns / 1e9,
                ),
            )
