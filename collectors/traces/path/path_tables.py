"""The critical path as tables: by kind of work, by rank, by name, and along the path of one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from collectors.traces.path.moments import PATH_KINDS
from collectors.traces.path.step_path import StepPath
from collectors.traces.spans import stream_name
from collectors.traces.table import Column, Table

ALL_STEPS = "all steps"

TIME = Column(name="time", unit="ns")
SHARE = Column(name="share", unit="ratio")


def path_tables(steps: Sequence[StepPath]) -> tuple[Table, ...]:
    """All tables."""
    return (_steps(steps), _free(steps), _ranks(steps), _names(steps), _path(steps))


def _steps(steps: Sequence[StepPath]) -> Table:
    return Table(
        name="critical_path",
        title="What the path that set each step's time consists of",
        columns=(Column(name="step"), TIME, *(Column(name=kind, unit="ns") for kind in PATH_KINDS)),
        rows=tuple((step.step, step.step_ns, *(step.spent_ns(kind) for kind in PATH_KINDS)) for step in steps),
    )


def _free(steps: Sequence[StepPath]) -> Table:
    kinds = steps[0].free_ns if steps else ()
    whole_ns = sum(step.step_ns for step in steps)
    rows = [(ALL_STEPS, kind, whole_ns, sum(step.free_ns[kind] for step in steps)) for kind in kinds]
    if len(steps) > 1:
        rows += [(step.step, kind, step.step_ns, free_ns) for step in steps for kind, free_ns in step.free_ns.items()]
    return Table(
        name="if_free",
        title="What steps would cost at least if a kind of work took no time",
        columns=(
            Column(name="step"),
            Column(name="free"),
            Column(name="time_then", unit="ns"),
            Column(name="saved", unit="ns"),
            Column(name="saved_share", unit="ratio"),
        ),
        rows=tuple(
            (step, kind, free_ns, was_ns - free_ns, _share(was_ns - free_ns, was_ns))
            for step, kind, was_ns, free_ns in rows
        ),
        notes=(
            "a bound: work of that kind is free in all steps and on all ranks; what waits for what, all other work and"
            " all delays are as they were. One step may then last longer, if what comes before it ends earlier",
        ),
    )


def _ranks(steps: Sequence[StepPath]) -> Table:
    spent_ns: Counter[int] = Counter()
    for part in (part for step in steps for part in step.parts):
        spent_ns[part.rank] += part.lasting_ns
    return Table(
        name="ranks",
        title="How much of the path lies on each rank, over all steps",
        columns=(Column(name="rank"), TIME, SHARE),
        rows=tuple((rank, time_ns, _share(time_ns, spent_ns.total())) for rank, time_ns in sorted(spent_ns.items())),
    )


def _names(steps: Sequence[StepPath]) -> Table:
    spent_ns: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for part in (part for step in steps for part in step.parts):
        spent_ns[part.kind, part.name] += part.lasting_ns
        counts[part.kind, part.name] += 1
    whole_ns = spent_ns.total()
    return Table(
        name="names",
        title="What the path consists of by name, over all steps",
        columns=(Column(name="kind"), Column(name="name"), Column(name="parts"), TIME, SHARE),
        rows=tuple(
            (kind, name, counts[kind, name], time_ns, _share(time_ns, whole_ns))
            for (kind, name), time_ns in spent_ns.most_common()
        ),
    )


def _path(steps: Sequence[StepPath]) -> Table:
    """The parts of the step of median length, of an even number the shorter of the middle two; the longest first."""
    rows, notes = [], []
    for step in sorted(steps, key=lambda step: step.step_ns)[(len(steps) - 1) // 2 :][:1]:
        rows = [
            (
                part.start_ns - step.start_ns,
                part.rank,
                part.kind,
                part.name,
                None if part.place is None else stream_name(part.place),
                part.lasting_ns,
            )
            for part in sorted(step.parts, key=lambda part: -part.lasting_ns)
        ]
        notes = [f"of {step.step}, the step of median length; a delay has no stream or thread"]
    return Table(
        name="path",
        title="The path of one step part by part, the longest first",
        columns=(
            Column(name="start", unit="ns"),
            Column(name="rank"),
            Column(name="kind"),
            Column(name="name"),
            Column(name="stream_or_thread"),
            TIME,
        ),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _share(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns else None
