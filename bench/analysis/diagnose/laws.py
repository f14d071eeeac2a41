"""What cost models predict for a run: exposed communication, bus bandwidths, recomputation, other cuts of stages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast

from bench.analysis.diagnose.observed import Observed
from bench.case import Case
from bench.results.estimate import by_labels, of_metric
from bench.results.step_parts import MeasuredStep, step_account
from collectors.metrics import results
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import bus_factor
from workloads.cost_models.interconnect import Interconnect, transfer_time_s
from workloads.cost_models.schedules import ActionKind, Pipeline, actions, balance
from workloads.cost_models.step_time import FORWARD_SHARE, ComputeTime
from workloads.options import rerun_ratio
from workloads.pipeline_parallel.expected_step import missing_link, step_of
from workloads.pipeline_parallel.simulator import Simulated, StageTimes, simulate
from workloads.pipeline_parallel.spec import BALANCE, counts

NEAR_CEILING = 0.9
"""From this share of a device's memory in use, an allocator begins to fragment and to retry."""


def recomputed_share(case: Case) -> float:
    """Return the share of computing that repeats work to save memory: a quarter if all blocks are checkpointed.

    Forward is a third of the FLOPs of forward and backward; repeated, it is one of four parts. `selective` repeats so
    little that it counts as 0.
    """
    repeated = FORWARD_SHARE * rerun_ratio(case)
    return repeated / (1 + repeated)


def exposed_ratio(observed: Observed, case: Case | None = None) -> float | None:
    """Return the exposed communication that the model predicts, as a share of the step; None without links or trace.

    The transfers of a step on the probed links hide behind the measured forward and backward, not behind those at the
    measured ceiling: a slow kernel also hides communication.
    case: replaces the run's own, for other options.
    """
    case = case or observed.case
    account = step_account(MeasuredStep(case=observed.case, estimates=observed.estimates))
    if isinstance(observed.interconnect, str) or isinstance(account, str) or not account.traces:
        return None
    divided = account.divide(account.absent)
    optimizer = [
        estimate.median
        for estimate in of_metric(observed.estimates, results.RUN_PHASE_SECONDS)
        if estimate.labels["phase"] == "optimizer"
    ]
    compute_s = median(divided["compute"])
    compute_s = max(compute_s - sum(optimizer), compute_s / 2)
    repeated = recomputed_share(observed.case)
    forward_s = compute_s * (1 - repeated) * FORWARD_SHARE
    compute = ComputeTime(forward_s=forward_s, backward_s=compute_s - forward_s)
    predicted = step_of(case, case.spec(), compute=compute, interconnect=observed.interconnect)
    if isinstance(predicted, Absent):
        return None
    return min(1.0, predicted.exposed_s / median(account.steps_s))


def missing_links(observed: Observed) -> str | None:
    """Return why the links that the run's transfers need are unknown; None if they are known."""
    if isinstance(observed.interconnect, str):
        return observed.interconnect
    spec = observed.case.spec()
    missing = missing_link(spec.transfers(observed.case), spec.mesh(observed.case), observed.interconnect)
    return None if missing is None else missing.reason


def law_bus_bandwidths(case: Case, interconnect: Interconnect) -> dict[str, float]:
    """Return the predicted bus bandwidth, in bytes per second, of each collective of the strategy on these links.

    It covers all calls: bytes times the collective's factor, divided by their time. Collectives are named as the
    backend runs them: gloo's reduce_scatter is an all_reduce.
    """
    axes = case.spec().mesh(case)
    moved: dict[str, float] = defaultdict(float)
    taken_s: dict[str, float] = defaultdict(float)
    for transfer in case.spec().transfers(case):
        ranks = transfer.ranks or axes[transfer.axis]
        is_reduced_whole = case.backend == "gloo" and transfer.collective == "reduce_scatter"
        name = "all_reduce" if is_reduced_whole else transfer.collective
        moved[name] += transfer.payload_bytes * float(bus_factor(name, ranks))
        taken_s[name] += transfer_time_s(transfer, axes, interconnect, case.backend)
    return {name: moved[name] / taken_s[name] for name in moved if moved[name] > 0 and taken_s[name] > 0}


def peak_bytes(observed: Observed) -> float | None:
    """Return the largest peak memory of a rank: of the allocator on a GPU, of the process on a CPU; None if unknown."""
    account = "allocator" if observed.case.device == "cuda" else "resident"
    peaks = of_metric(observed.estimates, results.RUN_PEAK_MEMORY_BYTES)
    return next((peak_estimate.median for peak_estimate in peaks if peak_estimate.labels["account"] == account), None)


def memory_in_use(observed: Observed) -> float | None:
    """Return the share of a device's memory in use at the peak; None if unknown.

    A GPU has one rank. A host has all ranks of its node, and shared pages count for each of them.
    """
    peak = peak_bytes(observed)
    if peak is None or not observed.device_bytes:
        return None
    holders = 1 if observed.case.device == "cuda" else observed.case.ranks / observed.case.nodes
    return holders * peak / observed.device_bytes


_GAVE = re.compile(r"balance=\w+ gave the stages, in the order of the model, ([\d, and]+) blocks")
WORTH = 1.05
"""Another cut is worth a trial if it is at least this many times as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCuts:
    """The cut of a run, and the best cut by its measured blocks. now, best: simulated steps of both.

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
    """Time of each block, and of embedding and head, which the first and the last stage also compute."""

    blocks: tuple[float, ...]
    before: float
    after: float


def stage_times(observed: Observed, pipeline: Pipeline) -> StageTimes | None:
    """Return the measured time of each stage's action for one microbatch; None if one is missing."""
    times = {
        (int(stage), cast(ActionKind, kind)): estimate.median
        for (stage, kind), estimate in by_labels(observed.estimates, results.RUN_STAGE_SECONDS).items()
    }
    required = {(action.stage, action.kind) for rank in actions(pipeline) for action in rank}
    return times if required <= times.keys() else None


def stage_cuts(observed: Observed) -> StageCuts | None:
    """Return the run's cut and the best one; None if stages were not timed or there is no other cut.

    The blocks of a stage count as equally long. The time of the first and the last stage beyond the median block of the
    others is their embedding or head, which no cut moves.
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
    if tried_step.makespan_s > now.makespan_s:  # The schedule may be faster with less equal stages.
        tried_step, best = now, blocks
    return StageCuts(now=now, best=tried_step, blocks=blocks, best_blocks=best)


def _blocks(observed: Observed, pipeline: Pipeline) -> tuple[int, ...] | None:
    """Return the blocks of each stage: from the run's notes, else as its spec cuts them."""
    for note in observed.notes:
        if (match := _GAVE.search(note)) is not None:
            blocks = tuple(int(count) for count in re.findall(r"\d+", match[1]))
            return blocks if len(blocks) == pipeline.stages else None
    case = observed.case
    return None if case.options[BALANCE.name] == "measured" else counts(case, pipeline.stages)


def _costs(stages: Sequence[float], blocks: Sequence[int]) -> _Costs:
    """Return the costs of blocks that explain these times of stages.

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
