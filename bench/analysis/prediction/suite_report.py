"""Prints the plan of a suite on a remote machine: memory and step of each case, and which cases do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.analysis.prediction.fit import Fit, fit
from bench.analysis.prediction.report import FIGURES, figures, fit_document, machine_line, time_words, verdict_line
from bench.machine.machines.machine_file import PlannedMachine
from bench.report.format import grouped, readable
from bench.report.table import Block, Table, write
from bench.suite.plan import SuitePlan

_COLUMNS = (
    "case",
    "strategy",
    *FIGURES,
    "refusal",
    "left_out",
)


def print_plan_on(plan: SuitePlan, machine: PlannedMachine, left_out: Mapping[str, str], format_name: str) -> None:
    """Print the plan in the requested format. left_out: by name, why a case that could run is not run."""
    fits = {each.suite_case.name: fit(each.case, machine) for each in plan.cases if each.case is not None}
    rows = [
        {
            "case": each.suite_case.name,
            "strategy": each.suite_case.args.strategy,
            "refusal": each.refusal,
            "left_out": left_out.get(each.suite_case.name),
            **figures(fits.get(each.suite_case.name)),
        }
        for each in plan.cases
    ]
    write(
        format_name,
        _page(plan, machine, rows, fits),
        lambda: {
            "suite": plan.suite.name,
            "description": plan.suite.description,
            "path": str(plan.suite.path),
            "machine": machine.name,
            "cases": [{**row, "on": fit_document(fits[row["case"]]) if row["case"] in fits else None} for row in rows],
        },
        rows,
        _COLUMNS,
    )


def _page(
    plan: SuitePlan, machine: PlannedMachine, rows: list[dict[str, Any]], fits: Mapping[str, Fit]
) -> Iterator[Block]:
    yield f"{plan.suite.name}: {plan.suite.description}" if plan.suite.description else plan.suite.name
    yield machine_line(machine)
    yield ""
    cells = []
    for row in rows:
        if row["ranks"] is None:
            cells.append((row["case"], "-", "-", "cannot run", "-", "-"))
            continue
        least = "at least " if row["is_least"] else ""
        cells.append(
            (
                row["case"],
                str(row["ranks"]),
                f"{least}{readable(row['total_bytes'], 'bytes')}",
                "no" if not row["fits"] else "not known" if row["is_least"] else "yes",
                "-" if row["step_s"] is None else time_words(row["step_s"]),
                readable(row["mfu"], "ratio"),
            )
        )
    columns = ("case", "ranks", "each needs", "fits", "step", "MFU")
    yield Table(columns, cells, words=(0, 3), unbroken=range(1, len(columns)))
    yield ""
    for heading, name in (("cannot run there", "refusal"), ("left out", "left_out")):
        for text, names in grouped((row[name], row["case"]) for row in rows if row[name] is not None).items():
            yield f"{heading}: {_joined(names)}: {text}"
    unfit = {name: predicted for name, predicted in fits.items() if not predicted.memory.fits}
    for name, predicted in unfit.items():
        yield f"{name}: {verdict_line(predicted)}"
    rest = dict.fromkeys(line for predicted in fits.values() for line in predicted.rests_on)
    yield from (f"rests on {line}" for line in rest)
    yield "nothing was started, and nothing written"


def _joined(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
