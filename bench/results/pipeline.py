"""The bubble of a pipeline, computed from the timed actions of all ranks, and the parts that explain it.

An action is what a stage computes for one microbatch: forward, backward, or half of backward. The bubble is the share
of time in which a pipeline's ranks compute nothing. The module also gives times of stages and live microbatches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean, median
from typing import cast, get_args

from bench.results.estimate import Estimate, estimate, estimate_part, estimate_share, of_metric
from collectors.metrics.metric import Metric
from collectors.metrics.results import (
    RUN_BUBBLE_PART_RATIO,
    RUN_BUBBLE_RATIO,
    RUN_LIVE_MICROBATCHES,
    RUN_STAGE_ACTIVATION_BYTES,
    RUN_STAGE_SECONDS,
)
from collectors.sample_log import TimedActions
from workloads.cost_models.absent import Absent
from workloads.cost_models.schedules import Action, ActionKind, Pipeline, actions, live_microbatches_of_stages
from workloads.pipeline_parallel.simulator import (
    BubbleSplit,
    Delay,
    needs_of,
    planned_on,
    replay,
    simulate,
    split_bubble,
)

AXIS = "stage"
"""The mesh axis along which ranks form a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One action of a rank. start_ns, end_ns: since the step began.

    asked_ns: when the rank last handled a message between its previous action and this one; None if it handled none, or
    if this is unknown. sent_ns: when the rank handed over the action's output; None in the same cases. core_wait_ns:
    how long the rank's thread waited for a core since the end of its previous action, or since the step began; None if
    unknown.
    """

    rank: int
    action: Action
    start_ns: int
    end_ns: int
    asked_ns: int | None = None
    sent_ns: int | None = None
    core_wait_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step of all ranks. works: by rank, those of each rank in order.

    begun_ns: on the monotonic clock of the first rank.
    is_one_clock: all ranks read the same clock; otherwise each rank's times count from the end of the barrier before
        the step.
    has_messages, has_core_waits: every rank logged when it handled messages, and how long it waited for a core.
    """

    trial: int
    step: int
    begun_ns: int
    is_one_clock: bool
    works: tuple[Work, ...]
    has_messages: bool = False
    has_core_waits: bool = False


def join_steps(timed_by_rank: Sequence[Sequence[TimedActions]]) -> tuple[TimedStep, ...]:
    """Join the steps of one trial that every rank has logged, in order."""
    by_rank = [{timed.step: timed for timed in performed} for performed in timed_by_rank]
    common = set.intersection(*map(set, by_rank)) if by_rank else set()
    steps = []
    for number in sorted(common):
        ranks = [steps_of_rank[number] for steps_of_rank in by_rank]
        first = ranks[0]
        is_one_clock = first.clock is not None and all(timed.clock == first.clock for timed in ranks)
        works = [
            work
            for rank, timed in enumerate(ranks)
            for work in _works(rank, timed, timed.begun_ns - first.begun_ns if is_one_clock else 0)
        ]
        steps.append(
            TimedStep(
                trial=first.trial,
                step=first.step,
                begun_ns=first.begun_ns,
                is_one_clock=is_one_clock,
                works=tuple(works),
                has_messages=all(timed.messages is not None for timed in ranks),
                has_core_waits=all(timed.core_waits_ns is not None for timed in ranks),
            )
        )
    return tuple(steps)


def _works(rank: int, performed: TimedActions, shift_ns: int) -> Iterator[Work]:
    """Yield the rank's works, with all times shifted by `shift_ns`."""
    messages = performed.messages or []
    sent_ns = {
        (message.stage, message.kind != "forward", message.microbatch): message.time_ns
        for message in messages
        if message.end == "sent"
    }
    before_ns = waited_ns = 0
    for number, timed in enumerate(performed.actions):
        asked_ns = max(
            (message.time_ns for message in messages if before_ns <= message.time_ns <= timed.start_ns), default=None
        )
        # Messages are looked up by stage, direction and microbatch. A whole backward and an input_backward send the
        # gradient of their input; a weight_backward sends nothing.
        place = (timed.stage, timed.kind != "forward", timed.microbatch)
        handed_ns = None if timed.kind == "weight_backward" else sent_ns.get(place)
        waits = None if performed.core_waits_ns is None else performed.core_waits_ns[number]
        yield Work(
            rank=rank,
            action=Action(kind=timed.kind, stage=timed.stage, microbatch=timed.microbatch),
            start_ns=timed.start_ns + shift_ns,
            end_ns=timed.end_ns + shift_ns,
            asked_ns=None if asked_ns is None else asked_ns + shift_ns,
            sent_ns=None if handed_ns is None else handed_ns + shift_ns,
            core_wait_ns=None if waits is None else waits[0] - waited_ns,
        )
        before_ns = timed.end_ns
        waited_ns = 0 if waits is None else waits[1]


def pipelines(axes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each pipeline, in order along the axis.

    axes: sizes of the mesh's axes over all ranks, outermost first; the last axis varies fastest. {"data": 2, "stage":
    2, "tensor": 2} gives (0, 2), (1, 3), (4, 6), (5, 7).

    Raises:
        ValueError: there is no axis of stages.
    """
    if AXIS not in axes:
        raise ValueError(f"the mesh has the axes {', '.join(axes)}; a pipeline is along one called {AXIS}")
    names = list(axes)
    stride = prod(axes[name] for name in names[names.index(AXIS) + 1 :])
    length = axes[AXIS]
    return tuple(
        tuple(range(first, first + length * stride, stride))
        for first in range(prod(axes.values()))
        if first // stride % length == 0
    )


def bubble_ratio(works: Iterable[Work], ranks: Sequence[int]) -> float:
    """Return the share of time in which the ranks of one pipeline compute nothing.

    The time runs from the first action's start to the last action's end, over all ranks of the pipeline.

    Raises:
        ValueError: the ranks performed no action.
    """
    rank_works = [work for work in works if work.rank in ranks]
    if not rank_works:
        raise ValueError(f"ranks {', '.join(map(str, ranks))} performed no action; a bubble is a share of their time")
    span_ns = max(work.end_ns for work in rank_works) - min(work.start_ns for work in rank_works)
    busy_ns = sum(work.end_ns - work.start_ns for work in rank_works)
    return 1 - busy_ns / (len(ranks) * span_ns)


def stage_seconds(works: Iterable[Work]) -> dict[tuple[int, ActionKind], float]:
    """Return the median time of an action in seconds, by stage and kind of action."""
    durations_ns: dict[tuple[int, ActionKind], list[int]] = defaultdict(list)
    for work in works:
        durations_ns[work.action.stage, work.action.kind].append(work.end_ns - work.start_ns)
    kinds = get_args(ActionKind)
    in_order = sorted(durations_ns, key=lambda place: (place[0], kinds.index(place[1])))
    return {place: median(durations_ns[place]) / 1e9 for place in in_order}


def most_live(works: Iterable[Work], stage: int) -> int:
    """Return the most microbatches that a stage held at once, in the order of its actions, in any pipeline.

    A microbatch is held from its forward to its backward, or to the second half of backward.
    """
    live: Counter[int] = Counter()
    most = 0
    halves: Counter[tuple[int, int]] = Counter()  # Halves of backward done, by rank and microbatch.
    for work in works:
        if work.action.stage != stage:
            continue
        if work.action.kind == "forward":
            live[work.rank] += 1
            most = max(most, live[work.rank])
            continue
        place = (work.rank, work.action.microbatch)
        halves[place] += 2 if work.action.kind == "backward" else 1
        if halves[place] == 2:
            live[work.rank] -= 1
    return most


# Parts of a measured bubble that come from a step's own delays: uneven actions, messages, waiting for a core

UNEVEN, MESSAGE, CORE = "uneven", "message", "waiting_for_a_core"


def delay_parts(pipeline: Pipeline, steps: Sequence[TimedStep], groups: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the parts of the trial's bubble that delays explain, added to a replay of the step one after another.

    Each part is the increase of the bubble when its delay is added. The replayed step is the one with the median
    bubble; for an even number of steps, the mean of the middle two counts.
    uneven: actions take their measured times instead of the median of their stage and kind.
    message: from the later of the sender's hand-over and the receiver's request to the action's start, including the
        transfer and without waits for a core.
    waiting_for_a_core: time for which the ranks' threads waited for a core between their actions.
    The rest of the bubble is the hosts' work between actions. If ranks did not log messages on one clock, only uneven
    is returned; if they did not log it, waiting_for_a_core is left out. Empty if a step's actions are not those of this
    pipeline.

    groups: the ranks of each pipeline.
    """
    planned = set(planned_on(actions(pipeline)))
    if any({work.action for work in step.works if work.rank in ranks} != planned for step in steps for ranks in groups):
        return {}
    # The bubble without delays: each action takes the median of its stage and kind.
    times = stage_seconds(work for step in steps for work in step.works)
    even_ratio = simulate(actions(pipeline), times).bubble_ratio
    # The one or two steps with the median bubble: [2:3] of 5 ordered steps, [2:4] of 6.
    ordered = sorted(
        (bubble_ratio(step.works, ranks), number, place)
        for number, step in enumerate(steps)
        for place, ranks in enumerate(groups)
    )
    middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
    parts_by_step = [dict(_parts_of_delays(steps[number], groups[place], even_ratio)) for _, number, place in middle]
    return {
        part: fmean(parts[part] for parts in parts_by_step)
        for part in parts_by_step[0]
        if all(part in parts for parts in parts_by_step)
    }


def _parts_of_delays(step: TimedStep, ranks: Sequence[int], even_ratio: float) -> Iterator[tuple[str, float]]:
    works = [[work for work in step.works if work.rank == rank] for rank in ranks]
    order = [[work.action for work in rank_works] for rank_works in works]
    durations_s = {work.action: (work.end_ns - work.start_ns) / 1e9 for rank_works in works for work in rank_works}
    # Replays: with the measured times only, then with messages' delays, then also with waits for a core.
    measured_ratio = replay(order, durations_s, {}).bubble_ratio
    yield UNEVEN, measured_ratio - even_ratio
    if not (step.has_messages and step.is_one_clock):
        return
    message_delays, delays_with_core = {}, {}
    for action, delay, waited in _delays_of_actions(works):
        message_delays[action] = Delay(message_s=delay.message_s - waited.message_s)
        delays_with_core[action] = Delay(
            host_s=waited.host_s, hand_over_s=waited.hand_over_s, message_s=delay.message_s
        )
    message_ratio = replay(order, durations_s, message_delays).bubble_ratio
    yield MESSAGE, message_ratio - measured_ratio
    if step.has_core_waits:
        yield CORE, replay(order, durations_s, delays_with_core).bubble_ratio - message_ratio


def _delays_of_actions(works: Sequence[Sequence[Work]]) -> Iterator[tuple[Action, Delay, Delay]]:
    """Yield each action with its delay, and the part of the delay that is a wait for a core.

    A replay with all delays reproduces the measured step. A wait for a core counts first as host time, then as a wait
    for a message.
    """
    place = {work.action: work for rank_works in works for work in rank_works}
    needs = needs_of(planned_on([[work.action for work in rank_works] for rank_works in works]))
    first_ns = min(work.start_ns for work in place.values())
    for rank_works in works:
        before_ns = [first_ns, *(work.end_ns for work in rank_works)]
        waits_ns = [*(work.core_wait_ns or 0 for work in rank_works), 0]
        for number, work in enumerate(rank_works):
            # What the action needs from other ranks, when the rank asked for it, and when it was handed over. If a rank
            # asked before its previous action ended, it waits from that end.
            remote = [place[needed] for needed in needs[work.action] if place[needed].rank != work.rank]
            asked_ns = work.asked_ns if work.asked_ns is not None else before_ns[number] if remote else work.start_ns
            asked_ns = max(asked_ns, before_ns[number])
            handed_ns = [
                message.end_ns if message.sent_ns is None else max(message.sent_ns, message.end_ns)
                for message in remote
            ]
            # The gap before the action is the host's time until it asked, then the wait for the message.
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


# A run's bubble, compared with what its schedule, its stages and the link explain

PARTS = ("schedule", "imbalance", "transfer", UNEVEN, MESSAGE, CORE, "unexplained")
"""Parts of the measured bubble, in the order in which they add up to it. Runs of older versions lack the delays."""
_DECIMALS = 12
"""Number of decimals: further ones are rounding errors, not differences between trials."""
CLEARLY_LONGER = 0.05
"""A rank is called the bottleneck if it computes longer than the mean rank by at least this share; less is noise."""


def bubble_parts(
    pipeline: Pipeline, estimates: Sequence[Estimate], transfer_s: float | Absent
) -> Iterator[Estimate | str]:
    """Yield the expected bubble, the parts of the measured one, and notes on absent parts and the bottleneck.

    The parts are computed from the run's medians, so that they add up; those of each trial give the intervals.
    estimates: the run's measured bubble, times of stages and parts of `delay_parts`. The message part is yielded again,
        without the transfer, if the transfer is known.
    transfer_s: time to send one boundary tensor between two ranks, or why it is unknown.
    """
    measured = of_metric(estimates, RUN_BUBBLE_RATIO)
    times = {
        (int(estimate.labels["stage"]), cast(ActionKind, estimate.labels["action"])): estimate
        for estimate in of_metric(estimates, RUN_STAGE_SECONDS)
    }
    if not measured:
        return
    untimed = sorted({(action.stage, action.kind) for rank in actions(pipeline) for action in rank} - times.keys())
    if untimed:
        stage, kind = untimed[0]
        yield f"the expected bubble is absent: no {kind} of stage {stage} took any time in the timed steps"
        return
    (bubble,) = measured
    delays = {
        estimate.labels["part"]: estimate
        for estimate in of_metric(estimates, RUN_BUBBLE_PART_RATIO)
        if estimate.labels["part"] in (UNEVEN, MESSAGE, CORE)
    }

    def split(trial: int | None) -> tuple[BubbleSplit, dict[str, float]]:
        """Split the bubble of the run's medians, or of one trial, and return it with all its parts."""

        def value_of(estimate: Estimate) -> float:
            return estimate.median if trial is None else estimate.trials[trial]

        stages_s = {place: value_of(estimate) for place, estimate in times.items()}
        bubble_split = split_bubble(value_of(bubble), pipeline, stages_s, transfer_s=transfer_s)
        return bubble_split, _parts(bubble_split, {part: value_of(estimate) for part, estimate in delays.items()})

    of_run, run_parts = split(None)
    of_trials = [split(trial) for trial in range(len(bubble.trials))]
    expected = [_rounded(trial_split.expected_ratio) for trial_split, _ in of_trials]
    yield estimate_part(RUN_BUBBLE_RATIO, expected, middle=_rounded(of_run.expected_ratio), account="expected")
    for part, middle in run_parts.items():
        if part not in (UNEVEN, CORE) and not (part == MESSAGE and isinstance(transfer_s, Absent)):
            values = [parts[part] for _, parts in of_trials]
            yield estimate_part(RUN_BUBBLE_PART_RATIO, values, middle=middle, part=part)
    if isinstance(of_run.transfer_ratio, Absent):
        where = MESSAGE if MESSAGE in delays else "unexplained"
        yield f"the transfer's part of the bubble is absent, and is in {where}: {of_run.transfer_ratio.reason}"
    yield from _bottleneck(pipeline, times)


def _parts(split: BubbleSplit, delays: Mapping[str, float]) -> dict[str, float]:
    """Return all parts of a bubble; subtract the transfer from the message part, and the delays from unexplained."""
    transfer_ratio = None if isinstance(split.transfer_ratio, Absent) else _rounded(split.transfer_ratio)
    beyond = dict(delays)
    if MESSAGE in beyond:
        beyond[MESSAGE] -= transfer_ratio or 0.0
    return {
        "schedule": _rounded(split.schedule_ratio),
        "imbalance": _rounded(split.imbalance_ratio),
        **({} if transfer_ratio is None else {"transfer": transfer_ratio}),
        "unexplained": _rounded(_rounded(split.unexplained_ratio) - sum(beyond.values())),
        **{part: _rounded(ratio) for part, ratio in beyond.items()},
    }


def _rounded(ratio: float) -> float:
    return round(ratio, _DECIMALS) + 0.0  # Turns -0.0 into 0.0.


def _bottleneck(pipeline: Pipeline, times: Mapping[tuple[int, ActionKind], Estimate]) -> Iterator[str]:
    """Yield a note on the rank that computes longest, if it computes clearly longer than the mean rank."""
    stages_s = [
        sum(estimate.median for (of, _), estimate in times.items() if of == stage) for stage in range(pipeline.stages)
    ]
    ranks_s = [sum(stages_s[stage] for stage in pipeline.stages_of(rank)) for rank in range(pipeline.ranks)]
    slowest = max(range(pipeline.ranks), key=ranks_s.__getitem__)
    if ranks_s[slowest] < (1 + CLEARLY_LONGER) * fmean(ranks_s):
        return
    stages = pipeline.stages_of(slowest)
    name = f"stage {stages[0]}" if len(stages) == 1 else f"stages {' and '.join(map(str, stages))}"
    yield (
        f"the bottleneck is {name}, on pipeline rank {slowest}: it computes {1e3 * ranks_s[slowest]:,.4g} ms for a"
        f" microbatch, a mean rank {1e3 * fmean(ranks_s):,.4g} ms"
    )


# Estimates of a run from its trials' timed steps


def pipeline_estimates(
    pipeline: Pipeline,
    axes: Mapping[str, int],
    steps: Sequence[Sequence[TimedStep]],
    activations: Sequence[Mapping[int, float]],
    predicted: Sequence[int] | Absent,
) -> tuple[tuple[Estimate, ...], tuple[str, ...]]:
    """Return the estimates of a pipeline, measured and predicted, and notes on what is absent.

    axes: the mesh's axes, including the pipeline's; see `pipelines`.
    steps: the timed steps of each trial.
    activations: for each trial the bytes that microbatches left, by stage.
    predicted: bytes that forwards of each stage's live microbatches should leave, or why no cost model gives them.
    """
    if not all(steps):
        return (), ("the bubble and the times of stages are absent: no step's actions were timed; use --trace-steps 3",)
    groups = pipelines(axes)
    bubbles = [median(bubble_ratio(step.works, ranks) for step in of_trial for ranks in groups) for of_trial in steps]
    estimates = [estimate_share(RUN_BUBBLE_RATIO, bubbles, account="measured")]
    # The parts of the bubble that need no measured link; `bubble_parts` yields the others.
    delays = [delay_parts(pipeline, of_trial, groups) for of_trial in steps]
    for part in delays[0]:
        if all(part in ratios for ratios in delays):
            values = [ratios[part] for ratios in delays]
            estimates.append(estimate_part(RUN_BUBBLE_PART_RATIO, values, middle=median(values), part=part))
    times = [stage_seconds(work for step in of_trial for work in step.works) for of_trial in steps]
    for stage, kind in times[0]:
        values = [times_s.get((stage, kind), 0.0) for times_s in times]
        if all(values):
            estimates.append(estimate(RUN_STAGE_SECONDS, values, stage=str(stage), action=kind))
    for stage, most in live_microbatches_of_stages(actions(pipeline)).items():
        counts = [max(most_live(step.works, stage) for step in of_trial) for of_trial in steps]
        estimates += _beside_predicted(RUN_LIVE_MICROBATCHES, stage, counts, most)
    if isinstance(predicted, Absent):
        for stage in sorted(set.intersection(*map(set, activations))):
            values = [by_stage[stage] for by_stage in activations]
            estimates += _beside_predicted(RUN_STAGE_ACTIVATION_BYTES, stage, values, None)
    else:
        for stage, size_bytes in enumerate(predicted):
            values = [by_stage.get(stage, 0.0) for by_stage in activations]
            estimates += _beside_predicted(RUN_STAGE_ACTIVATION_BYTES, stage, values, size_bytes)
    return tuple(estimates), tuple(_notes([step for of_trial in steps for step in of_trial], predicted))


def _beside_predicted(
    metric: Metric, stage: int, measured: Sequence[float], predicted: float | None
) -> Iterator[Estimate]:
    """Yield a stage's measured values if all trials have one, and its predicted value if a model has one."""
    if all(measured):
        yield estimate(metric, measured, stage=str(stage), account="measured")
    if predicted is not None:
        yield estimate(metric, [predicted] * len(measured), stage=str(stage), account="expected")


def _notes(steps: Sequence[TimedStep], activations: Sequence[int] | Absent) -> Iterator[str]:
    if isinstance(activations, Absent):
        yield f"expected activations of stages are absent: {activations.reason}"
    is_one_clock = all(step.is_one_clock for step in steps)
    if not all(step.has_messages and step.is_one_clock for step in steps):
        has_messages = all(step.has_messages for step in steps)
        why = "ranks read several clocks" if has_messages else "the ranks' logs do not have them, as on a GPU"
        yield f"waits for messages and for a core are absent from the bubble's parts, and are in unexplained: {why}"
    elif not all(step.has_core_waits for step in steps):
        yield (
            "waiting for a core is absent from the bubble's parts, and is in unexplained: this system has no"
            " /proc/thread-self/schedstat"
        )
    if not is_one_clock:
        yield (
            "ranks read several clocks, each of which counts from the barrier before the step: the bubble is off by the"
            " differences between the times at which ranks left that barrier"
        )
