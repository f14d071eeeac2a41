"""Time of a pipeline step whose actions take known times, as one number, for plans that compare many steps.

The result equals that of `simulator.replay` to the last bit, but without the start of each action and delays of the
host. The order in which actions can run depends only on the schedule, so it is computed once and then replayed for each
set of times. Knows neither models nor interconnects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from workloads.cost_models.schedules import ActionKind, Pipeline, ScheduleName, actions_of_rank

KindOfStage = tuple[int, ActionKind]
NOT_YET = -1
"""Place of an action that has no place yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds of the actions of a step, by stage and kind.

    computing_s: of each action. inside_s: of the collectives within it. first_s: of the collectives that only the
    forward of the first microbatch has, by stage. last_s: of those that only the backward of the last microbatch has,
    or its weight_backward if backward is split.
    handed_on_s: until another rank has an action's output.
    """

    computing_s: Mapping[KindOfStage, float]
    inside_s: Mapping[KindOfStage, float]
    first_s: Mapping[int, float]
    last_s: Mapping[int, float]
    handed_on_s: Mapping[KindOfStage, float]


def makespan_s(pipeline: Pipeline, times: StepTimes) -> float:
    """Return the time from the beginning of the step to the end of the last action.

    Raises:
        ValueError: the schedule cannot run this pipeline; KeyError: a time is missing.
    """
    order = _order(pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank, pipeline.microbatches)
    taken_s, handed_on_s = [], []
    for (stage, kind), is_special in order.kinds:
        inside_s = times.inside_s[stage, kind]
        if is_special:
            inside_s += (times.first_s if kind == "forward" else times.last_s)[stage]
        taken_s.append(times.computing_s[stage, kind] + inside_s)
        handed_on_s.append(times.handed_on_s[stage, kind])
    ends_s = [0.0] * (len(order.turns) + 1)
    arrives_s = [0.0] * (len(order.turns) + 1)
    free_s = [0.0] * pipeline.ranks
    for place, (rank, kind_number, needed) in enumerate(order.turns):
        start_s = free_s[rank]
        if arrives_s[needed] > start_s:  # The place after the last stands for none, and its time is 0.
            start_s = arrives_s[needed]
        end_s = start_s + taken_s[kind_number]
        ends_s[place] = free_s[rank] = end_s
        arrives_s[place] = end_s + handed_on_s[kind_number]
    return max(ends_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """All actions of a step, each after those that it needs.

    kinds: stage and kind of actions, and whether they take longer than others: in the first microbatch's forward and
    the last one's backward.
    turns: each action's rank, its place in `kinds`, and the place in `turns` of the other rank's action that it needs,
    or the number of all turns if it needs none. The actions of its own rank that it needs precede it in any case.
    """

    kinds: tuple[tuple[KindOfStage, bool], ...]
    turns: tuple[tuple[int, int, int], ...]


@lru_cache(maxsize=32)
def _order(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> _Order:
    pipeline = Pipeline(
        schedule=schedule, ranks=ranks, stages_per_rank=stages_per_rank, microbatches=microbatches, boundary_bytes=0
    )
    waiting = [actions_of_rank(pipeline, rank) for rank in range(ranks)]
    done = [0] * ranks
    count = sum(map(len, waiting))
    places = [pipeline.rank_of(stage) for stage in range(pipeline.stages)]
    # Whether a stage's neighbour before or after it is on another rank.
    from_before = [stage > 0 and places[stage - 1] != rank for stage, rank in enumerate(places)]
    from_after = [stage < pipeline.stages - 1 and places[stage + 1] != rank for stage, rank in enumerate(places)]
    kind_numbers: dict[tuple[KindOfStage, bool], int] = {}
    forwards: dict[tuple[int, int], int] = {}  # Places in turns, by stage and microbatch.
    handing_on: dict[tuple[int, int], int] = {}  # Places of actions that pass gradients on.
    turns: list[tuple[int, int, int]] = []
    while len(turns) < count:
        before = len(turns)
        for rank, of_rank in enumerate(waiting):
            for kind, stage, microbatch in islice(of_rank, done[rank], None):
                needed = count
                if kind == "forward":
                    if from_before[stage] and (needed := forwards.get((stage - 1, microbatch), NOT_YET)) == NOT_YET:
                        break
                    forwards[stage, microbatch] = len(turns)
                    is_special = microbatch == 0
                elif kind == "weight_backward":
                    is_special = microbatch == microbatches - 1
                else:
                    if from_after[stage] and (needed := handing_on.get((stage + 1, microbatch), NOT_YET)) == NOT_YET:
                        break
                    handing_on[stage, microbatch] = len(turns)
                    is_special = kind == "backward" and microbatch == microbatches - 1
                number = kind_numbers.setdefault(((stage, kind), is_special), len(kind_numbers))
                turns.append((rank, number, needed))
                done[rank] += 1
        assert len(turns) > before, f"{schedule} has an action that can never begin"
    return _Order(kinds=tuple(kind_numbers), turns=tuple(turns))
