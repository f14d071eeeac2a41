"""Prints the plan of a suite: its cases, what each needs, how long it takes, and why some cannot run here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console

from bench.analysis.noise import WANTED_CHANGE, smallest_of_night, trials_a_night
from bench.case import Case
from bench.engines.cluster import Capacity
from bench.machine.preflight import least_bytes
from bench.reports.format import (
    duration,
    open_console,
    print_csv,
    print_figures,
    print_json,
    print_words,
    readable,
    share,
    table_of,
)
from bench.suites.plan import PlannedCase, SuitePlan
from bench.suites.suite_file import SuiteCase
from workloads.cost_models.absent import Absent

_COLUMNS = (
    *("case", "block", "tags", "importance", "strategy", "ranks", "device", "precision", "trials", "steps"),
    *("baseline", "scaling", "gpus", "nodes", "rank_bytes", "limit_s", "fault", "estimate_s", "refusal", "left_out"),
    *("night_change_ratio", "trials_for_3_percent"),
)


def print_plan(
    plan: SuitePlan,
    left_out: Mapping[str, str],
    format_name: str,
    cluster: Capacity | None = None,
    console: Console | None = None,
) -> None:
    """Print the plan in the requested format.

    left_out: why cases are not run that could be, by their names. cluster: whose nodes it was planned by.
    """
    rows = [_row(one, left_out.get(one.suite_case.name)) for one in plan.cases]
    if format_name == "csv":
        print_csv([{name: row[name] for name in _COLUMNS} for row in rows], _COLUMNS)
    elif format_name == "json":
        print_json(
            {
                "suite": plan.suite.name,
                "description": plan.suite.description,
                "path": str(plan.suite.path),
                "nightly": plan.suite.is_nightly,
                "period_s": plan.suite.period_s,
                "digest": plan.suite.digest,
                "cluster": None if cluster is None else msgspec.to_builtins(cluster),
                "cases": rows,
                "levers": [msgspec.to_builtins(lever) for lever in plan.suite.levers],
            }
        )
    else:
        console = console or open_console()
        _print_table(plan, left_out, console)
        for line in cluster_lines(cluster):
            print_words(console, line)


def cluster_lines(cluster: Capacity | None) -> list[str]:
    """Return what a cluster tells of its nodes, and what it would be asked for; nothing of this machine."""
    if cluster is None:
        return []
    has = [f"{cluster.cores} cores"] if cluster.cores is not None else []
    has += [readable(cluster.memory_bytes, "bytes")] if cluster.memory_bytes is not None else []
    if cluster.gpus is not None:
        has += [f"{count} x {name}" for name, count in Counter(cluster.gpus).items()] or ["no GPU"]
    told = f"{cluster.whose} has at least {', '.join(has)}" if has else f"nothing is told of {cluster.whose}"
    untold = "" if cluster.gpus is not None else "; of GPUs nothing is told, which its agent does"
    return [told + untold, cluster.asks]


def _row(one: PlannedCase, left_out: str | None) -> dict[str, Any]:
    """Return all that is planned of a case."""
    asked, case = one.suite_case, one.possible
    return {
        "case": asked.name,
        "block": asked.block,
        "tags": " ".join(asked.tags),
        "importance": asked.importance,
        "strategy": asked.args.strategy,
        "ranks": None if case is None else case.ranks,
        "device": None if case is None else case.device,
        "precision": asked.args.precision,
        "trials": asked.args.trials,
        "steps": asked.args.steps,
        "baseline": asked.baseline,
        "scaling": asked.scaling,
        "gpus": _gpus(asked, case),
        "nodes": _nodes(asked, case),
        "rank_bytes": None if case is None else _rank_bytes(case),
        "limit_s": asked.limit_s,
        "fault": asked.fault,
        "estimate_s": one.estimate_s,
        "why_no_estimate": one.why_no_estimate,
        "refusal": one.refusal,
        "left_out": left_out,
        "night_change_ratio": _seen(one),
        "trials_for_3_percent": _needed(one),
        "crowds": one.crowds,
        "resolved": None if case is None else msgspec.to_builtins(case),
    }


def _seen(one: PlannedCase) -> float | None:
    """Return the smallest change of the step that one night of the case shows; None where nights are unknown."""
    if one.noise is None:
        return None
    found = smallest_of_night(one.noise, one.suite_case.args.trials)
    return None if isinstance(found, Absent) else found


def _needed(one: PlannedCase) -> int | None:
    """Return how many trials a night show a change of 3 %; None where no number does, or nights are unknown."""
    found = Absent(reason="its noise is unknown") if one.noise is None else trials_a_night(one.noise)
    return None if isinstance(found, Absent) else found


def _gpus(asked: SuiteCase, case: Case | None) -> int:
    """Return how many GPUs a node needs."""
    own = math.ceil(case.ranks / _nodes(asked, case)) if case is not None and case.backend == "nccl" else 0
    return max(asked.needs.gpus, own)


def _nodes(asked: SuiteCase, case: Case | None) -> int:
    return max(asked.needs.nodes, 1 if case is None else case.nodes)


def _rank_bytes(case: Case) -> int:
    """Return the least memory of the first rank and of the last, whichever is more."""
    return max(least_bytes(case, rank) for rank in {0, case.ranks - 1})


def _print_table(plan: SuitePlan, left_out: Mapping[str, str], console: Console) -> None:
    print_words(console, f"{plan.suite.name}: {plan.suite.description}" if plan.suite.description else plan.suite.name)
    console.print()
    rows = []
    for one in plan.cases:
        asked = one.suite_case
        if one.refusal is not None:
            takes = "cannot run"
        elif asked.name in left_out:
            takes = "left out"
        else:
            takes = "unknown" if one.estimate_s is None else duration(one.estimate_s)
        seen = _seen(one)
        sees = "-" if seen is None else share(seen)
        rows.append((asked.name, *_needs(one), f"{asked.args.trials} x {asked.args.steps}", takes, sees))
    columns = ["case", "ranks", "on", "each at\nleast", "trials\nx steps", "takes", "a night\nshows"]
    if all(row[-1] == "-" for row in rows):
        columns.pop()
    table = table_of(columns, (row[: len(columns)] for row in rows), words=(0, 2), unbroken=range(1, len(columns)))
    # Names are folded where the terminal is narrow: nothing else is long.
    print_figures(console, table)
    console.print()
    for text, names in _grouped((one.refusal, one.suite_case.name) for one in plan.cases):
        print_words(console, f"cannot run here: {names}: {text}")
    for text, names in _grouped((left_out.get(one.suite_case.name), one.suite_case.name) for one in plan.cases):
        print_words(console, f"left out: {names}: {text}")
    planned = [one for one in plan.cases if one.refusal is None and one.suite_case.name not in left_out]
    for text, names in _grouped((crowd, one.suite_case.name) for one in planned for crowd in one.crowds):
        print_words(console, f"{names}: {text}")
    print_words(console, *_sum(planned), *_noise_lines(planned))


def _noise_lines(planned: Collection[PlannedCase]) -> list[str]:
    """Return what the column of what a night shows is, and which cases need more trials; nothing where no case has it.

    `observatory compare --aa` tells how the noise comes about.
    """
    known = [one for one in planned if _seen(one) is not None]
    if not known:
        return []
    lines = [
        "a night shows: smallest change of the step time whose first night the gate suspects with 80 % power, by the"
        " noise of the history's nights"
    ]
    wanted = [(one, _needed(one)) for one in known]
    more = [f"{one.suite_case.name} {count}" for one, count in wanted if count and count > one.suite_case.args.trials]
    never = [one.suite_case.name for one, count in wanted if count is None]
    if more:
        lines.append(f"to see {100 * WANTED_CHANGE:g} % in one night takes more trials: {_joined(more)}")
    if never:
        lines.append(
            f"no number of trials shows {100 * WANTED_CHANGE:g} % in one night, as nights differ: {_joined(never)}"
        )
    return lines


def _needs(one: PlannedCase) -> tuple[str, str, str]:
    """Return a case's ranks, where they run, and the least memory of each."""
    asked, case = one.suite_case, one.possible
    if case is None:
        return ("-",) * 3
    places = f"{_gpus(asked, case)} GPU" if case.device == "cuda" else "CPU"
    if (nodes := _nodes(asked, case)) > 1:
        places = f"{nodes} x {places}"
    return str(case.ranks), places, readable(_rank_bytes(case), "bytes")


def _grouped(pairs: Iterable[tuple[str | None, str]]) -> list[tuple[str, str]]:
    """Return each text once, with the names that it is of."""
    names: dict[str, list[str]] = {}
    for text, name in pairs:
        if text is not None:
            names.setdefault(text, []).append(name)
    return [(text, _joined(of)) for text, of in names.items()]


def _joined(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _sum(planned: Collection[PlannedCase]) -> list[str]:
    """Return what all cases take together, and how many of unknown time come on top."""
    known = [one.estimate_s for one in planned if one.estimate_s is not None]
    unknown = [one for one in planned if one.estimate_s is None]
    words = [f"{len(known)} case(s) take about {duration(sum(known))}"] if known else []
    if unknown:
        reasons = _grouped((one.why_no_estimate, one.suite_case.name) for one in unknown)
        more = f" and {len(reasons) - 1} other reason(s)" if len(reasons) > 1 else ""
        words.append(f"{len(unknown)} case(s) take a time that is unknown: {reasons[0][0] if reasons else ''}{more}")
    return ["; ".join(words) or "no case would run here"]
