"""Gathers the doctor's page: the machine, its state, its ceilings, and the differences from its last good run."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

from bench.engines.registry import Engine
from bench.errors import InfrastructureFailed, Misuse, say
from bench.machine.device_checks import too_old, without_cuda
from bench.machine.doctor import node_state
from bench.machine.doctor.node_state import free_memory, gpu_clocks, monitors, pcie_links
from bench.machine.doctor.page import (
    RUNS_SEARCHED,
    Entry,
    GpuFields,
    MachineComparison,
    Page,
    ReachedCeiling,
    Section,
    measured_ceilings,
)
from bench.machine.gpus import Nvml, read_gpus, why_numbered_otherwise
from bench.machine.limits.demand import demand_of_gpus
from bench.machine.limits.registry import judge
from bench.machine.machine import Machine
from bench.machine.machine_diff import differences
from bench.machine.preflight import available_bytes
from bench.results.mfu import PEAK_PRECISIONS, Peak, peak_of
from bench.store.history import History
from collectors.nvml.collector import NvmlCollector
from workloads.cost_models.absent import Absent

DEADLINE_S = 5.0
"""How long the doctor waits for GPUs; longer than a poll may take, since a driver's first answers are slow."""
_BEATS = 2
_APART_S = 0.25
"""Performance monitors measure between two readings, which must be more than 0.1 s apart."""


def gpu_fields(collector: NvmlCollector, *, wait: Callable[[float], None] = time.sleep) -> GpuFields:
    """Return each GPU's answer to each query and its cost; closes the collector."""
    try:
        for _ in range(_BEATS):
            collector.read()
            wait(_APART_S)
        return GpuFields(standings=collector.support(), left_out=collector.absent)
    finally:
        collector.close()


def gather(
    machine: Machine,
    ranks: Entry,
    history: History | Absent,
    *,
    nvml: Nvml,
    fields: GpuFields,
    root: Path = Path("/"),
) -> Page:
    """Return the page of this machine.

    ranks: whether ranks can be started. history: the history of runs, or why it cannot be read. fields: the GPUs'
    answers.
    root: where /proc and /sys are.
    """
    limits = tuple(_limits(machine, root))
    judged = {limit.name for limit in limits}  # Among them are variables, for example GLOO_SOCKET_IFNAME.
    environment = [Entry(name=name, value=value) for name, value in machine.environment.items() if name not in judged]
    if not machine.environment:
        environment.append(Entry(name="environment", value="no variable that can change a measurement is set"))
    sections = (
        Section(title="versions", entries=tuple(_versions(machine))),
        Section(title="devices", entries=(*_devices(machine, nvml, root), ranks)),
        Section(
            title="topology",
            entries=(*node_state.numa_nodes(root), *_gpu_links(machine), *pcie_links(nvml, machine.gpus)),
        ),
        Section(title="clocks", entries=(*node_state.cpu_clocks(root), *gpu_clocks(nvml, machine.gpus))),
        Section(title="links", entries=(*node_state.interfaces(root), *node_state.infiniband_ports(root))),
        Section(title="limits", entries=limits),
        Section(title="settings", entries=(*node_state.kernel_settings(root), *environment)),
        Section(title="monitors", entries=monitors(fields.standings, root)),
    )
    ceilings: tuple[ReachedCeiling, ...] | Absent
    comparison: MachineComparison | Absent
    try:
        ceilings, comparison = (
            (history, history)
            if isinstance(history, Absent)
            else (measured_ceilings(history, machine), _compare(history, machine))
        )
    except (InfrastructureFailed, Misuse) as error:
        ceilings = comparison = Absent(reason=str(error))
    return Page(hostname=machine.hostname, sections=sections, fields=fields, ceilings=ceilings, comparison=comparison)


def _versions(machine: Machine) -> Iterator[Entry]:
    yield _machine_entry(machine, "own_version", "parallel-observatory")
    commit = _machine_entry(machine, "commit", "commit")
    yield Entry(name="commit", value=f"{commit.value}, with changes") if machine.is_dirty else commit
    yield _machine_entry(machine, "torch_version", "torch")
    yield _machine_entry(machine, "torch_cuda_version", "CUDA of torch")
    if machine.torch_hip_version is not None:
        yield Entry(name="ROCm of torch", value=f"{machine.torch_hip_version}; `observatory run` does not use its GPUs")
    yield _machine_entry(machine, "nccl_version", "NCCL")
    yield _machine_entry(machine, "driver_version", "driver")
    old = too_old(machine)
    if old is None:
        yield _machine_entry(machine, "cuda_driver_version", "CUDA of driver")
    else:
        yield Entry(name="CUDA of driver", value=f"{machine.cuda_driver_version}, too old: {old}")
    yield _machine_entry(machine, "python_version", "Python")
    yield Entry(name="kernel", value=f"{machine.system} {machine.kernel} {machine.architecture}")


def _devices(machine: Machine, nvml: Nvml, root: Path) -> Iterator[Entry]:
    yield _machine_entry(machine, "cpu", "CPU")
    yield _machine_entry(machine, "usable_cores", "usable cores")
    yield _machine_entry(machine, "physical_cores", "physical cores")
    yield Entry(name="memory", value=machine.memory_bytes, unit="bytes")
    yield Entry(name="memory, available now", value=available_bytes(root), unit="bytes")
    yield _machine_entry(machine, "container_image", "container image")
    limit = machine.cpu_limit_cores
    if limit is None:
        yield Entry(name="CPU limit", reason=machine.absent.get("cpu_limit_cores"))
    else:
        yield Entry(name="CPU limit", value=f"{limit:g} cores")
    if "no answer" not in machine.absent.get("gpus", ""):  # Do not wait again for a driver that hangs.
        hidden = read_gpus(nvml, machine.environment, on_late=say).hidden
        if hidden is not None:
            yield Entry(name="GPUs that CUDA shows", value=hidden.text)
    if (order := why_numbered_otherwise(machine.gpus, machine.environment)) is not None:
        yield Entry(name="order of GPUs", value=order)
    if machine.gpus and machine.torch_version is not None and machine.torch_cuda_version is None:
        yield Entry(
            name="GPUs that torch can use",
            value=f"{without_cuda(machine.torch_version, len(machine.gpus))}; install a CUDA build",
        )
    if not machine.gpus:
        yield Entry(name="GPUs", reason=machine.absent.get("gpus", "NVML sees none that this process may use"))
    for gpu in machine.gpus:
        yield Entry(name=f"GPU {gpu.index}", value=f"{gpu.name}, {gpu.uuid}")
        name = f"GPU {gpu.index}, memory"
        if gpu.memory_bytes is None:
            yield Entry(name=name, reason=machine.absent.get(f"gpus[{gpu.index}].memory_bytes"))
        else:
            yield Entry(name=name, value=gpu.memory_bytes, unit="bytes")
    for name in dict.fromkeys(gpu.name for gpu in machine.gpus):
        yield _peaks(name)
    yield from free_memory(nvml, machine.gpus)


def _limits(machine: Machine, root: Path) -> Iterator[Entry]:
    """Yield each limit of the node, judged for a rank on each GPU."""
    for verdict in judge(demand_of_gpus(len(machine.gpus)), machine.environment, root):
        yield Entry(name=verdict.name, value=verdict.text)


def _peaks(gpu_name: str) -> Entry:
    """Return the dense peaks of a GPU by its data sheet, without those that are unknown or that it does not have."""
    peaks = [peak_of(gpu_name, precision) for precision in PEAK_PRECISIONS]
    known = [peak for peak in peaks if isinstance(peak, Peak)]
    name = f"peaks of {gpu_name}"
    if not known:
        return Entry(name=name, reason=next(peak.reason for peak in peaks if isinstance(peak, Absent)))
    rates = ", ".join(f"{peak.precision} {peak.flops_per_second / 1e12:g}" for peak in known)
    bandwidth = known[0].bandwidth_bytes_per_second / 1e12
    return Entry(name=name, value=f"{rates} TFLOP/s dense, {bandwidth:g} TB/s ({known[0].source})")


def _machine_entry(machine: Machine, field: str, name: str) -> Entry:
    value: str | int | None = getattr(machine, field)
    return Entry(name=name, value=value, reason=machine.absent.get(field) if value is None else None)


def _gpu_links(machine: Machine) -> Iterator[Entry]:
    """Yield the pairs of GPUs for each kind of link."""
    if machine.gpus and "links" in machine.absent:
        yield Entry(name="links of GPUs", reason=machine.absent["links"])
    pairs = defaultdict(list)
    for link in machine.links:
        pairs[link.kind].append(f"{link.first}-{link.second}")
    for kind, names in sorted(pairs.items()):
        is_all = len(names) == len(list(combinations(machine.gpus, 2)))
        yield Entry(name=f"GPUs by {kind}", value="all pairs" if is_all and len(names) > 1 else ", ".join(names))


def _compare(history: History, machine: Machine) -> MachineComparison | Absent:
    """Return the differences from the machine of the newest successful run on this host."""
    for summary in history.runs(RUNS_SEARCHED):
        before = history.machine(summary.run) if summary.outcome == "done" else None
        if before is not None and before.hostname == machine.hostname:
            return MachineComparison(
                run=summary.run,
                strategy=summary.case.strategy,
                started_ns=summary.started_ns,
                differences=differences(before, machine),
            )
    return Absent(reason=f"the history has no successful run on {machine.hostname}; `observatory run ddp` makes one")


def machine_of_ranks(start: Callable[[], Engine], read_here: Callable[[], Machine]) -> tuple[Machine, Entry]:
    """Return the machine as ranks would see it now, and whether ranks can be started on it.

    Every run records the machine as its agent read it, and agents set environment variables for their ranks. So an
    agent also reads the machine that is compared with a run. This process reads it, without these settings, only if no
    agent starts.
    """
    try:
        with start() as engine:
            return engine.machine(), Entry(name="ranks", value="can be started")
    except InfrastructureFailed as error:
        return read_here(), Entry(name="ranks", reason=f"they cannot be started: {error}")
