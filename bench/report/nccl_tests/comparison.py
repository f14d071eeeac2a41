"""Prints a run of nccl-tests in its own units, alongside a run of ours at the sizes that both measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console

from bench.report.format import digits, in_units, wide_interval_notes
from bench.report.nccl_tests.reader import COLLECTIVES, Imported, Row
from bench.report.table import Table, whole, write
from bench.results.estimate import Estimate
from bench.results.probes import LIBRARY
from bench.store.summary import Summary
from collectors.metrics import probes as probes_metrics
from collectors.metrics.metric import Metric
from workloads.cost_models.communication import IN_PLACE

COLUMNS = (
    *("collective", "size_bytes", "dtype", "reduction"),
    *("out_of_place_s", "out_of_place_algorithm_bytes_per_second", "out_of_place_bus_bytes_per_second"),
    *("out_of_place_wrong", "in_place_s", "in_place_algorithm_bytes_per_second", "in_place_bus_bytes_per_second"),
    *("in_place_wrong", "own_run", "own_s", "own_low_s", "own_high_s", "own_algorithm_bytes_per_second"),
    *("own_bus_bytes_per_second", "own_time_ratio"),
)

_OWN = (
    probes_metrics.RUN_COLLECTIVE_SECONDS,
    probes_metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH,
    probes_metrics.RUN_COLLECTIVE_BUS_BANDWIDTH,
)

REDUCTION = "sum"
"""The reduction of our collectives that reduce."""


def print_comparison(
    imported: Imported, summary: Summary | None, format_name: str = "table", console: Console | None = None
) -> None:
    """Print each size that nccl-tests measured with our run's time for it; JSON and CSV are in base units.

    The ratio is our time divided by that of nccl-tests, in the placement that torch uses.
    """
    rows = [_fields(imported, row, summary) for row in imported.rows]
    write(
        format_name,
        [_table(imported, summary, rows), "", *map(whole, _below(imported, summary))],
        lambda: {
            **msgspec.to_builtins(imported),
            "rows": rows,
            "differences": list(_differences(imported, summary)),
        },
        rows,
        COLUMNS,
        console,
    )


def _fields(imported: Imported, row: Row, summary: Summary | None) -> dict[str, Any]:
    """Return a size's figures by column: nccl-tests' in both placements, and ours if our run measured the size."""
    fields: dict[str, Any] = {
        **dict.fromkeys(COLUMNS),
        "collective": imported.collective,
        "size_bytes": row.size_bytes,
        "dtype": row.dtype,
        "reduction": row.reduction,
    }
    for name, placement in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
        if placement is not None:
            fields[f"{name}_s"] = placement.elapsed_s
            fields[f"{name}_algorithm_bytes_per_second"] = placement.algorithm_bytes_per_second
            fields[f"{name}_bus_bytes_per_second"] = placement.bus_bytes_per_second
            fields[f"{name}_wrong"] = placement.wrong_count
    elapsed, algorithm, bus = (_find(summary, metric, imported, row) for metric in _OWN)
    if summary is None or elapsed is None:
        return fields
    theirs = row.in_place if imported.collective in IN_PLACE else row.out_of_place
    return {
        **fields,
        "own_run": summary.run,
        "own_s": elapsed.median,
        "own_low_s": elapsed.low,
        "own_high_s": elapsed.high,
        "own_algorithm_bytes_per_second": None if algorithm is None else algorithm.median,
        "own_bus_bytes_per_second": None if bus is None else bus.median,
        "own_time_ratio": None if theirs is None else elapsed.median / theirs.elapsed_s,
    }


def _find(summary: Summary | None, metric: Metric, imported: Imported, row: Row) -> Estimate | None:
    labels = {"collective": imported.collective, "algorithm": LIBRARY, "size": str(row.size_bytes)}
    estimates = () if summary is None else summary.estimates
    return next((each for each in estimates if each.metric == metric.name and each.labels == labels), None)


def _table(imported: Imported, summary: Summary | None, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the figures in nccl-tests' units, microseconds and GB/s."""
    has_kinds = len({_kind(row) for row in imported.rows}) > 1
    columns = ["size\nB", *(["type\n"] if has_kinds else [])]
    columns += [*("out of\nplace us", "algbw\nGB/s", "busbw\nGB/s"), *("in\nplace us", "algbw\nGB/s", "busbw\nGB/s")]
    if summary is not None:
        columns += ["ours\nus", "algbw\nGB/s", "busbw\nGB/s", "ratio\n"]
    cells_of = []
    for fields, row in zip(rows, imported.rows, strict=True):
        cells = [str(row.size_bytes), *([_kind(row)] if has_kinds else [])]
        for name in ("out_of_place", "in_place"):
            cells += [_scaled(fields[f"{name}_s"], 1e6), *_bandwidths(fields, name)]
        if summary is not None:
            own = in_units(_find(summary, probes_metrics.RUN_COLLECTIVE_SECONDS, imported, row), 1e-6)
            cells += [own, *_bandwidths(fields, "own"), _scaled(fields["own_time_ratio"])]
        cells_of.append(cells)
    return Table(columns, cells_of, words=(), keys=1)


def _bandwidths(fields: Mapping[str, Any], name: str) -> list[str]:
    return [_scaled(fields[f"{name}_{kind}_bytes_per_second"], 1e-9) for kind in ("algorithm", "bus")]


def _scaled(value: float | None, scale: float = 1) -> str:
    return "-" if value is None else digits(value * scale)


def _kind(row: Row) -> str:
    return row.dtype if row.reduction is None else f"{row.dtype} {row.reduction}"


def _below(imported: Imported, summary: Summary | None) -> Iterator[str]:
    """Yield lines on what each of the two measured, how they differ, and what is left out."""
    version = "unknown" if imported.nccl_version is None else imported.nccl_version
    kinds = dict.fromkeys(_kind(row) for row in imported.rows)
    devices = ", ".join(imported.devices) or "unnamed devices"
    collective = imported.collective
    yield (
        f"nccl-tests: {collective} on {imported.ranks} ranks, {', '.join(kinds)}; {devices}; NCCL {version};"
        f" {imported.source}"
    )
    wrong = [
        str(row.size_bytes)
        for row in imported.rows
        if any(placement and placement.wrong_count for placement in (row.out_of_place, row.in_place))
    ]
    if wrong:
        yield f"nccl-tests: WRONG RESULTS at {', '.join(wrong)} bytes: ignore their times"
    yield from (f"nccl-tests: {note}" for note in imported.notes)
    if summary is None:
        if collective in COLLECTIVES.values():
            yield (
                f"ours: the history has no run of {collective} on {imported.ranks} ranks;"
                f" `observatory run collectives --ranks {imported.ranks}` measures one"
            )
        else:
            yield f"ours: none of our probes measures {collective}"
        return
    case = summary.case
    placement = "in place" if collective in IN_PLACE else "out of place"
    yield (
        f"ours: {summary.run}: {case.strategy} on {case.ranks} ranks, {case.precision}, {case.backend};"
        f" {summary.hardware}; {placement}, the median of {summary.trials_done} trials with its 95 % interval"
    )
    times = [_find(summary, probes_metrics.RUN_COLLECTIVE_SECONDS, imported, row) for row in imported.rows]
    yield from (f"ours: {note}" for note in wide_interval_notes(time for time in times if time is not None))
    if not any(times):
        yield f"ours: {collective} was not measured at these sizes"
    yield from (f"different: {difference}" for difference in _differences(imported, summary))


def _differences(imported: Imported, summary: Summary | None) -> Iterator[str]:
    """Yield the differences between the two measurements."""
    if summary is None:
        return
    case = summary.case
    if imported.ranks != case.ranks:
        yield f"ranks: {imported.ranks} of nccl-tests, {case.ranks} of ours"
    if set(imported.dtypes) != {case.precision}:
        yield f"type: {', '.join(imported.dtypes)} of nccl-tests, {case.precision} of ours"
    if set(imported.reductions) - {REDUCTION}:
        yield f"reduction: {', '.join(imported.reductions)} of nccl-tests, {REDUCTION} of ours"
    if case.backend != "nccl" and imported.nccl_version is not None:
        yield f"backend: nccl of nccl-tests, {case.backend} of ours"
    # Names of our devices without their number: NAME from "8 x NAME".
    ours = {part.partition(" x ")[2] or part for part in summary.hardware.split(", ")}
    is_same = bool(imported.devices) and set(imported.devices) <= ours
    if not is_same and summary.hardware not in imported.devices:
        devices = ", ".join(imported.devices) or "unnamed devices"
        yield f"machine: {devices} of nccl-tests, {summary.hardware} of ours"
