"""Writes a run's collectives as JSON of nccl-tests, for programs that read its files.

nccl-tests measures one collective per run and writes one file. So there is one document for each collective and
algorithm of our run, in the format's first version, to which later versions only add keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, cast

import msgspec

from bench.errors import Misuse
from bench.machine.machine import Machine
from bench.report.nccl_tests.reader import ALGORITHM, COLLECTIVES, DTYPES, Imported
from bench.results.estimate import by_labels, of_metric
from bench.results.probes import LIBRARY
from bench.store.summary import Summary
from collectors.metrics import probes as metrics
from workloads.cost_models.communication import IN_PLACE, UNDIVIDED, bus_factor
from workloads.cost_models.terms import Collective
from workloads.spec import ELEMENT_BYTES

# Finding our run to compare with one of nccl-tests


def require_collectives(summary: Summary) -> None:
    """Check that the run measured a collective.

    Raises:
        Misuse: the run measured none.
    """
    if not of_metric(summary.estimates, metrics.RUN_COLLECTIVE_SECONDS):
        raise Misuse(
            f"run {summary.run} measured {summary.case.strategy}, not a collective; `observatory run collectives`"
            " measures one"
        )


def most_like(imported: Imported, newest_first: Iterable[Summary]) -> Summary | None:
    """Return our most similar successful run of the same collective on equally many ranks; None if there is none.

    A run that shares a size and its type is preferred, then one that shares a size, then any other; among equals, the
    newest.
    """
    wanted = {row.size_bytes for row in imported.rows}
    typed = {(row.size_bytes, row.dtype) for row in imported.rows}
    best, best_likeness = None, (False, False)
    for summary in newest_first:
        if summary.outcome != "done" or summary.case.ranks != imported.ranks:
            continue
        # The sizes at which the run measured this collective with the library's algorithm.
        times = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_SECONDS)
        sizes = {int(labels[2]) for labels in times if labels[:2] == (imported.collective, LIBRARY)}
        if not sizes:
            continue
        likeness = (any((size, summary.case.precision) in typed for size in sizes), bool(sizes & wanted))
        if best is None or likeness > best_likeness:
            best, best_likeness = summary, likeness
    return best


# Writing the documents

FORM = 1
_PROGRAMS: Mapping[str, str] = {ours: theirs for theirs, ours in COLLECTIVES.items()}
_TYPES = {ours: theirs for theirs, ours in DTYPES.items()}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_ROOTED = ("broadcast", "gather", "reduce", "scatter")


def encode(summary: Summary, machine: Machine | None = None) -> dict[str, bytes]:
    """Return each collective of the run as one JSON document, by the name of its file.

    Times and bandwidths are medians over trials. Results of `IN_PLACE` collectives are in place, those of others out of
    place; the placement that torch does not use is null, as in nccl-tests if it skips one. `nwrong` is 0 and
    `validation` 1: a probe checks one more call of each size, and fails if an element is wrong. On one rank the bus
    bandwidth is that of the formula, as in nccl-tests: 0 if its factor is 0. The step between sizes is left out if it
    is neither a constant factor nor a constant difference. Process numbers, PCI addresses and a CPU's index are null,
    because they are unknown. The arguments are the program and, for a textbook algorithm, its name.
    machine: where the run ran, for names of hosts and GPUs; None to make them null.

    Raises:
        Misuse: the run measured no collective.
    """
    require_collectives(summary)
    times = by_labels(summary.estimates, metrics.RUN_COLLECTIVE_SECONDS)
    documents = {}
    for collective, algorithm in dict.fromkeys(labels[:2] for labels in times):
        variant = "" if algorithm == LIBRARY else f".{algorithm}"
        document = _document(summary, machine, collective, algorithm)
        documents[f"{_PROGRAMS[collective]}_perf{variant}.json"] = msgspec.json.encode(document)
    return documents


def _document(summary: Summary, machine: Machine | None, collective: str, algorithm: str) -> dict[str, Any]:
    """Return the keys of nccl-tests in its order and style: words for truth values, a padded root."""
    rows = _rows(summary, collective, algorithm)
    sizes = [row["size"] for row in rows]
    placed = "in_place" if collective in IN_PLACE else "out_of_place"
    # NCCL's version as one number, like NCCL_VERSION since 2.9; None if NCCL did not run.
    version_code = None
    if machine is not None and machine.nccl_version is not None and summary.case.backend == "nccl":
        major, minor, patch = (int(part) for part in machine.nccl_version.split(".")[:3])
        version_code = major * 10_000 + minor * 100 + patch
    return {
        "version": FORM,
        "start_time": _clock(summary.started_ns),
        "args": [
            f"observatory/{_PROGRAMS[collective]}_perf",
            *([] if algorithm == LIBRARY else [f"{ALGORITHM}{algorithm}"]),
        ],
        "env": [f"{name}={value}" for name, value in machine.environment.items()] if machine else [],
        "nccl_version": version_code,
        "config": {
            "nthreads": 1,
            "ngpus": 1,
            "minimum_bytes": min(sizes),
            "maximum_bytes": max(sizes),
            **_step(sizes),
            "warmup_iters": summary.case.warm_up,
            "iterations": summary.case.steps,
            "aggregated_iterations": 1,
            "validation": 1,
            "graph": 0,
            "blocking_collectives": "false",
            "parallel_init": "false",
            "devices": [_device(summary, machine, rank) for rank in range(summary.case.ranks)],
        },
        "results": rows,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": fmean(row[placed]["bus_bw"] for row in rows), "okay": "unchecked"},
        "errors": [],
        "end_time": _clock(summary.ended_ns),
    }


def _rows(summary: Summary, collective: str, algorithm: str) -> list[dict[str, Any]]:
    case, estimates = summary.case, summary.estimates
    algorithm_rates = by_labels(estimates, metrics.RUN_COLLECTIVE_ALGORITHM_BANDWIDTH)
    bus_rates = by_labels(estimates, metrics.RUN_COLLECTIVE_BUS_BANDWIDTH)
    times = by_labels(estimates, metrics.RUN_COLLECTIVE_SECONDS)
    is_in_place = collective in IN_PLACE
    rows = []
    for labels in sorted(times, key=lambda labels: int(labels[2])):
        if labels[:2] != (collective, algorithm):
            continue
        size_bytes, algorithm_rate = int(labels[2]), algorithm_rates[labels].median
        if labels in bus_rates:
            bus_rate = bus_rates[labels].median
        else:
            bus_rate = algorithm_rate * float(bus_factor(cast(Collective, collective), case.ranks))
        body = {
            "time": times[labels].median * 1e6,
            "alg_bw": algorithm_rate / 1e9,
            "bus_bw": bus_rate / 1e9,
            "nwrong": 0.0,
        }
        count = size_bytes // ELEMENT_BYTES[case.precision]
        rows.append(
            {
                "size": size_bytes,
                "count": count if collective in UNDIVIDED else count // case.ranks,
                "type": _TYPES[case.precision],
                "redop": "sum" if collective in _REDUCING else "none",
                "root": f"{0 if collective in _ROOTED else -1:6d}",
                "out_of_place": None if is_in_place else body,
                "in_place": body if is_in_place else None,
                "actual_iterations": case.steps,
                "experiment_name": summary.run,
            }
        )
    return rows


def _step(sizes: Sequence[int]) -> Mapping[str, int]:
    """Return the constant factor or difference between neighbours: 2 for 4, 8, 16, and 4 for 4, 8, 12; else nothing."""
    pairs = list(pairwise(sizes))
    factors = {larger // smaller for smaller, larger in pairs}
    differences = {larger - smaller for smaller, larger in pairs}
    if len(factors) == 1 and not any(larger % smaller for smaller, larger in pairs):
        return {"step_factor": factors.pop()}
    return {"step_bytes": differences.pop()} if len(differences) == 1 else {}


def _device(summary: Summary, machine: Machine | None, rank: int) -> dict[str, Any]:
    is_cpu = summary.case.device == "cpu"
    gpus = () if machine is None or is_cpu else machine.gpus
    gpu = gpus[rank % len(gpus)] if gpus else None
    return {
        "rank": rank,
        "group": 0,
        "pid": None,
        "hostname": None if machine is None else machine.hostname,
        "device": None if gpu is None else gpu.index,
        "device_hex": None,
        "device_info": summary.hardware if is_cpu else None if gpu is None else gpu.name,
    }


def _clock(time_ns: int) -> str:
    """Return a Unix time as nccl-tests writes it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))
