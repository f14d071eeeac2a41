"""Observed runs whose step is made of known parts, for tests of what limits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from bench.analysis.diagnose.observed import Observed
from bench.case import Case
from bench.results.estimate import Estimate, estimate, estimate_share
from bench.results.pipeline import bubble_parts
from collectors.metrics import results
from tests.bench.made.examples import make_case
from tests.bench.made.scaled import SPREAD, Made, made_estimates
from workloads.cost_models.absent import Absent
from workloads.cost_models.communication import Link
from workloads.cost_models.interconnect import one_level
from workloads.cost_models.schedules import ActionKind, actions
from workloads.cost_models.shape import PRESETS
from workloads.cost_models.step_time import ComputeTime, StepTime, step_time
from workloads.pipeline_parallel.simulator import simulate
from workloads.spec import OptionValue

FAST = Link(bandwidth_bytes_per_second=10e9, latency_s=1e-6)


def case_of(
    strategy: str = "ddp",
    ranks: int = 4,
    *,
    batch: int = 16,
    options: Mapping[str, OptionValue] | None = None,
    **changes: Any,
) -> Case:
    """A case of the shape `tiny`, with traced steps. options: in place of the defaults."""
    case = make_case(strategy, ranks, trace_steps=3)
    model = replace(PRESETS["tiny"], batch=batch)
    return replace(case, **{"model": model, "options": {**case.options, **(options or {})}, **changes})


def observed_of(case: Case, made: Made, *more: Estimate, trials: int = 3, **changes: Any) -> Observed:
    """A run of such steps that ended well. more: further estimates."""
    is_traced = changes.pop("is_traced", True)
    if "link" in changes:  # One that joins all ranks.
        changes["interconnect"] = one_level(changes.pop("link"), case.ranks)
    run = Observed(
        run="20261123-184106-run",
        case=case,
        outcome="done",
        trials_done=trials,
        estimates=(*made_estimates(case, made, trials=trials, is_traced=is_traced), *more),
        cores=64,
    )
    return replace(run, **changes)


def held_up(ratios: Mapping[int, float], *, straggler: int | None = None, cause: str = "compute") -> Iterable[Estimate]:
    """What each rank holds the others up by, and the one that stands out."""
    for rank, ratio in ratios.items():
        yield estimate_share(results.RUN_HELD_UP_RATIO, [ratio * factor for factor in SPREAD], rank=str(rank))
    if straggler is not None:
        yield estimate_share(
            results.RUN_STRAGGLER_RATIO,
            [ratios[straggler] * factor for factor in SPREAD],
            rank=str(straggler),
            cause=cause,
        )


def predicted(case: Case, compute_s: float, link: Link) -> StepTime:
    """The step by the law, of a rank that computes so long, a third of it in forward."""
    compute = ComputeTime(forward_s=compute_s / 3, backward_s=2 * compute_s / 3)
    return step_time(
        compute,
        case.spec().transfers(case),
        axes=case.spec().mesh(case),
        interconnect=one_level(link, case.ranks),
        backend=case.backend,
    )


def pipelined(case: Case, stages_s: Iterable[float]) -> Observed:
    """A pipeline whose stages compute so long for a microbatch, a third of it forward, as the simulator runs it."""
    pipeline = case.spec().pipeline(case)
    assert pipeline is not None
    times: dict[tuple[int, ActionKind], float] = {}
    for stage, stage_s in enumerate(stages_s):
        times |= {(stage, "forward"): stage_s / 3, (stage, "backward"): 2 * stage_s / 3}
    step = simulate(actions(pipeline), times)
    found = [
        estimate_share(results.RUN_BUBBLE_RATIO, [step.bubble_ratio] * len(SPREAD), account="measured"),
        *(
            estimate(results.RUN_STAGE_SECONDS, [time_s] * len(SPREAD), stage=str(stage), action=kind)
            for (stage, kind), time_s in times.items()
        ),
    ]
    found += [one for one in bubble_parts(pipeline, found, Absent(reason="no link")) if isinstance(one, Estimate)]
    idle_s = step.makespan_s * step.bubble_ratio
    made = Made(step_s=step.makespan_s, compute_s=step.makespan_s - idle_s, idle_s=idle_s)
    waits = estimate_share(results.RUN_WAITING_RATIO, [0.0] * len(SPREAD))
    return observed_of(case, made, *found, waits)
