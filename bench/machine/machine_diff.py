"""Differences between two readings of a machine, in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.machine.gpus import Gpu
from bench.machine.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineDifference:
    """One difference. field: its name in messages. before, now: the values in words."""

    field: str
    before: str
    now: str


def differences(before: Machine, now: Machine) -> tuple[MachineDifference, ...]:
    """Return all differences between the machines, in the order of Machine's fields.

    Two unknown values differ if their reasons do. GPUs are identified by UUID, so the replacement of a GPU by another
    of the same kind is a difference. Links are compared if both GPUs are in both readings.
    """
    return (
        *_fields(before, now),
        *_gpus(before, now),
        *_limits(before, now),
        *_links(before, now),
        *_variables(before, now),
    )


def differences_of_nodes(first: Machine, node: Machine) -> tuple[MachineDifference, ...]:
    """Return the differences between two nodes of a run that may change a measurement; `before` is the first node's.

    Left out are differences between any two nodes: their names, small amounts of memory, the identity of their GPUs,
    and Slurm's variables for a node's place in a job.
    """
    fields = (difference for difference in _fields(first, node) if difference.field not in ("hostname", "memory"))
    limits = (
        difference
        for name, words in _LIMITS
        for difference in _changed(f"{name} of GPUs", _distinct_values(first, words), _distinct_values(node, words))
    )
    variables = (difference for difference in _variables(first, node) if not difference.field.startswith("SLURM_"))
    return (*fields, *_changed("GPUs", _all_gpus(first), _all_gpus(node)), *limits, *variables)


def _distinct_values(machine: Machine, words: Callable[[Gpu], str | None]) -> str:
    """Return the different values of a machine's GPUs."""
    return " and ".join(sorted({words(gpu) or "unknown" for gpu in machine.gpus})) or "none"


def _variables(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    for name in sorted(before.environment.keys() | now.environment.keys()):
        yield from _changed(name, before.environment.get(name, "not set"), now.environment.get(name, "not set"))


_LATER = frozenset(
    {"torch_hip_version", "cuda_driver_version", "container_image", "cpu_limit_cores", "memory_limit_bytes"}
)
"""Fields that older records of machines lack: None without a reason is not a difference."""
_NONE = {"container_image": "none named", "cpu_limit_cores": "none", "memory_limit_bytes": "none"}
"""Fields whose absence is a fact, in words."""
_NAMES = {
    "hostname": "hostname",
    "system": "system",
    "kernel": "kernel",
    "architecture": "architecture",
    "python_version": "Python",
    "own_version": "parallel-observatory",
    "commit": "commit",
    "is_dirty": "source tree",
    "torch_version": "torch",
    "torch_cuda_version": "CUDA of torch",
    "torch_hip_version": "ROCm of torch",
    "nccl_version": "NCCL",
    "driver_version": "driver",
    "cuda_driver_version": "CUDA of driver",
    "cpu": "CPU",
    "usable_cores": "usable cores",
    "physical_cores": "physical cores",
    "memory_bytes": "memory",
    "container_image": "container image",
    "cpu_limit_cores": "CPU limit",
    "memory_limit_bytes": "memory limit",
    "nodes_here": "nodes of this machine",
}
"""The fields of a machine that are compared one by one, each with its name in messages."""


def _fields(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    for field, name in _NAMES.items():
        are_recorded = [getattr(machine, field) is not None or field in machine.absent for machine in (before, now)]
        if field not in _LATER or all(are_recorded):
            yield from _changed(name, _words(before, field), _words(now, field))


def _words(machine: Machine, field: str) -> str:
    value = getattr(machine, field)
    if value is None and field in _NONE:
        return _NONE[field]
    if value is None:
        return _unknown(machine, field)
    match field:
        case "is_dirty":
            return "with changes" if value else "without changes"
        case "memory_bytes" | "memory_limit_bytes":
            return _gibibytes(value)
        case "cpu_limit_cores":
            return f"{value:g} cores"
        case _:
            return str(value)


def _gibibytes(size_bytes: int) -> str:
    # Rounded, because the kernel's own share of memory varies by a few MiB from boot to boot.
    return f"{size_bytes / 2**30:.1f} GiB"


def _unknown(machine: Machine, field: str) -> str:
    return f"unknown ({machine.absent[field]})" if field in machine.absent else "unknown"


def _changed(field: str, before: str, now: str) -> Iterator[MachineDifference]:
    if before != now:
        yield MachineDifference(field=field, before=before, now=now)


def _gpus(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    old, new = ({gpu.uuid: gpu for gpu in machine.gpus} for machine in (before, now))
    if not old.keys() & new.keys():  # If every GPU was replaced, one line is clearer than a line for each.
        yield from _changed("GPUs", _all_gpus(before), _all_gpus(now))
        if old and _all_gpus(before) == _all_gpus(now):
            yield MachineDifference(field="GPUs", before="other GPUs of the same kind", now=_all_gpus(now))
        return
    for uuid in dict.fromkeys((*old, *new)):
        gpu = old.get(uuid) or new[uuid]
        yield from _changed(f"GPU {gpu.index}", _one_gpu(before, old.get(uuid)), _one_gpu(now, new.get(uuid)))


def _all_gpus(machine: Machine) -> str:
    if "gpus" in machine.absent and not machine.gpus:
        return _unknown(machine, "gpus")
    counts = Counter(gpu.name for gpu in machine.gpus)
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items())) or "none"


def _one_gpu(machine: Machine, gpu: Gpu | None) -> str:
    if gpu is None:
        return "absent"
    field = f"gpus[{gpu.index}].memory_bytes"
    memory = _unknown(machine, field) if gpu.memory_bytes is None else _gibibytes(gpu.memory_bytes)
    return f"{gpu.name}, {memory}, index {gpu.index}, {gpu.uuid}"


_LIMITS: tuple[tuple[str, Callable[[Gpu], str | None]], ...] = (
    ("power limit", lambda gpu: None if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:.0f} W"),
    ("clock limit", lambda gpu: None if gpu.clock_limit_hertz is None else f"{gpu.clock_limit_hertz / 1e6:.0f} MHz"),
)
"""Limits of a GPU: the name in messages, and the value in words."""


def _limits(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    """Yield the changed limits of GPUs in both readings, one line for all GPUs with the same change.

    A limit that an older version did not read, or that a driver does not report, is not a difference.
    """
    old = {gpu.uuid: gpu for gpu in before.gpus}
    for name, words in _LIMITS:
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for gpu in now.gpus:
            if gpu.uuid in old:
                was, has_become = words(old[gpu.uuid]), words(gpu)
                if was is not None and has_become is not None and was != has_become:
                    alike[was, has_become].append(gpu.index)
        for (was, has_become), indices in sorted(alike.items()):
            listed = ", ".join(map(str, sorted(set(indices))))
            yield MachineDifference(field=f"{name} of GPU {listed}", before=was, now=has_become)


def _links(before: Machine, now: Machine) -> Iterator[MachineDifference]:
    if "links" in before.absent or "links" in now.absent:
        if before.gpus and now.gpus:  # Otherwise the absent GPUs are a difference already.
            words = (_unknown(machine, "links") if "links" in machine.absent else "known" for machine in (before, now))
            yield from _changed("links of GPUs", *words)
        return
    old, new = (_kinds(machine) for machine in (before, now))
    # One line for all pairs of GPUs whose link changed in the same way.
    pairs = defaultdict(list)
    for pair in old.keys() & new.keys():
        if old[pair] != new[pair]:
            pairs[old[pair], new[pair]].append(pair)
    indices = {gpu.uuid: gpu.index for gpu in now.gpus}
    for kinds, changed in sorted(pairs.items()):
        names = sorted(sorted(indices[uuid] for uuid in pair) for pair in changed)
        listed = ", ".join(f"{first}-{second}" for first, second in names)
        yield MachineDifference(field=f"link of GPUs {listed}", before=kinds[0], now=kinds[1])


def _kinds(machine: Machine) -> dict[frozenset[str], str]:
    """Return the kind of each link by the UUIDs of its ends, without MIG instances of one GPU, which share an index."""
    uuids = {gpu.index: gpu.uuid for gpu in machine.gpus}
    return {
        frozenset((uuids[link.first], uuids[link.second])): link.kind
        for link in machine.links
        if link.first != link.second
    }
