"""Pipeline schedules: the cut of blocks into stages, each rank's actions in order, and the microbatches it holds.

Sources: Huang et al. 2019, GPipe, section 2.3; Narayanan et al. 2021, Efficient large-scale language model training on
GPU clusters, section 2.2 (1F1B, interleaved); Qi et al. 2023, Zero bubble pipeline parallelism, sections 3 and 6.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, count
from typing import Literal, NamedTuple

from workloads.cost_models.shape import Shape

# Cutting blocks into stages so that the longest stage is as short as possible.


def balance(blocks: Sequence[float], stages: int, *, before: float = 0.0, after: float = 0.0) -> tuple[int, ...]:
    """Return the number of blocks of each stage, one or more.

    blocks: cost of each block, in the order of the model. before, after: additional cost of the first and of the last
    stage.
    Among cuts whose longest stages are equally long, take the one whose early stages have more blocks: in most
    schedules early stages wait longer.
    Exact, by dynamic programming over the ends of stages.

    Raises:
        ValueError: there is no stage, or a stage would have no block.
    """
    if not 1 <= stages <= len(blocks):
        raise ValueError(f"stages is {stages}; {len(blocks)} blocks can be cut into 1 to {len(blocks)}")
    sums = [0.0, *accumulate(blocks)]

    def cost(stage: int, start: int, end: int) -> float:
        outer = (before if stage == 0 else 0.0) + (after if stage == stages - 1 else 0.0)
        return sums[end] - sums[start] + outer

    # longest[end]: longest stage of the best cut of the first `end` blocks into the stages so far; it grows with `end`.
    # starts[stage - 1][end]: first block of the last stage of that cut.
    longest = [0.0, *(cost(0, 0, end) for end in range(1, len(blocks) + 1))]
    starts: list[dict[int, int]] = []
    for stage in range(1, stages):
        best, start_of, start = list(longest), dict[int, int](), stage
        # Each later stage has a block or more; of the last one, only the cut of all blocks is needed.
        ends = range(stage + 1 if stage < stages - 1 else len(blocks), len(blocks) - (stages - 1 - stage) + 1)
        for end in ends:
            # A later start makes the stages before it longer and this one shorter: the best is where the two cross.
            while start < end - 1 and longest[start] < cost(stage, start, end):
                start += 1
            best[end] = max(longest[start], cost(stage, start, end))
            if start > stage and (left := cost(stage, start - 1, end)) < best[end]:
                best[end] = left
            # The latest start whose longest stage is no longer.
            start_of[end] = bisect_right(longest, best[end], stage, end) - 1
        longest = best
        starts.append(start_of)

    # Walk back from the last stage to the first: each stage ends where the one after it starts.
    counts, end = [], len(blocks)
    for of_stage in reversed(starts):
        counts.append(end - of_stage[end])
        end = of_stage[end]
    return (end, *reversed(counts))


def equal_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the same number of blocks for each stage.

    Raises:
        ValueError: the stages do not divide the layers.
    """
    if stages < 1 or layers % stages:
        raise ValueError(f"layers is {layers}, which {stages} stages do not divide")
    return (layers // stages,) * stages


def flops_balance(shape: Shape, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage, balanced by FLOPs: the head counts in the last stage, the embedding has none.

    Raises:
        ValueError: there are more stages than blocks, or none.
    """
    return _flops_balance(shape, stages)


@lru_cache(maxsize=256)
def _flops_balance(shape: Shape, stages: int) -> tuple[int, ...]:
    head = 6 * shape.width * shape.vocabulary * shape.tokens
    block = (shape.flops_per_step() - head) / shape.layers
    return balance([block] * shape.layers, stages, after=head)


ScheduleName = Literal["naive", "gpipe", "one_f_one_b", "interleaved", "interleaved_zero_bubble", "zbv"]

HALVED_BACKWARD: tuple[ScheduleName, ...] = ("interleaved_zero_bubble", "zbv")
"""Schedules that split backward into the gradients of inputs and the gradients of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline: the ranks of the mesh axis `stage`, their schedule, and the size of the tensors between stages.

    boundary_bytes: size of the tensor that a stage sends to the next for one microbatch; its gradient is as large.
    """

    schedule: ScheduleName
    ranks: int
    stages_per_rank: int
    microbatches: int
    boundary_bytes: int

    @property
    def stages(self) -> int:
        """Number of stages of the whole model."""
        return self.ranks * self.stages_per_rank

    def rank_of(self, stage: int) -> int:
        """Return the pipeline rank that holds a stage: round-robin, or down and back up in a V.

        Raises:
            ValueError: there is no such stage.
        """
        if not 0 <= stage < self.stages:
            raise ValueError(f"stage is {stage}; it may be 0 to {self.stages - 1}")
        if self.schedule == "zbv" and stage >= self.ranks:
            return self.stages - 1 - stage
        return stage % self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages that a pipeline rank holds, in the order of the model."""
        if self.schedule == "zbv":
            return tuple(stage for stage in range(self.stages) if self.rank_of(stage) == rank)
        return tuple(range(rank, self.stages, self.ranks))


ActionKind = Literal["forward", "backward", "input_backward", "weight_backward"]
"""backward: gradients of inputs and weights together; the other two are its halves, where a schedule splits them."""

MessageEnd = Literal["sent", "asked"]
"""sent: an action's output was passed on for sending. asked: an action's input was requested."""

_KindOfStage = tuple[ActionKind, int]


class Action(NamedTuple):  # A plan of a large cluster makes a million.
    """What a stage computes for a microbatch; both are counted from 0, stages in the order of the model."""

    kind: ActionKind
    stage: int
    microbatch: int


def actions(pipeline: Pipeline) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of each pipeline rank, in order.

    Raises:
        ValueError: the schedule cannot run these microbatches on these stages.
    """
    return tuple(actions_of_rank(pipeline, rank) for rank in range(pipeline.ranks))


def actions_of_rank(pipeline: Pipeline, rank: int) -> tuple[Action, ...]:
    """Return the actions of one pipeline rank, in order.

    Raises:
        ValueError: the schedule cannot run these microbatches on these stages.
    """
    reason = why_not(pipeline.schedule, pipeline.ranks, pipeline.stages_per_rank, pipeline.microbatches)
    if reason is not None:
        raise ValueError(reason)
    return tuple(_rank_order(pipeline, rank))


def why_not(schedule: ScheduleName, ranks: int, stages_per_rank: int, microbatches: int) -> str | None:
    """Return why a schedule cannot run this, with numbers that would work; None if it can."""
    if ranks < 1 or stages_per_rank < 1 or microbatches < 1:
        return (
            f"ranks, stages per rank and microbatches are {ranks}, {stages_per_rank} and {microbatches};"
            " each must be 1 or more"
        )
    if schedule == "interleaved" and stages_per_rank == 1:
        return "stages per rank is 1; interleaved takes 2 or more (with 1 it is one_f_one_b, with a longer warm-up)"
    if schedule == "zbv" and stages_per_rank != 2:
        return f"stages per rank is {stages_per_rank}; zbv takes 2, the two arms of its V"
    if schedule in ("naive", "gpipe", "one_f_one_b") and stages_per_rank != 1:
        return f"stages per rank is {stages_per_rank}; {schedule} takes 1 (interleaved takes more)"
    if schedule == "naive" and microbatches != 1:
        return f"microbatches is {microbatches}; naive takes 1, the whole batch (gpipe takes more)"
    if schedule == "one_f_one_b" and microbatches < ranks:
        return f"microbatches is {microbatches}; one_f_one_b on {ranks} ranks takes {ranks} or more"
    if schedule in ("interleaved", "interleaved_zero_bubble") and not _has_equal_rounds(ranks, microbatches):
        # One microbatch, and any multiple of the ranks, have equal rounds: both searches end.
        fewer = next(fewer for fewer in count(microbatches - 1, -1) if _has_equal_rounds(ranks, fewer))
        more = next(more for more in count(microbatches + 1) if _has_equal_rounds(ranks, more))
        return (
            f"microbatches is {microbatches}; {schedule} on {ranks} ranks runs them in {microbatches // ranks} rounds"
            f" of one size, so use {fewer} or {more}, or any multiple of {ranks}"
        )
    return None


def _round_microbatches(ranks: int, microbatches: int) -> int:
    """Return the microbatches that a rank runs through one stage before it turns to its next."""
    return microbatches // max(1, microbatches // ranks)


def _has_equal_rounds(ranks: int, microbatches: int) -> bool:
    return microbatches % _round_microbatches(ranks, microbatches) == 0


def _rank_order(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    later_ranks = pipeline.ranks - 1 - rank
    # Forwards of the first round before a rank's last stage has its turn.
    first_passes = (pipeline.stages_per_rank - 1) * _round_microbatches(pipeline.ranks, pipeline.microbatches)
    match pipeline.schedule:
        case "naive" | "gpipe":
            # Warm-up is everything: all forwards, then all backwards.
            return _alternating(pipeline, rank, warm_up=pipeline.microbatches)
        case "one_f_one_b":
            return _alternating(pipeline, rank, warm_up=later_ranks)
        case "interleaved":
            # Each rank nearer to the start waits one forward and one backward longer for its first gradient.
            return _alternating(pipeline, rank, warm_up=first_passes + 2 * later_ranks)
        case "interleaved_zero_bubble":
            # Later ranks delay more weight_backwards, so that all ranks begin them at the same time.
            return _alternating(pipeline, rank, warm_up=first_passes + later_ranks, put_off=rank)
        case "zbv":
            return _zbv(pipeline, rank)


def _alternating(pipeline: Pipeline, rank: int, *, warm_up: int, put_off: int | None = None) -> Iterator[Action]:
    """Yield warm-up forwards, then one forward and one backward in turn, then the remaining backwards.

    put_off: split each backward, and let this many weight_backwards wait behind the input_backwards; None: do not
    split.
    """
    stages = pipeline.stages_of(rank)
    forwards = list(_in_rounds(pipeline, stages))
    backwards = list(_in_rounds(pipeline, stages[::-1]))

    for forward in forwards[:warm_up]:
        yield Action("forward", *forward)
    for turn, backward in enumerate(backwards):
        if warm_up + turn < len(forwards):
            yield Action("forward", *forwards[warm_up + turn])
        yield Action("backward" if put_off is None else "input_backward", *backward)
        if put_off is not None and turn >= put_off:
            yield Action("weight_backward", *backwards[turn - put_off])
    if put_off is not None:
        for backward in backwards[max(0, len(backwards) - put_off) :]:
            yield Action("weight_backward", *backward)


def _in_rounds(pipeline: Pipeline, stages: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield stage and microbatch: each round's microbatches pass through one stage after the other."""
    size = _round_microbatches(pipeline.ranks, pipeline.microbatches)
    for first in range(0, pipeline.microbatches, size):
        for stage in stages:
            for microbatch in range(first, min(first + size, pipeline.microbatches)):
                yield stage, microbatch


def _zbv(pipeline: Pipeline, rank: int) -> Iterator[Action]:
    """Yield the actions of the V, with two stages per rank.

    Each weight_backward directly follows its input_backward, except at the end. With fewer microbatches than fill the
    V, take the order of a full V and leave out the missing ones.
    """
    filling = max(2 * pipeline.ranks - 1, pipeline.microbatches)
    counts: Counter[_KindOfStage] = Counter()
    for kind, stage in _v_kinds(pipeline, rank, filling):
        microbatch = counts[kind, stage]
        counts[kind, stage] += 1
        if microbatch < pipeline.microbatches:
            yield Action(kind=kind, stage=stage, microbatch=microbatch)


def _v_kinds(pipeline: Pipeline, rank: int, microbatches: int) -> Iterator[_KindOfStage]:
    """Yield the kind and stage of each action of a rank of a V; its stages are `down` (first half) and `up`."""
    down, up = pipeline.stages_of(rank)
    ranks = pipeline.ranks
    # warm-up: fill the way down, then both ways, until backward comes up
    yield from _repeated(2 * (ranks - rank) - 1, ("forward", down))
    yield from _repeated(rank, ("forward", up), ("forward", down))
    yield from _repeated(ranks - rank, ("forward", up), ("input_backward", up), ("weight_backward", up))
    # stable: per turn a whole backward each way and a forward going up; a forward going down while any are left
    for turn in range(microbatches - ranks):
        if turn < microbatches - (2 * ranks - 1 - rank):
            yield "forward", down
        yield from _repeated(1, ("input_backward", down), ("weight_backward", down))
        yield from _repeated(1, ("forward", up), ("input_backward", up), ("weight_backward", up))
    # cool-down: inputs first, which other ranks wait for; weights fill what is left
    yield from _repeated(rank, ("input_backward", down), ("input_backward", up))
    yield from _repeated(ranks - rank, ("input_backward", down), ("weight_backward", down))
    yield from _repeated(rank, ("weight_backward", up))
    yield from _repeated(rank, ("weight_backward", down))


def _repeated(times: int, *turn: _KindOfStage) -> Iterator[_KindOfStage]:
    for _ in range(times):
        yield from turn


# Microbatches that a pipeline rank holds at once, by the order of its actions alone.
#
# A microbatch is held from the start of its forward to the end of its backward. Where a schedule splits backward, that
# is the end of weight_backward: it needs the layers' inputs, which input_backward does not free.


def live_microbatches(order: Sequence[Sequence[Action]]) -> tuple[int, ...]:
    """Return the most microbatches that each rank holds at once, summed over its stages."""
    return tuple(_most_held(actions) for actions in order)


def live_microbatches_of_stages(order: Sequence[Sequence[Action]]) -> dict[int, int]:
    """Return the most microbatches that each stage holds at once, in the order of stages."""
    by_stage: dict[int, list[Action]] = {}
    for actions in order:
        for action in actions:
            by_stage.setdefault(action.stage, []).append(action)
    return {stage: _most_held(by_stage[stage]) for stage in sorted(by_stage)}


def _most_held(actions: Sequence[Action]) -> int:
    live = most = 0
    for action in actions:
        if action.kind == "forward":
            live += 1
            most = max(most, live)
        elif action.kind in ("backward", "weight_backward"):
            live -= 1
    return most
