"""What another cut of a pipeline's blocks into stages would gain, by the measured times of its stages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast

from bench.analysis.diagnosis.observed import Observed
from bench.analysis.estimate import by_labels
from collectors.metrics import results
from workloads.cost_models.schedules import ActionKind, Pipeline, actions, balance
from workloads.pipeline_parallel.simulator import Simulated, StageTimes, simulate
from workloads.pipeline_parallel.spec import BALANCE, counts

_GAVE = re.compile(r"balance=\w+ gave the stages, in the order of the model, ([\d, and]+) blocks")
WORTH = 1.05
"""How many times faster another cut must be to be worth a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCuts:
    """The cut of a run, and the best one by its measured blocks. now, best: simulated steps of both.

    blocks, best_blocks: of each stage, in the order of the model.
    """

    now: Simulated
    best: Simulated
    blocks: tuple[int, ...]
    best_blocks: tuple[int, ...]

    @property
    def is_worth_it(self) -> bool:
        """Whether the best cut is clearly faster."""
        return self.now.makespan_s >= WORTH * self.best.makespan_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """Time of each block, and what the first and the last stage compute besides: embedding and head."""

    blocks: tuple[float, ...]
    before: float
    after: float


def stage_times(observed: Observed, pipeline: Pipeline) -> StageTimes | None:
    """Return the measured time of each action of a stage for one microbatch; None where one is missing."""
    times = {
        (int(stage), cast(ActionKind, kind)): estimate.median
        for (stage, kind), estimate in by_labels(observed.estimates, results.RUN_STAGE_SECONDS).items()
    }
    required = {(action.stage, action.kind) for rank in actions(pipeline) for action in rank}
    return times if required <= times.keys() else None


def stage_cuts(observed: Observed) -> StageCuts | None:
    """Return the run's cut and the best one; None where stages were not timed, or cannot be cut otherwise.

    The blocks of a stage are taken as equally long. What the first and the last stage have beyond the median block of
    the others is their embedding or head, which no cut moves.
    """
    case = observed.case
    pipeline = case.spec().pipeline(case)
    if pipeline is None or pipeline.stages_per_rank > 1 or BALANCE.name not in case.options:
        return None
    blocks, times = _blocks(observed, pipeline), stage_times(observed, pipeline)
    if blocks is None or times is None or pipeline.stages < 2:
        return None
    kinds = tuple(dict.fromkeys(kind for _, kind in times))
    of_kind = {kind: _costs([times[stage, kind] for stage in range(pipeline.stages)], blocks) for kind in kinds}
    whole = _costs([sum(times[stage, kind] for kind in kinds) for stage in range(pipeline.stages)], blocks)
    best = balance(whole.blocks, pipeline.stages, before=whole.before, after=whole.after)
    tried: dict[tuple[int, ActionKind], float] = {}
    for kind, costs in of_kind.items():
        end = 0
        for stage, count in enumerate(best):
            begin, end = end, end + count
            outer = (costs.before if stage == 0 else 0.0) + (costs.after if stage == pipeline.stages - 1 else 0.0)
            tried[stage, kind] = sum(costs.blocks[begin:end]) + outer
    now, tried_step = (simulate(actions(pipeline), stage_times_s) for stage_times_s in (times, tried))
    if tried_step.makespan_s > now.makespan_s:  # The schedule may suit stages that are less equal.
        tried_step, best = now, blocks
    return StageCuts(now=now, best=tried_step, blocks=blocks, best_blocks=best)


def _blocks(observed: Observed, pipeline: Pipeline) -> tuple[int, ...] | None:
    """Return the blocks of each stage: as the run noted them, else as its spec cuts them."""
    for note in observed.notes:
        if (match := _GAVE.search(note)) is not None:
            blocks = tuple(int(count) for count in re.findall(r"\d+", match[1]))
            return blocks if len(blocks) == pipeline.stages else None
    case = observed.case
    return None if case.options[BALANCE.name] == "measured" else counts(case, pipeline.stages)


def _costs(stages: Sequence[float], blocks: Sequence[int]) -> _Costs:
    """Return the costs of blocks that make stages so long.

    Example: stages of 3, 2 and 7 with 2, 2 and 1 blocks: blocks of 1, an embedding of 1 and a head of 6.
    """
    mean_costs = [stage / count for stage, count in zip(stages, blocks, strict=True)]
    inner = median(mean_costs[1:-1]) if len(mean_costs) > 2 else min(mean_costs)
    block_costs = [min(mean_costs[0], inner), *mean_costs[1:-1], min(mean_costs[-1], inner)]
    return _Costs(
        blocks=tuple(cost for cost, count in zip(block_costs, blocks, strict=True) for _ in range(count)),
        before=stages[0] - block_costs[0] * blocks[0],
        after=stages[-1] - block_costs[-1] * blocks[-1],
    )
