"""Collects the inputs of a run's diagnosis: its summary, its ranks' and nodes' logs, and probes of its hardware."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.analysis.diagnose.observed import AllocatorTrouble, NodeLoad, Observed
from bench.case import Case, options_of
from bench.errors import InfrastructureFailed, Misuse
from bench.machine.machine import Machine
from bench.machine.placement import read_placement
from bench.results.estimate import by_labels
from bench.results.trials import values_of
from bench.store.history import History
from bench.store.links import find_links
from bench.store.run_dir import is_gone, machine_of
from bench.store.summary import Summary
from collectors.metrics.gpu import GPU_CLOCK_HELD_SECONDS
from collectors.metrics.host import HOST_CPU_SECONDS, HOST_LOAD, HOST_PRESSURE_SECONDS, HOST_SWAPPED_BYTES
from collectors.metrics.metric import Metric, Sample
from collectors.metrics.probes import RUN_PAIR_BANDWIDTH
from collectors.metrics.rank import ALLOCATION_RETRIES, OUT_OF_MEMORY
from collectors.sample_log import NewerSchema, NodeOpened, NodeState, Reading, read
from workloads.cost_models.absent import Absent
from workloads.cost_models.interconnect import Interconnect
from workloads.registry import is_known, spec_of

PROBES_SEARCHED = 50
_IDLE = ("idle", "iowait")


def observe(summary: Summary, history: History | Absent) -> Observed:
    """Collect everything that is known about the run.

    history: searched for probes of the run's hardware; Absent: why it cannot be read.

    Raises:
        Misuse: it is a run of a probe, which measures the machine, its strategy no longer exists, or a newer version
            wrote its logs.
    """
    case, folder = summary.case, Path(summary.folder)
    if not is_known(case.strategy):
        raise Misuse(
            f"run {summary.run} has strategy {case.strategy}, which this version does not have;"
            f" `observatory show {summary.run}` shows what was measured"
        )
    if case.watched_name is not None:
        raise Misuse(
            f"run {summary.run} watched a user's own program, and no cost model predicts the shares of its step;"
            f" `observatory diagnose {summary.run}` says who is late in it"
        )
    if case.model is None:
        raise Misuse(
            f"run {summary.run} measures {case.strategy}, a probe, which trains nothing;"
            f" `observatory show {summary.run}` shows it, and `observatory diagnose` takes a run of training"
        )
    case, missing = _as_of_today(case)
    if is_gone(summary.folder):
        missing.append(f"what ranks and nodes logged: {folder} is gone; --runs names the folder that it was moved to")
    try:
        machine: Machine | None = machine_of(folder)
    except Misuse:
        machine = None if isinstance(history, Absent) else history.machine(summary.run)
    if machine is None:
        missing.append("the machine of the run: neither its folder nor the history has it")
    placement = read_placement(folder)
    hosts = {
        rank: node.host
        for node in (placement.nodes if placement is not None and len(placement.nodes) > 1 else ())
        for rank in range(node.first_rank, node.first_rank + node.ranks)
    }
    try:
        nodes, allocator = tuple(_nodes(folder)), _allocator(folder, case.ranks if case.device == "cuda" else 0)
    except NewerSchema as error:
        raise Misuse(str(error)) from None
    cause = summary.cause
    interconnect, pairs = _of_probes(replace(summary, case=case), history)
    return Observed(
        run=summary.run,
        case=case,
        outcome=summary.outcome,
        trials_done=summary.trials_done,
        estimates=summary.estimates,
        notes=summary.notes,
        scaling=summary.scaling,
        cause=() if cause is None else (cause.text, *cause.last_lines, *cause.explained),
        interconnect=interconnect,
        pair_bandwidths=pairs,
        device_bytes=None if machine is None else _device_bytes(summary, machine),
        # An engine may run several nodes on one machine, which then share its cores.
        cores=None if machine is None else max(1, machine.usable_cores // machine.nodes_here),
        rank_hosts=hosts if placement is not None and not placement.has_moved else {},
        nodes=nodes,
        allocator=allocator,
        missing=missing,
    )


def _as_of_today(case: Case) -> tuple[Case, list[str]]:
    """Return the case with the options that were added after it was measured, and lines on the differences."""
    spec = spec_of(case.strategy)
    today = options_of(case)
    absent = {
        option.name: today.get(option.name, option.default)
        for option in spec.options
        if option.name not in case.options
    }
    lines = []
    if absent:
        lines.append(f"options {', '.join(absent)}: the run predates them; their defaults at that time are used")
    if case.version != spec.version_on(case.device):
        lines.append(
            f"the current definition: the run has version {case.version} of {case.strategy}, and is compared with"
            f" version {spec.version_on(case.device)}"
        )
    return replace(case, options={**absent, **case.options}), lines


def _device_bytes(summary: Summary, machine: Machine) -> int | None:
    """Return the memory of a GPU, or the memory of a node that ranks on the CPU may use."""
    if summary.case.device == "cuda":
        known = [gpu.memory_bytes for gpu in machine.gpus if gpu.memory_bytes is not None]
        return min(known, default=None)
    limit_bytes = machine.memory_limit_bytes
    return machine.memory_bytes if limit_bytes is None else min(machine.memory_bytes, limit_bytes)


def _of_probes(summary: Summary, history: History | Absent) -> tuple[Interconnect | str, dict[str, float]]:
    """Return the links and the pairs' bandwidths that probes measured on equally many ranks of the same hardware."""
    if isinstance(history, Absent):
        return history.reason, {}
    try:
        links = find_links(summary, history)
        probes = history.runs(limit=PROBES_SEARCHED, strategy="pairs")
    except InfrastructureFailed as error:
        return str(error), {}
    setting = (summary.case.ranks, summary.case.nodes, summary.case.backend, summary.hardware)
    alike = [
        probe
        for probe in probes
        if probe.outcome == "done"
        and (probe.case.ranks, probe.case.nodes, probe.case.backend, probe.hardware) == setting
    ]
    pairs = {}
    if alike:  # Each pair's bandwidth at the largest message.
        by_pair = by_labels(alike[0].estimates, RUN_PAIR_BANDWIDTH)
        most = max((int(size) for _, size in by_pair), default=0)
        pairs = {pair: estimate.median for (pair, size), estimate in by_pair.items() if int(size) == most}
    return links.reason if isinstance(links, Absent) else links.interconnect, pairs


# From logs: retries of the allocator, and the load of the nodes


def _allocator(folder: Path, ranks: int) -> AllocatorTrouble | None:
    """Return the counts of the rank whose allocator had the most trouble; None if there was none."""
    worst: AllocatorTrouble | None = None
    for rank in range(ranks):
        path = folder / f"rank{rank}.jsonl"
        if not path.exists():
            continue
        readings = [record for record in read(path).records if isinstance(record, Reading)]
        by_trial: dict[int, list[Reading]] = defaultdict(list)
        for reading in readings:
            by_trial[reading.trial].append(reading)
        # Each trial has new processes, which count from 0.
        retries, errors = (
            sum(int(max(values_of(of_trial, metric), default=0)) for of_trial in by_trial.values())
            for metric in (ALLOCATION_RETRIES, OUT_OF_MEMORY)
        )
        if retries + errors and (worst is None or retries + errors > worst.retries + worst.out_of_memory):
            worst = AllocatorTrouble(rank=rank, retries=retries, out_of_memory=errors)
    return worst


def _nodes(folder: Path) -> Iterator[NodeLoad]:
    """Yield the load of each node during the run; counters are differences between the first and the last beat."""
    for path in sorted(folder.glob("node*.jsonl")):
        records = read(path).records
        state, beats = NodeState(), []
        for record in records:
            if state.take(record) and state.time_ns is not None:
                beats.append((state.time_ns, tuple(state.samples)))
        host = next((record.host for record in records if isinstance(record, NodeOpened)), path.stem)
        if len(beats) > 1 and beats[-1][0] > beats[0][0]:
            yield _load(host, beats)


_Beat = tuple[int, Sequence[Sample]]


def _load(host: str, beats: Sequence[_Beat]) -> NodeLoad:
    elapsed_s = (beats[-1][0] - beats[0][0]) / 1e9

    def grown(metric: Metric) -> dict[tuple[str, ...], float]:
        first, last = (_values(beat, metric) for beat in (beats[0], beats[-1]))
        return {labels: max(0.0, value - first[labels]) for labels, value in last.items() if labels in first}

    cpu = grown(HOST_CPU_SECONDS)
    pressure = {labels: min(1.0, seconds / elapsed_s) for labels, seconds in grown(HOST_PRESSURE_SECONDS).items()}
    loads = [value for beat in beats for value in _values(beat, HOST_LOAD).values()]
    held: dict[str, tuple[float, str]] = {}
    for (gpu, reason), seconds in grown(GPU_CLOCK_HELD_SECONDS).items():
        held[gpu] = max(held.get(gpu, (0.0, reason)), (min(1.0, seconds / elapsed_s), reason))
    idle_s = sum(seconds for (mode,), seconds in cpu.items() if mode in _IDLE)
    swapped = grown(HOST_SWAPPED_BYTES)
    return NodeLoad(
        host=host,
        busy_ratio=1 - idle_s / sum(cpu.values()) if any(cpu.values()) else None,
        load_tasks=median(loads) if loads else None,
        cpu_pressure_ratio=pressure.get(("cpu", "some")),
        memory_pressure_ratio=pressure.get(("memory", "some")),
        swapped_bytes=sum(swapped.values()) if swapped else None,
        held_ratios=held,
    )


def _values(beat: _Beat, metric: Metric) -> dict[tuple[str, ...], float]:
    """Return the values of a metric at a beat, by label values."""
    return {
        tuple(sample.labels[name] for name in metric.labels): sample.value
        for sample in beat[1]
        if sample.metric == metric.name
    }
