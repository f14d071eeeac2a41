"""Prints `observatory run --dry-run`: each resolved case, and what each of its ranks would do and need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from bench.analysis.prediction.fit import fit
from bench.analysis.prediction.report import FIGURES, figures, fit_document, fit_page, machine_line
from bench.case import Case, written
from bench.cli.run.planning import Plan, RunOptions
from bench.errors import plural
from bench.machine.disk import checkpoint_bytes
from bench.machine.machine import redact
from bench.machine.machines.machine_file import PlannedMachine
from bench.machine.preflight import least_bytes
from bench.report.format import readable
from bench.report.run.run_rows import shape_words
from bench.report.table import Block, Table, write
from bench.suite.plan_report import cluster_lines
from workloads.cost_models.absent import Absent
from workloads.cost_models.peak_memory import Prediction

RANKS_SHOWN = 16
_SIZES = ("parameters", "gradients", "optimizer", "at_least")


def print_plan(plan: Plan, options: RunOptions, console: Console | None = None) -> None:
    """Print all cases in the requested format."""
    cases = [case for case, _ in plan.cases]
    if (machine := plan.machine) is not None:
        write(
            options.format_name,
            _page_on(cases, machine),
            lambda: [{**_document(case), "on": fit_document(fit(case, machine))} for case in cases],
            ({"strategy": case.strategy} | figures(fit(case, machine)) for case in cases),
            ("strategy", *FIGURES),
            console,
        )
        return
    write(
        options.format_name,
        _page(plan, options),
        lambda: [_document(case) for case in cases],
        ({"strategy": case.strategy, "ranks": case.ranks, **row} for case in cases for row in _ranks(case)),
        ("strategy", "ranks", "rank", "mesh", "sequences", *_SIZES),
        console,
    )


def _page(plan: Plan, options: RunOptions) -> Iterator[Block]:
    yield from plan_lines(plan, options)
    for case, _ in plan.cases:
        rows = [
            (
                str(row["rank"]),
                row["mesh"],
                "-" if row["sequences"] is None else str(row["sequences"]),
                *("-" if row[name] is None else readable(row[name], "bytes") for name in _SIZES),
            )
            for row in _ranks(case)
        ]
        yield ""
        yield f"{case.title}: what each rank does and holds, predicted"
        columns = ("rank", "mesh", "sequences", "parameters", "gradients", "optimizer", "needs at least")
        yield Table(columns, rows[:RANKS_SHOWN], words=(1,), keys=2)
        if len(rows) > RANKS_SHOWN:
            yield f"{len(rows) - RANKS_SHOWN} more ranks; --format json has all"
        yield from _step_lines(case)
    for line in cluster_lines(plan.cluster):
        yield ""
        yield line
    yield ""
    yield "nothing was started, and nothing written"


def _page_on(cases: Sequence[Case], machine: PlannedMachine) -> Iterator[Block]:
    """Yield the predicted memory and step of the cases on a remote machine."""
    yield machine_line(machine)
    for case in cases:
        yield ""
        yield from _case_lines(case)
        yield ""
        yield from fit_page(fit(case, machine))
    yield ""
    yield "nothing was started, and nothing written"


def plan_lines(plan: Plan, options: RunOptions) -> list[str]:
    """Describe what would run, in a few lines per case."""
    lines = [line for case, _ in plan.cases for line in _case_lines(case)]
    for case, fault in plan.cases:
        if fault is not None:
            lines.append(f"fault: {fault.kind} of rank {fault.rank} in step {fault.step}, on {case.ranks}")
    store = "the user's own history" if options.store_url is None else redact(options.store_url)
    return [*lines, f"results go to {options.runs_folder} and {store}; a trial may take {options.limit_s:g} s"]


def _case_lines(case: Case) -> Iterator[str]:
    name = case.title
    yield f"{name}: {case.setting}"
    if (shape := case.model) is not None:
        yield f"{name}: shape {shape_words(shape)}"
        yield f"{name}: a step has {shape.batch} sequences of {shape.sequence} tokens"
    what = "steps" if case.model is not None else "calls of each measurement"
    traced = f", then {case.trace_steps} under the profiler" if case.trace_steps else ""
    yield f"{name}: {plural(case.trials, 'trial')} of {case.steps} {what} after {case.warm_up} of warm-up{traced}"
    yield f"{name}: options {' '.join(f'{key}={written(value)}' for key, value in case.options.items())}"


def _ranks(case: Case) -> Iterator[dict[str, Any]]:
    """Yield each rank's place in the mesh, its sequences in a step, and the bytes that it holds."""
    spec = case.spec()
    axes = spec.mesh(case)
    for rank in range(case.ranks):
        row: dict[str, Any] = {"rank": rank, "mesh": _position(axes, rank), "sequences": None}
        row |= dict.fromkeys(_SIZES)
        if case.model is not None:
            place, states = spec.data_share(case, rank), spec.states(case, rank)
            row |= {
                "sequences": None if place is None else case.shape.batch // place.ranks,
                "parameters": states.parameters_bytes,
                "gradients": states.gradients_bytes,
                "optimizer": states.optimizer_bytes,
            }
        yield row | {"at_least": least_bytes(case, rank)}


def _position(axes: dict[str, int], rank: int) -> str:
    """Return the rank's coordinates in the mesh; the last axis varies fastest.

    Example: on axes data 2 and tensor 4, rank 5 is "data 1, tensor 1".
    """
    place = []
    for name, size in reversed(axes.items()):
        place.append(f"{name} {rank % size}")
        rank //= size
    return ", ".join(reversed(place))


def _step_lines(case: Case) -> Iterator[str]:
    """Yield the predicted peak memory and the collectives of a step."""
    spec = case.spec()
    if case.model is None:
        yield f"{spec.measurements(case)} measurements a trial"
        return
    peak = spec.peak(case)
    predicted = (
        f"not predicted: {peak.reason}"
        if isinstance(peak, Absent)
        else f"{readable(peak.total_bytes, 'bytes')} of live tensors"
    )
    yield f"peak of a step on the rank that holds most: {predicted}"
    if case.save_every is not None:
        size_bytes, steps = checkpoint_bytes(case), case.save_every
        yield (
            f"a checkpoint: {readable(size_bytes, 'bytes')} over all ranks, {case.save_mode}, after every"
            f" {'measured step' if steps == 1 else f'{steps} measured steps'}; each replaces the previous one"
        )
    for transfer in spec.transfers(case):
        yield (
            f"a step's {transfer.collective} over {transfer.axis}: {readable(transfer.payload_bytes, 'bytes')},"
            f" {plural(transfer.calls, 'call')}"
        )


def _document(case: Case) -> dict[str, object]:
    spec = case.spec()
    peak = spec.peak(case) if case.model is not None else None
    return {
        "case": case,
        "key": case.key(),
        "ranks": list(_ranks(case)),
        "peak_bytes": peak.total_bytes if isinstance(peak, Prediction) else None,
        "checkpoint_bytes": None if case.save_every is None else checkpoint_bytes(case),
        "transfers": [] if case.model is None else spec.transfers(case),
    }
