"""Gathers the doctor's page: the machine, its state, its ceilings, and what differs from its last good run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from bench.device_checks import too_old
from bench.doctor import node
from bench.doctor.ceilings import RUNS_SEARCHED, measured_ceilings
from bench.doctor.gpu_state import StateNvml, free_memory, gpu_clocks, hidden_gpus, pcie_links
from bench.doctor.monitors import monitors
from bench.doctor.page import Ceiling, Comparison, Entry, GpuFields, Page, Section
from bench.errors import InfrastructureFailed, Misuse
from bench.machine import Machine
from bench.machine_difference import differences
from bench.peaks import Absent
from bench.preflight import available_bytes
from bench.store.history import History


def gather(
    machine: Machine,
    ranks: Entry,
    history: History | Absent,
    *,
    nvml: StateNvml,
    fields: GpuFields,
    root: Path = Path("/"),
) -> Page:
    """The page of this machine.

    ranks: whether they can be started. history: of runs, or why it cannot be read. fields: what the GPUs answer.
    root: where /proc and /sys are.
    """
    sections = (
        Section(title="versions", entries=tuple(_versions(machine))),
        Section(title="devices", entries=(*_devices(machine, nvml, root), ranks)),
        Section(
            title="topology",
            entries=(*node.numa_nodes(root), *_gpu_links(machine), *pcie_links(nvml, machine.gpus)),
        ),
        Section(title="clocks", entries=(*node.cpu_clocks(root), *gpu_clocks(nvml, machine.gpus))),
        Section(title="links", entries=(*node.interfaces(root), *node.infiniband_ports(root))),
        Section(title="settings", entries=(*node.kernel_settings(root), *_environment(machine))),
        Section(title="monitors", entries=monitors(fields.standings, root)),
    )
    ceilings, comparison = _told(history, machine)
    return Page(hostname=machine.hostname, sections=sections, fields=fields, ceilings=ceilings, comparison=comparison)


def _versions(machine: Machine) -> Iterator[Entry]:
    yield _known(machine, "own_version", "parallel-observatory")
    commit = _known(machine, "commit", "commit")
    yield Entry(name="commit", value=f"{commit.value}, with changes") if machine.is_dirty else commit
    yield _known(machine, "torch_version", "torch")
    yield _known(machine, "torch_cuda_version", "CUDA of torch")
    if machine.torch_hip_version is not None:
        yield Entry(name="ROCm of torch", value=f"{machine.torch_hip_version}; `observatory run` does without its GPUs")
    yield _known(machine, "nccl_version", "NCCL")
    yield _known(machine, "driver_version", "driver")
    yield _driver_cuda(machine)
    yield _known(machine, "python_version", "Python")
    yield Entry(name="kernel", value=f"{machine.system} {machine.kernel} {machine.architecture}")


def _driver_cuda(machine: Machine) -> Entry:
    """The newest CUDA that the driver runs, held against torch's."""
    old = too_old(machine)
    if old is not None:
        return Entry(name="CUDA of driver", value=f"{machine.cuda_driver_version}, too old: {old}")
    return _known(machine, "cuda_driver_version", "CUDA of driver")


def _devices(machine: Machine, nvml: StateNvml, root: Path) -> Iterator[Entry]:
    yield _known(machine, "cpu", "CPU")
    yield _known(machine, "usable_cores", "usable cores")
    yield _known(machine, "physical_cores", "physical cores")
    yield Entry(name="memory", value=machine.memory_bytes, unit="bytes")
    yield Entry(name="memory, available now", value=available_bytes(root), unit="bytes")
    if "no answer" not in machine.absent.get("gpus", ""):  # A driver that hangs is waited for once.
        yield from hidden_gpus(nvml, machine.environment)
    if not machine.gpus:
        yield Entry(name="GPUs", reason=machine.absent.get("gpus", "NVML sees none that this process may use"))
    for gpu in machine.gpus:
        yield Entry(name=f"GPU {gpu.index}", value=f"{gpu.name}, {gpu.uuid}")
        name = f"GPU {gpu.index}, memory"
        if gpu.memory_bytes is None:
            yield Entry(name=name, reason=machine.absent.get(f"gpus[{gpu.index}].memory_bytes"))
        else:
            yield Entry(name=name, value=gpu.memory_bytes, unit="bytes")
    yield from free_memory(nvml, machine.gpus)


def _known(machine: Machine, field: str, name: str) -> Entry:
    value: str | int | None = getattr(machine, field)
    return Entry(name=name, value=value, reason=machine.absent.get(field) if value is None else None)


def _gpu_links(machine: Machine) -> Iterator[Entry]:
    """Pairs of GPUs by how they reach each other."""
    if machine.gpus and "links" in machine.absent:
        yield Entry(name="links of GPUs", reason=machine.absent["links"])
    pairs = defaultdict(list)
    for link in machine.links:
        pairs[link.kind].append(f"{link.first}-{link.second}")
    for kind, names in sorted(pairs.items()):
        is_all = len(names) == len(list(combinations(machine.gpus, 2)))
        yield Entry(name=f"GPUs by {kind}", value="all pairs" if is_all and len(names) > 1 else ", ".join(names))


def _environment(machine: Machine) -> Iterator[Entry]:
    if not machine.environment:
        yield Entry(name="environment", value="nothing is set that can change a measurement")
    for name, value in machine.environment.items():
        yield Entry(name=name, value=value)


def _told(history: History | Absent, machine: Machine) -> tuple[tuple[Ceiling, ...] | Absent, Comparison | Absent]:
    """What the history tells, or why it tells nothing."""
    if isinstance(history, Absent):
        return history, history
    try:
        return measured_ceilings(history, machine), _compare(history, machine)
    except (InfrastructureFailed, Misuse) as error:
        unreadable = Absent(reason=str(error))
        return unreadable, unreadable


def _compare(history: History, machine: Machine) -> Comparison | Absent:
    """What differs from the machine of the newest run that ended well on this host."""
    for summary in history.runs(RUNS_SEARCHED):
        before = history.machine(summary.run) if summary.outcome == "done" else None
        if before is not None and before.hostname == machine.hostname:
            return Comparison(
                run=summary.run,
                strategy=summary.case.strategy,
                started_ns=summary.started_ns,
                differences=differences(before, machine),
            )
    return Absent(
        reason=f"no run that ended well on {machine.hostname} is in the history; `observatory run ddp` makes one"
    )
