"""Print the plan of a suite: its cases, their needs, their time, and why some cannot run here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from bench.engines.cluster import Capacity
from bench.errors import plural
from bench.machine.preflight import least_bytes
from bench.report.format import duration, grouped, readable, share
from bench.report.table import Block, Table, write
from bench.results.noise import WANTED_CHANGE, smallest_of_night, trials_a_night
from bench.suite.plan import PlannedCase, SuitePlan
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

    left_out: why runnable cases are left out, by name. cluster: the cluster whose nodes the plan uses.
    """
    rows = [_row(planned, left_out.get(planned.suite_case.name)) for planned in plan.cases]
    write(
        format_name,
        _page(plan, rows, cluster),
        lambda: {
            "suite": plan.suite.name,
            "description": plan.suite.description,
            "path": str(plan.suite.path),
            "nightly": plan.suite.is_nightly,
            "period_s": plan.suite.period_s,
            "digest": plan.suite.digest,
            "cluster": cluster,
            "cases": rows,
            "levers": plan.suite.levers,
        },
        rows,
        _COLUMNS,
        console,
    )


def cluster_lines(cluster: Capacity | None) -> list[str]:
    """Return what is known about a cluster's nodes, and what it would be asked for; nothing for this machine."""
    if cluster is None:
        return []
    has = [f"{cluster.cores} cores"] if cluster.cores is not None else []
    has += [readable(cluster.memory_bytes, "bytes")] if cluster.memory_bytes is not None else []
    if cluster.gpus is not None:
        has += [f"{count} x {name}" for name, count in Counter(cluster.gpus).items()] or ["no GPU"]
    known = f"{cluster.whose} has at least {', '.join(has)}" if has else f"nothing is known about {cluster.whose}"
    unknown = "" if cluster.gpus is not None else "; its agent reports the GPUs"
    return [known + unknown, cluster.asks]


def _row(planned: PlannedCase, left_out: str | None) -> dict[str, Any]:
    """Return everything that is planned for a case."""
    suite_case, case, noise = planned.suite_case, planned.possible, planned.noise
    args = suite_case.args
    # The smallest change of the step that one night detects, and the trials needed to detect 3 %, if known.
    night_change = Absent(reason="") if noise is None else smallest_of_night(noise, args.trials)
    needed = Absent(reason="") if noise is None else trials_a_night(noise)
    nodes = max(suite_case.needs.nodes, 1 if case is None else case.nodes)
    return {
        "case": suite_case.name,
        "block": suite_case.block,
        "tags": " ".join(suite_case.tags),
        "importance": suite_case.importance,
        "strategy": args.strategy,
        "ranks": None if case is None else case.ranks,
        "device": None if case is None else case.device,
        "precision": args.precision if case is None else case.precision,
        "trials": args.trials,
        "steps": args.steps,
        "baseline": suite_case.baseline,
        "scaling": suite_case.scaling,
        "gpus": max(
            suite_case.needs.gpus, math.ceil(case.ranks / nodes) if case is not None and case.backend == "nccl" else 0
        ),
        "nodes": nodes,
        # The first or the last rank, whichever needs more.
        "rank_bytes": None if case is None else max(least_bytes(case, rank) for rank in {0, case.ranks - 1}),
        "limit_s": suite_case.limit_s,
        "fault": suite_case.fault,
        "estimate_s": planned.estimate_s,
        "why_no_estimate": planned.why_no_estimate,
        "refusal": planned.refusal,
        "left_out": left_out,
        "night_change_ratio": None if isinstance(night_change, Absent) else night_change,
        "trials_for_3_percent": None if isinstance(needed, Absent) else needed,
        "crowds": planned.crowds,
        "resolved": case,
    }


def _page(plan: SuitePlan, rows: Sequence[Mapping[str, Any]], cluster: Capacity | None) -> Iterator[Block]:
    yield f"{plan.suite.name}: {plan.suite.description}" if plan.suite.description else plan.suite.name
    yield ""
    cells = []
    for row in rows:
        if row["refusal"] is not None:
            takes = "cannot run"
        elif row["left_out"] is not None:
            takes = "left out"
        else:
            takes = "unknown" if row["estimate_s"] is None else duration(row["estimate_s"])
        needs = ("-", "-", "-")
        if row["ranks"] is not None:
            place = f"{row['gpus']} GPU" if row["device"] == "cuda" else "CPU"
            place = f"{row['nodes']} x {place}" if row["nodes"] > 1 else place
            needs = (str(row["ranks"]), place, readable(row["rank_bytes"], "bytes"))
        cells.append(
            (row["case"], *needs, f"{row['trials']} x {row['steps']}", takes, share(row["night_change_ratio"]))
        )
    columns = ["case", "ranks", "on", "each at\nleast", "trials\nx steps", "takes", "a night\nshows"]
    if all(row[-1] == "-" for row in cells):
        columns.pop()
    # Names are folded on narrow terminals: nothing else is long.
    yield Table(columns, [row[: len(columns)] for row in cells], words=(0, 2), unbroken=range(1, len(columns)))
    yield ""
    for heading, name in (("cannot run here", "refusal"), ("left out", "left_out")):
        for text, cases in grouped((row[name], row["case"]) for row in rows if row[name] is not None).items():
            yield f"{heading}: {_joined(cases)}: {text}"
    planned = [row for row in rows if row["refusal"] is None and row["left_out"] is None]
    for text, cases in grouped((crowd, row["case"]) for row in planned for crowd in row["crowds"]).items():
        yield f"{_joined(cases)}: {text}"
    yield _sum(planned)
    yield from _noise_lines(planned)
    yield from cluster_lines(cluster)


def _noise_lines(planned: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Explain the column "a night shows", and list cases that need more trials; yield nothing if no case has a value.

    `observatory compare --aa` shows where the noise comes from.
    """
    rows = [row for row in planned if row["night_change_ratio"] is not None]
    if not rows:
        return
    yield (
        "a night shows: smallest change of the step time that the gate suspects on its first night, with 80 % power,"
        " given the noise of past nights"
    )
    needed = [(row, row["trials_for_3_percent"]) for row in rows]
    if more := [f"{row['case']} {count}" for row, count in needed if count and count > row["trials"]]:
        yield f"to detect {100 * WANTED_CHANGE:g} % in one night, use more trials: {_joined(more)}"
    if never := [row["case"] for row, count in needed if count is None]:
        yield f"nights differ too much to detect {100 * WANTED_CHANGE:g} % in one: {_joined(never)}"


def _joined(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"


def _sum(planned: Sequence[Mapping[str, Any]]) -> str:
    """Return the time of all cases together, and the number of further cases of unknown time."""
    known = [row["estimate_s"] for row in planned if row["estimate_s"] is not None]
    words = [f"{plural(len(known), 'case')} in about {duration(sum(known))}"] if known else []
    if unknown := [row for row in planned if row["estimate_s"] is None]:
        reasons = list(dict.fromkeys(row["why_no_estimate"] for row in unknown if row["why_no_estimate"] is not None))
        more = f" and {plural(len(reasons) - 1, 'other reason')}" if len(reasons) > 1 else ""
        words.append(f"{plural(len(unknown), 'case')} of unknown time: {''.join(reasons[:1])}{more}")
    return "; ".join(words) or "no case would run here"
