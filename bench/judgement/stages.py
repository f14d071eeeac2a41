"""What the ranks of a pipeline computed in one timed step, on one clock, and what that says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import get_args

from collectors.sample_log import Performed
from workloads.laws.schedules import Action, ActionKind

AXIS = "stage"
"""The mesh axis whose ranks are one pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One action of a rank. start_ns, end_ns: since the step began.

    asked_ns: when the rank last dealt with a message between the action before and this one; None where it did not, or
    nobody knows. sent_ns: when it handed over what the action made; None as well.
    core_wait_ns: what the rank's thread waited for a core since the end of the action before, or the step's beginning;
    None where nobody knows.
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
    """One step of all ranks, its works in the order of each rank's own.

    begun_ns: on the monotonic clock of the first rank.
    is_one_clock: all ranks read the same clock; otherwise each counts from the end of their meeting before the step.
    has_messages, has_core_waits: of all ranks it is known when they dealt with messages, and waited for a core.
    """

    trial: int
    step: int
    begun_ns: int
    is_one_clock: bool
    works: tuple[Work, ...]
    has_messages: bool = False
    has_core_waits: bool = False


def join_steps(performed_by_rank: Sequence[Sequence[Performed]]) -> tuple[TimedStep, ...]:
    """The steps of one trial that every rank has logged, in order."""
    if not performed_by_rank:
        return ()
    by_step = [{one.step: one for one in performed} for performed in performed_by_rank]
    common = set(by_step[0]).intersection(*by_step[1:])
    return tuple(_join([steps[step] for steps in by_step]) for step in sorted(common))


def _join(ranks: Sequence[Performed]) -> TimedStep:
    first = ranks[0]
    is_one_clock = first.clock is not None and all(one.clock == first.clock for one in ranks)
    return TimedStep(
        trial=first.trial,
        step=first.step,
        begun_ns=first.begun_ns,
        is_one_clock=is_one_clock,
        works=tuple(
            work
            for rank, one in enumerate(ranks)
            for work in _works(rank, one, one.begun_ns - first.begun_ns if is_one_clock else 0)
        ),
        has_messages=all(one.messages is not None for one in ranks),
        has_core_waits=all(one.core_waits_ns is not None for one in ranks),
    )


def _works(rank: int, performed: Performed, shift_ns: int) -> Iterator[Work]:
    """The rank's, later by so much than it says."""
    messages = performed.messages or []
    sent_ns = {(one.stage, one.kind != "forward", one.microbatch): one.time_ns for one in messages if one.end == "sent"}
    before_ns = waited_ns = 0
    for number, timed in enumerate(performed.actions):
        asked_ns = max((one.time_ns for one in messages if before_ns <= one.time_ns <= timed.start_ns), default=None)
        # What a backward hands on is made by the whole of it, or by the half that makes gradients of inputs.
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
    """The ranks of each pipeline, in its own order.

    axes: of the mesh over all ranks, outermost first; the last runs fastest.

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
    """Share of their time that the ranks of one pipeline compute for no stage.

    Their time runs from the first action's start to the last one's end, on whichever rank these are.

    Raises:
        ValueError: the ranks did nothing.
    """
    own = [work for work in works if work.rank in ranks]
    if not own:
        raise ValueError(f"ranks {', '.join(map(str, ranks))} performed no action; a bubble is a share of their time")
    span_ns = max(work.end_ns for work in own) - min(work.start_ns for work in own)
    busy_ns = sum(work.end_ns - work.start_ns for work in own)
    return 1 - busy_ns / (len(ranks) * span_ns)


def stage_seconds(works: Iterable[Work]) -> dict[tuple[int, ActionKind], float]:
    """What a stage takes for a microbatch, by stage and kind of action: the median."""
    found: dict[tuple[int, ActionKind], list[int]] = defaultdict(list)
    for work in works:
        found[work.action.stage, work.action.kind].append(work.end_ns - work.start_ns)
    return {place: median(found[place]) / 1e9 for place in sorted(found, key=_by_stage)}


def _by_stage(place: tuple[int, ActionKind]) -> tuple[int, int]:
    stage, kind = place
    return stage, get_args(ActionKind).index(kind)


def most_live(works: Iterable[Work], stage: int) -> int:
    """Most microbatches that a stage held at once, by the order of its actions; of several pipelines the most.

    One is held from its forward to the end of its backward, of both halves where these are parted.
    """
    live: Counter[int] = Counter()
    most = 0
    halves: Counter[tuple[int, int]] = Counter()
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
