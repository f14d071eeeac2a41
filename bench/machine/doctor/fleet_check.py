"""Queries and measures an engine's nodes before a suite: their state, clocks, speed, and the links between them."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.case import Case, Purpose, find_spec, parse_options
from bench.engines.cluster import ClusterEngine
from bench.engines.trial_parts import ReadyNode, spread
from bench.errors import InfrastructureFailed, plural
from bench.machine.doctor.fleet import Fleet, FleetNode, NodeFinding, PairRate, Rate, judge
from bench.machine.machine import Machine
from bench.machine.machine_diff import MachineDifference, differences
from bench.rank.messages import FailureCause, TrialOutcome
from bench.results.trials import RankTrial, join_by_labels, read_rank_logs
from bench.session.measure import TrialSettings, alike, measure
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
"""Small enough to take seconds, large enough for rates that unhealthy nodes do not reach."""
_PURPOSE = Purpose(note="check of nodes before a suite")


def check_fleet(
    engine: ClusterEngine,
    *,
    ranks_per_node: int | None = None,
    before: Mapping[str, Machine] | None = None,
    tell: Callable[[str], None],
) -> Fleet:
    """Query all nodes for their state, measure them at the same time, and judge them.

    ranks_per_node: ranks that measure on a node; by default one for each GPU, or one on a CPU.
    before: the machine of each host at its last good check. tell: called with progress messages.

    Raises:
        InfrastructureFailed: an agent is gone, or does not answer.
        KeyboardInterrupt: the user interrupted the check.
    """
    nodes = engine.nodes()
    tell(f"pre-flight: checking and measuring {plural(len(nodes), 'node')}")
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
    findings = judge(fleet)
    if any(finding.is_fatal for finding in findings):  # A measurement may not even start.
        return replace(fleet, findings=findings, absent=("speeds are absent: the nodes cannot measure together",))
    fleet, failed = _measured(fleet, engine, nodes, ranks_per_node)
    return replace(fleet, findings=judge(fleet, failed))


def _changed(before: Machine | None, now: Machine) -> tuple[MachineDifference, ...]:
    return () if before is None else differences(before, now)


def _measured(
    fleet: Fleet, engine: ClusterEngine, nodes: Sequence[ReadyNode], ranks_per_node: int | None
) -> tuple[Fleet, list[NodeFinding]]:
    """Return the nodes with their rates, and a finding for each failed measurement."""
    gpus = min(len(node.ready.machine.gpus) for node in nodes)
    device: Device = "cuda" if gpus and nodes[0].ready.machine.torch_cuda_version is not None else "cpu"
    per_node = ranks_per_node or (gpus if device == "cuda" else 1)
    ranks = per_node * len(nodes)
    rates: list[Rate] = []
    pairs: list[PairRate] = []
    absent: list[str] = []
    failed: list[NodeFinding] = []
    for name in ("matmul", "copies", "pairs"):
        if name == "pairs" and len(nodes) < 2:
            continue
        options = [*SIZES[device][name], *((f"stride={per_node}",) if name == "pairs" else ())]
        case = _case(name, ranks, len(nodes), device, options)
        folder, cause = _run(engine, case, nodes[0].ready.machine)
        try:
            if cause is not None:
                absent.append(f"{name} is absent: it failed")
                # The node that has the blamed rank; None if no rank is to blame.
                shares = zip(nodes, spread(ranks, len(nodes)), strict=True)
                blamed = next((node.number for node, share in shares if cause.rank in share), None)
                failed.append(NodeFinding(node=blamed, text=f"{name} failed: {cause.text}"))
                continue
            trials = tuple(read_rank_logs(folder, ranks, mark="probe").trials.values())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if name == "pairs":
            pairs = _pair_rates(trials, nodes, per_node)
        else:
            rates += _rates(name, trials, nodes, case)
    if fleet.shares_machines:
        absent.append("speeds are not judged: nodes share a machine and take capacity from each other")
    return replace(fleet, rates=tuple(rates), pairs=tuple(pairs), absent=tuple(absent)), failed


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
        bind=device == "cuda",
    )
    return replace(case, options=spec.settled(case))


def _run(engine: ClusterEngine, case: Case, machine: Machine) -> tuple[Path, FailureCause | None]:
    """Run the probe; return its folder, and the cause if it failed."""
    settings = TrialSettings(limit_s=LIMIT_S, purpose=_PURPOSE)
    measured = measure(
        alike([(case, None)], settings),
        engine=engine,
        machine=machine,
        folder=engine.runs,
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
    return run.folder, None if summary.outcome == "done" else _without_folder(
        summary.cause, summary.outcome, run.folder
    )


def _without_folder(cause: FailureCause | None, outcome: TrialOutcome, folder: Path) -> FailureCause:
    """Return the cause in words that outlive the folder: with the last line that the rank printed instead of a path.

    Example: "rank 1 was killed by SIGSEGV in step 2; it printed: ...".
    """
    if cause is None:
        return FailureCause(kind="error", rank=None, step=None, text=outcome.replace("_", " "))
    text = re.sub(rf"; [^;]*{re.escape(str(folder))}[^;]*", "", cause.text)
    printed_lines = [line.strip() for line in cause.last_lines if line.strip()]
    parts = [text, *(f"it printed: {line}" for line in printed_lines[-1:]), *cause.explained]
    return replace(cause, text="; ".join(parts))


def _rates(name: str, trials: Sequence[Sequence[RankTrial]], nodes: Sequence[ReadyNode], case: Case) -> list[Rate]:
    """Return the rates of each node's slowest rank."""
    metric = metrics.MATMUL_SECONDS if name == "matmul" else metrics.COPY_SECONDS
    rates = []
    for node, ranks in zip(nodes, spread(case.ranks, len(nodes)), strict=True):
        times = [join_by_labels([parts[rank] for rank in ranks], "probe", metric, max) for parts in trials]
        for labels in times[0]:
            if metric is metrics.MATMUL_SECONDS:
                what, unit, amount = "matmul", "FLOP/s", matmul_flops(*map(int, labels))
            else:
                what, unit, amount = labels[0].replace("_", " "), "bytes/s", moved_bytes(labels[0], int(labels[1]))
            rates.append(
                Rate(
                    node=node.number,
                    what=what,
                    unit=unit,
                    trials=tuple(amount / trial_times[labels] for trial_times in times),
                )
            )
    return rates


def _pair_rates(trials: Sequence[Sequence[RankTrial]], nodes: Sequence[ReadyNode], per_node: int) -> list[PairRate]:
    """Return the rate of the slowest lane of each pair of nodes."""
    by_trial = []
    for parts in trials:
        slowest: dict[tuple[int, int], float] = {}
        for (pair, size), elapsed_s in join_by_labels(parts, "probe", metrics.PAIR_SECONDS, max).items():
            first, second = (nodes[int(rank) // per_node].number for rank in pair.split("-"))
            rate = int(size) / elapsed_s
            slowest[first, second] = min(rate, slowest.get((first, second), rate))
        by_trial.append(slowest)
    return [PairRate(nodes=pair, trials=tuple(rates[pair] for rates in by_trial)) for pair in sorted(by_trial[0])]
