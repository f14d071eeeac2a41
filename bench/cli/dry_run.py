"""Output of `observatory run --dry-run`: each resolved case, and what each of its ranks would do and need."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.case import Case
from bench.cli.planning import Plan, Words
from bench.machine.machine import redact
from bench.machine.preflight import least_bytes
from bench.reports.format import open_console, print_csv, print_figures, print_json, print_words, readable
from bench.reports.strategies import written
from workloads.cost_models.terms import NotCovered

RANKS_SHOWN = 16
_COLUMNS = ("strategy", "ranks", "rank", "mesh", "sequences", "parameters", "gradients", "optimizer", "at_least")


def print_plan(planned: Plan, words: Words, console: Console | None = None) -> None:
    """Print all cases in the requested format."""
    if words.format_name == "json":
        print_json([_document(case) for case, _ in planned.cases])
        return
    if words.format_name == "csv":
        rows = [row for case, _ in planned.cases for row in _ranks(case)]
        print_csv([{"strategy": row["case"], **{name: row[name] for name in _COLUMNS[1:]}} for row in rows], _COLUMNS)
        return
    console = console or open_console()
    for line in plan_lines(planned, words):
        print_words(console, line)
    for case, _ in planned.cases:
        console.print()
        print_words(console, f"{case.strategy} on {case.ranks}: what each rank does and holds, by its laws")
        _print_ranks(case, console)
        for line in _step_lines(case):
            print_words(console, line)
    print_words(console, "\nnothing was started, and nothing written")


def plan_lines(planned: Plan, words: Words) -> list[str]:
    """Return what would run, in a few lines per case."""
    lines = [line for case, _ in planned.cases for line in _case_lines(case)]
    lines += [
        f"fault: {fault.kind} of rank {fault.rank} in step {fault.step}, on {case.ranks}"
        for case, fault in planned.cases
        if fault
    ]
    store = "the user's own history" if words.store_url is None else redact(words.store_url)
    return [*lines, f"kept in {Path(words.runs_folder)} and {store}; a trial may take {words.limit_s:g} s"]


def _case_lines(case: Case) -> list[str]:
    name = f"{case.strategy} on {case.ranks}"
    threads = f"{case.threads} thread(s) a rank"
    lines = [f"{name}: {case.device}, {case.backend}, {case.precision}, {threads}, seed {case.seed}"]
    if case.model is not None:
        shape = case.model
        lines.append(
            f"{name}: {shape.parameters():,} parameters in {shape.layers} layers of width {shape.width}; a step has"
            f" {shape.batch} sequences of {shape.sequence} tokens"
        )
    what = "steps" if case.model is not None else "calls of each measurement"
    traced = f", then {case.trace_steps} under the profiler" if case.trace_steps else ""
    lines.append(f"{name}: {case.trials} trial(s) of {case.steps} {what} after {case.warm_up} of warm-up{traced}")
    lines.append(f"{name}: options {' '.join(f'{key}={written(value)}' for key, value in case.options.items())}")
    return lines


def _ranks(case: Case) -> list[dict[str, object]]:
    """Return each rank's place in the mesh, the sequences of a step that it trains on, and the bytes that it holds."""
    spec = case.spec()
    axes = spec.mesh(case)
    rows: list[dict[str, object]] = []
    for rank in range(case.ranks):
        place = spec.place_of(case, rank) if case.model is not None else None
        states = spec.states(case, rank)
        is_training = case.model is not None
        rows.append(
            {
                "case": case.strategy,
                "ranks": case.ranks,
                "rank": rank,
                "mesh": _position(axes, rank),
                "sequences": None if place is None else case.shape.batch // place.ranks,
                "parameters": states.parameters_bytes if is_training else None,
                "gradients": states.gradients_bytes if is_training else None,
                "optimizer": states.optimizer_bytes if is_training else None,
                "at_least": least_bytes(case, rank),
            }
        )
    return rows


def _position(axes: dict[str, int], rank: int) -> str:
    """Return the rank's coordinates in the mesh; the last axis runs fastest.

    On axes data 2 and tensor 4, rank 5 is "data 1, tensor 1".
    """
    found = []
    for name, size in reversed(axes.items()):
        found.append(f"{name} {rank % size}")
        rank //= size
    return ", ".join(reversed(found))


def _print_ranks(case: Case, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    columns = ("rank", "mesh", "sequences", "parameters", "gradients", "optimizer", "needs at least")
    for column in columns:
        table.add_column(column, justify="left" if column == "mesh" else "right")
    rows = _ranks(case)
    for row in rows[:RANKS_SHOWN]:
        sizes = [_bytes(row[name]) for name in ("parameters", "gradients", "optimizer", "at_least")]
        sequences = "-" if row["sequences"] is None else str(row["sequences"])
        table.add_row(str(row["rank"]), str(row["mesh"]), sequences, *sizes)
    print_figures(console, table, keys=2)
    if len(rows) > RANKS_SHOWN:
        print_words(console, f"{len(rows) - RANKS_SHOWN} more ranks; --format json has all")


def _bytes(size: object) -> str:
    return readable(size, "bytes") if isinstance(size, int) else "-"


def _step_lines(case: Case) -> Sequence[str]:
    spec = case.spec()
    if case.model is None:
        return [f"{spec.measurements(case)} measurements a trial"]
    peak = spec.peak(case)
    told = (
        f"is absent: {peak.reason}" if isinstance(peak, NotCovered) else f"{_bytes(peak.total_bytes)} of live tensors"
    )
    lines = [f"peak of a step on the rank that holds most: {told}"]
    lines += [
        f"a step's {one.collective} over {one.axis}: {_bytes(one.payload_bytes)}, {one.calls} call(s)"
        for one in spec.transfers(case)
    ]
    return lines


def _document(case: Case) -> dict[str, object]:
    spec = case.spec()
    peak = spec.peak(case) if case.model is not None else None
    return {
        "case": msgspec.to_builtins(case),
        "key": case.key(),
        "ranks": [
            {name: value for name, value in row.items() if name not in ("case", "ranks")} for row in _ranks(case)
        ],
        "peak_bytes": None if peak is None or isinstance(peak, NotCovered) else peak.total_bytes,
        "transfers": [msgspec.to_builtins(transfer) for transfer in spec.transfers(case)]
        if case.model is not None
        else [],
    }
