"""What the stages of a run's pipeline did, as boxes to draw beside its traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.errors import Misuse
from bench.run import case_file
from bench.stage_trace import timed_steps
from collectors.traces.perfetto import TraceSpan, Track

ROW = "stage {}, in steps of their own"


def stage_spans(folder: Path, *, on_notice: Callable[[str], None]) -> list[TraceSpan]:
    """The actions of all timed steps of the run in this folder; none of a run whose strategy has no stages.

    They are timed in other steps than those that the profiler sees, on a clock that only ranks of one node share.

    on_notice: is told why a pipeline's are absent.
    """
    case = case_file(folder).case
    if case.model is None or case.card().pipeline(case) is None:
        return []
    try:
        steps = timed_steps(case, folder)
    except Misuse as error:  # Such as a run that ended early, whose traces are drawn all the same.
        on_notice(f"stage actions are absent: {error}")
        return []
    return [
        TraceSpan(
            track=Track(group=f"rank {work.rank}", name=ROW.format(work.action.stage)),
            name=f"{work.action.kind.replace('_', ' ')} {work.action.microbatch}",
            category=work.action.kind,
            start_ns=step.begun_ns + work.start_ns,
            end_ns=step.begun_ns + work.end_ns,
            arguments={"microbatch": work.action.microbatch, "stage": work.action.stage, "step": step.step},
        )
        for step in steps
        for work in step.works
    ]
