"""Asks and measures the nodes of an engine before a suite: their state, clocks, speed, and the links between them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.analysis.trials import RankTrial, join_by_labels, read_rank_logs
from bench.case import Case, Purpose, find_spec, parse_options
from bench.doctor.fleet import Finding, Fleet, FleetNode, PairRate, Rate, judge
from bench.engines.cluster import ClusterEngine
from bench.engines.trial_parts import Node, spread
from bench.errors import InfrastructureFailed
from bench.machine.machine import Machine
from bench.machine.machine_diff import Difference, differences
from bench.rank.messages import Cause, Outcome
from bench.runner.measure import TrialSettings, alike, measure
from collectors.metrics import probes as metrics
from workloads.probes.cost_model import matmul_flops, moved_bytes
from workloads.spec import Device

TRIALS = 3
STEPS, WARM_UP = 10, 3
LIMIT_S = 120.0
SIZES: Mapping[Device, Mapping[str, tuple[str, ...]]] = {
    "cpu": {
        "matmul": ("min_size=512", "max_size=512"),
        "copies": (f"size_bytes={64 << 20}",),
        "pairs": (f"size_bytes={1 << 20}",),
    },
    "cuda": {"matmul": ("min_size=8192", "max_size=8192"), "copies": (f"size_bytes={256 << 20}",), "pairs": ()},
}
"""Small enough for seconds, large enough for the rates that sick nodes do not reach."""
_PURPOSE = Purpose(note="check of nodes before a suite")


def check_fleet(
    engine: ClusterEngine,
    *,
    ranks_per_node: int | None = None,
    before: Mapping[str, Machine] | None = None,
    tell: Callable[[str], None],
) -> Fleet:
    """Ask all nodes for their state, measure them beside each other, and judge them.

    ranks_per_node: how many ranks measure on a node; by default one for each GPU, or one on a CPU.
    before: the machine of each host at its last good check. tell: is told what is done.

    Raises:
        InfrastructureFailed: an agent is gone, or does not answer.
        KeyboardInterrupt: a person ended it.
    """
    nodes = engine.nodes()
    tell(f"pre-flight: {len(nodes)} node(s) are asked for their state, and measured")
    fleet = Fleet(
        engine=engine.name,
        time_ns=time.time_ns(),
        nodes=tuple(
            FleetNode(
                number=node.number,
                name=node.name,
                machine=node.ready.machine,
                check=check,
                changed=_changed((before or {}).get(node.ready.machine.hostname), node.ready.machine),
            )
            for node, check in zip(nodes, engine.check(), strict=True)
        ),
    )
    found = judge(fleet)
    if any(one.is_fatal for one in found):  # What would be measured may not even start.
        return replace(fleet, findings=found, absent=("speeds are absent: the nodes cannot measure together",))
    fleet, failed = _measured(fleet, engine, nodes, ranks_per_node)
    return replace(fleet, findings=judge(fleet, failed))


def _changed(before: Machine | None, now: Machine) -> tuple[Difference, ...]:
    return () if before is None else differences(before, now)


def _measured(
    fleet: Fleet, engine: ClusterEngine, nodes: Sequence[Node], ranks_per_node: int | None
) -> tuple[Fleet, list[Finding]]:
    """Return the nodes with their rates, and what is found where a measurement failed."""
    gpus = min(len(node.ready.machine.gpus) for node in nodes)
    device: Device = "cuda" if gpus and nodes[0].ready.machine.torch_cuda_version is not None else "cpu"
    each = ranks_per_node or (gpus if device == "cuda" else 1)
    ranks = each * len(nodes)
    rates: list[Rate] = []
    pairs: list[PairRate] = []
    absent: list[str] = []
    failed: list[Finding] = []
    for name in ("matmul", "copies", "pairs"):
        if name == "pairs" and len(nodes) < 2:
            continue
        options = [*SIZES[device][name], *((f"stride={each}",) if name == "pairs" else ())]
        case = _case(name, ranks, len(nodes), device, options)
        folder, cause = _run(engine, case, nodes[0].ready.machine)
        try:
            if cause is not None:
                absent.append(f"{name} is absent: it failed")
                failed.append(Finding(node=_node_of(cause.rank, ranks, nodes), text=f"{name} failed: {cause.text}"))
                continue
            trials = tuple(read_rank_logs(folder, ranks, mark="probe").trials.values())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if name == "pairs":
            pairs = _pair_rates(trials, nodes, each)
        else:
            rates += _rates(name, trials, nodes, case)
    if fleet.shares_machines:
        absent.append("speeds are not judged: nodes share a machine, and each gets what the others leave")
    return replace(fleet, rates=tuple(rates), pairs=tuple(pairs), absent=tuple(absent)), failed


def _node_of(rank: int | None, ranks: int, nodes: Sequence[Node]) -> int | None:
    """Return the number of the node that has a rank; None where no rank is to blame."""
    places = zip(nodes, spread(ranks, len(nodes)), strict=True)
    return next((node.number for node, share in places if rank in share), None)


def _case(name: str, ranks: int, nodes: int, device: Device, options: Iterable[str]) -> Case:
    spec = find_spec(name)
    case = Case(
        strategy=name,
        version=spec.version_on(device),
        ranks=ranks,
        model=None,
        device=device,
        backend="nccl" if device == "cuda" else "gloo",
        precision="bf16" if device == "cuda" and name == "matmul" else "fp32",
        threads=1,
        trials=TRIALS,
        steps=STEPS,
        warm_up=WARM_UP,
        trace_steps=0,
        seed=0,
        options=parse_options(spec, options),
        nodes=nodes,
    )
    return replace(case, options=spec.settled(case))


def _run(engine: ClusterEngine, case: Case, machine: Machine) -> tuple[Path, Cause | None]:
    """Run the probe; return its folder, and why it did not end well."""
    settings = TrialSettings(limit_s=LIMIT_S, purpose=_PURPOSE)
    measured = measure(
        alike([(case, None)], settings),
        engine=engine,
        machine=machine,
        folder=engine.runs,
        watch=lambda case, trial, steps: None,
    )
    measured.close()
    (run,), (summary,) = measured.runs, measured.summaries
    if measured.is_interrupted or measured.lost_engine:
        shutil.rmtree(run.folder, ignore_errors=True)
        if measured.is_interrupted:
            raise KeyboardInterrupt
        raise InfrastructureFailed(
            "pre-flight: " + ("an agent is gone" if summary.cause is None else summary.cause.text)
        )
    return run.folder, None if summary.outcome == "done" else _kept(summary.cause, summary.outcome, run.folder)


def _kept(cause: Cause | None, outcome: Outcome, folder: Path) -> Cause:
    """Return the cause in words that outlive the folder: the last line of what the rank printed, and not where it is.

    Example: "rank 1 was killed by SIGSEGV in step 2; it said: ...".
    """
    if cause is None:
        return Cause(kind="error", rank=None, step=None, text=outcome.replace("_", " "))
    text = re.sub(rf"; [^;]*{re.escape(str(folder))}[^;]*", "", cause.text)
    said = [line.strip() for line in cause.last_lines if line.strip()]
    return replace(cause, text=f"{text}; it said: {said[-1]}" if said else text)


def _rates(name: str, trials: Sequence[Sequence[RankTrial]], nodes: Sequence[Node], case: Case) -> list[Rate]:
    """Return the rates of each node, of its slowest rank."""
    metric = metrics.MATMUL_SECONDS if name == "matmul" else metrics.COPY_SECONDS
    found = []
    for node, ranks in zip(nodes, spread(case.ranks, len(nodes)), strict=True):
        times = [join_by_labels([parts[rank] for rank in ranks], "probe", metric, max) for parts in trials]
        for labels in times[0]:
            if metric is metrics.MATMUL_SECONDS:
                what, unit, amount = "matmul", "FLOP/s", matmul_flops(*map(int, labels))
            else:
                what, unit, amount = labels[0].replace("_", " "), "bytes/s", moved_bytes(labels[0], int(labels[1]))
            found.append(
                Rate(node=node.number, what=what, unit=unit, trials=tuple(amount / one[labels] for one in times))
            )
    return found


def _pair_rates(trials: Sequence[Sequence[RankTrial]], nodes: Sequence[Node], each: int) -> list[PairRate]:
    """Return the rate of each pair of nodes, of the slowest of its lanes."""
    by_trial = []
    for parts in trials:
        slowest: dict[tuple[int, int], float] = {}
        for (pair, size), elapsed_s in join_by_labels(parts, "probe", metrics.PAIR_SECONDS, max).items():
            first, second = (nodes[int(rank) // each].number for rank in pair.split("-"))
            rate = int(size) / elapsed_s
            slowest[first, second] = min(rate, slowest.get((first, second), rate))
        by_trial.append(slowest)
    return [PairRate(nodes=pair, trials=tuple(one[pair] for one in by_trial)) for pair in sorted(by_trial[0])]
