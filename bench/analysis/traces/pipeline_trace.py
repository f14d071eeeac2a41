"""Draws a pipeline's timed steps as a separate trace file, or as spans alongside a run's traces.

Each stage of a rank is a row. In the trace file, arrows show messages between stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.case import Case
from bench.errors import InfrastructureFailed, Misuse
from bench.results.pipeline import TimedStep, Work, pipelines
from bench.results.trials import read_trials
from bench.store.run_dir import case_file
from collectors.files import replace_file
from collectors.sample_log import NewerSchema
from collectors.traces.perfetto import Flow, TraceSpan, Track, encode

FILE = "stages.perfetto.json"


def require_stages(case: Case) -> None:
    """Refuse a case without a pipeline to draw.

    Raises:
        Misuse: the strategy has no pipeline stages, or no step would be timed.
    """
    if case.model is None or case.spec().pipeline(case) is None:
        raise Misuse(
            f"--timeline draws pipeline stages, but {case.strategy} has none; leave it out, or choose a pipeline"
            " strategy (`observatory list` shows all)"
        )
    if not case.trace_steps:
        raise Misuse("--timeline draws a timed step, but trace-steps is 0; use --trace-steps 1 or more")


def timed_steps(case: Case, folder: Path) -> tuple[TimedStep, ...]:
    """Return the timed steps of the last complete trial.

    Raises:
        Misuse: the folder has no timed step, or a newer version wrote it.
    """
    try:
        trials = read_trials(folder, case.ranks).trials
    except NewerSchema as error:
        raise Misuse(str(error)) from None
    steps = trials[-1].timed_steps if trials else ()
    if not steps:
        raise Misuse(
            f"{folder} has no step that was timed on all ranks; `observatory run {case.strategy}` times new steps"
        )
    return steps


def typical(steps: Sequence[TimedStep]) -> TimedStep:
    """Return the step of median length; if their number is even, the shorter of the middle two."""

    def length_ns(step: TimedStep) -> int:
        return max(work.end_ns for work in step.works) - min(work.start_ns for work in step.works)

    return sorted(steps, key=length_ns)[(len(steps) - 1) // 2]


def write_trace(case: Case, steps: Sequence[TimedStep], folder: Path) -> Path:
    """Write the steps into the run's folder; return the file's path.

    Raises:
        InfrastructureFailed: the folder cannot be written.
    """
    groups = pipelines(case.spec().mesh(case))
    drawn = [(step, work, _span(step, work)) for step in steps for work in step.works]
    flows = [flow for step in steps for ranks in groups for flow in _flows(step, ranks, drawn)]
    path = folder / FILE
    try:
        replace_file(path, encode([span for _, _, span in drawn], flows))
    except OSError as error:
        raise InfrastructureFailed(f"{path} cannot be written: {error.strerror}") from None
    return path


def _span(step: TimedStep, work: Work, row: str = "stage {}") -> TraceSpan:
    """Return the action as a span. row: the name of its row, with a placeholder for the stage."""
    action = work.action
    return TraceSpan(
        track=Track(group=f"rank {work.rank}", name=row.format(action.stage)),
        name=f"{action.kind.replace('_', ' ')} {action.microbatch}",
        category=action.kind,
        start_ns=step.begun_ns + work.start_ns,
        end_ns=step.begun_ns + work.end_ns,
        arguments={"microbatch": action.microbatch, "stage": action.stage, "step": step.step},
    )


def _flows(step: TimedStep, ranks: Sequence[int], drawn: Sequence[tuple[TimedStep, Work, TraceSpan]]) -> Iterator[Flow]:
    """Yield an arrow for each message: activations to the next stage, gradients to the previous one."""
    spans: dict[tuple[str, int, int], TraceSpan] = {}
    for at, work, span in drawn:
        if at is step and work.rank in ranks and work.action.kind != "weight_backward":
            way = "activations" if work.action.kind == "forward" else "gradients"
            spans[way, work.action.stage, work.action.microbatch] = span
    for (way, stage, microbatch), source in spans.items():
        target = spans.get((way, stage + (1 if way == "activations" else -1), microbatch))
        if target is not None:
            yield Flow(name=way, source=source, target=target)


# Stage actions to draw alongside a run's traces

ROW = "stage {}, in extra steps"


def stage_spans(folder: Path, *, on_notice: Callable[[str], None]) -> list[TraceSpan]:
    """Return the actions of all timed steps of the run in this folder; none if its strategy has no stages.

    They were timed in separate steps, without the profiler, on a clock that only ranks of one node share.

    on_notice: called with the reason if a pipeline has no timed actions.
    """
    case = case_file(folder).case
    if case.model is None or case.spec().pipeline(case) is None:
        return []
    try:
        steps = timed_steps(case, folder)
    except Misuse as error:  # For example the run ended early; its traces are drawn anyway.
        on_notice(f"stage actions are absent: {error}")
        return []
    return [_span(step, work, ROW) for step in steps for work in step.works]
